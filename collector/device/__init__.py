"""Torch tensors."""
