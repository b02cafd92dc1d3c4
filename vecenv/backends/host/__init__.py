"""Runs a block of envs, wherever it lives; backends and workers may import all of it, and `env_access` envs too."""
