"""Batches of collected steps, and what can be done with them."""
