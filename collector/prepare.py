"""`prepare_policy` by its documented import path."""

from collector.policy.prepare import prepare_policy

__all__ = ["prepare_policy"]
