"""`MLPPolicy` by its documented import path."""

from collector.policy.mlp import MLPPolicy

__all__ = ["MLPPolicy"]
