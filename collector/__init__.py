"""From a vector environment and a policy to data: batches for a learner, or episodes on disk."""

from typing import TYPE_CHECKING, Any

from collector.collector import Interruptor, SyncDataCollector
from collector.dataset import load_episodes
from collector.episodes import Episode
from collector.policy import ExplorationType, RandomPolicy
from collector.rollout import Rollout

if TYPE_CHECKING:
    from collector.mlp import MLPPolicy

__all__ = [
    "Episode",
    "ExplorationType",
    "Interruptor",
    "MLPPolicy",
    "RandomPolicy",
    "Rollout",
    "SyncDataCollector",
    "load_episodes",
]


def __getattr__(name: str) -> Any:
    if name == "MLPPolicy":  # the one name that needs torch, which takes seconds to import
        from collector.mlp import MLPPolicy

        return MLPPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
