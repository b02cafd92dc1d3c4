"""The child's side: the life of a worker; backends and the pool import it to start workers and to serve them."""
