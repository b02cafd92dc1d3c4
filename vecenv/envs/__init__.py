"""Adapters for envs of other libraries. Each file adapts one library."""
