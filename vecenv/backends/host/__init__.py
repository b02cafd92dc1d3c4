"""Runs a block of envs, wherever it lives: in this process, a thread or a worker."""
