"""Collectors that run in this process, and their parts: config, vector env, loops, evaluation."""
