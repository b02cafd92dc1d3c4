"""The child's side: the life of a worker process."""
