"""The worker's side: life of a worker process, and the rounds that it serves."""
