"""Batches of collected steps."""
