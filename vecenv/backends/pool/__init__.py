"""Code of the parent that starts, watches, restarts and ends worker processes and Ray actors."""
