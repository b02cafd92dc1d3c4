"""Collectors that run in this process."""
