"""Backends, which run the envs of a vector env in this process, or in threads, processes or Ray actors."""
