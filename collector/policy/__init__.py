"""Policies: what they are (see `collector.policy`), the random one, and how a collector runs them."""

from collector.policy.exploration import ExplorationType, exploration_type, set_exploration_type
from collector.policy.interface import Policy, RandomPolicy

__all__ = ["ExplorationType", "Policy", "RandomPolicy", "exploration_type", "set_exploration_type"]
