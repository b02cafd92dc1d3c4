"""Collect rollouts on a Ray cluster."""
