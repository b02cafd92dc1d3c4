"""From a vector environment and a policy to data: batches for a learner, or episodes on disk."""

from typing import TYPE_CHECKING, Any

from collector.async_collector import AsyncDataCollector
from collector.collector import SyncDataCollector
from collector.dataset import load_episodes
from collector.episode_stats import CollectStats, SequenceSummaryStats
from collector.episodes import Episode
from collector.exploration import ExplorationType, exploration_type, set_exploration_type
from collector.extras import StepBatch
from collector.flat import FlatRollout
from collector.interruptor import Interruptor
from collector.policy import RandomPolicy
from collector.rollout import Rollout
from collector.timing import CollectorStats

if TYPE_CHECKING:
    from collector.mlp import MLPPolicy
    from collector.torch_vector_env import TorchVectorEnv

Collector = SyncDataCollector

__all__ = [
    "AsyncDataCollector",
    "CollectStats",
    "Collector",
    "CollectorStats",
    "Episode",
    "ExplorationType",
    "FlatRollout",
    "Interruptor",
    "MLPPolicy",
    "RandomPolicy",
    "Rollout",
    "SequenceSummaryStats",
    "StepBatch",
    "SyncDataCollector",
    "TorchVectorEnv",
    "exploration_type",
    "load_episodes",
    "set_exploration_type",
]


def __getattr__(name: str) -> Any:
    if name == "MLPPolicy":  # the one name that needs torch, which takes seconds to import
        from collector.mlp import MLPPolicy

        return MLPPolicy
    if name == "TorchVectorEnv":  # and this one
        from collector.torch_vector_env import TorchVectorEnv

        return TorchVectorEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
