"""Torch tensors and devices."""
