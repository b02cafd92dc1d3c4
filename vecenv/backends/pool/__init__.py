"""The parent's side of worker processes: start, death, restart, kill."""
