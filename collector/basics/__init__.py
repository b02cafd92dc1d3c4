"""Timing and interruption of collectors."""
