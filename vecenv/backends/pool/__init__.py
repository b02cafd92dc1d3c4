"""Start, watch, restart and end workers, from the parent's side."""
