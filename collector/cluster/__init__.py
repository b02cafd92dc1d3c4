"""Collect batches with actors on a Ray cluster."""
