"""Backends: where the envs of a vector env live."""
