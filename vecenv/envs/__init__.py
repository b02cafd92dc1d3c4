"""Adapters for envs of other libraries, with a file per library."""
