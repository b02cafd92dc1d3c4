"""The parent's side of workers, processes or threads: start, death, restart, end."""
