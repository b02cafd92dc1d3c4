"""Code of worker processes and Ray actors."""
