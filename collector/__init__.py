"""From a vector env and a policy to data: batches for a learner, or episodes on disk."""

import importlib
from typing import TYPE_CHECKING, Any

from collector.async_collector import AsyncDataCollector
from collector.batch.multi_step import MultiStep
from collector.batch.rollout import FlatRollout, Rollout
from collector.batch.step_extras import StepBatch
from collector.episodes.episode import Episode
from collector.episodes.statistics import CollectStats, SequenceSummaryStats
from collector.interruptor import Interruptor
from collector.job.store import DatasetError, load_episodes
from collector.policy.exploration import ExplorationType, exploration_type, set_exploration_type
from collector.policy.random_policy import RandomPolicy
from collector.rollouts import rollout
from collector.sync_collector import SyncDataCollector
from collector.timing import CollectorStats

if TYPE_CHECKING:
    from collector.cluster.cluster_stats import ClusterStats
    from collector.cluster.ray_collector import RayCollector
    from collector.device.to_torchrl import to_torchrl as to_torchrl
    from collector.device.torch_vector_env import TorchVectorEnv
    from collector.policy.mlp import MLPPolicy

Collector = SyncDataCollector

# `from collector import *` loads every name that stands here: `to_torchrl` needs TorchRL.
__all__ = [
    "AsyncDataCollector",
    "ClusterStats",
    "CollectStats",
    "Collector",
    "CollectorStats",
    "DatasetError",
    "Episode",
    "ExplorationType",
    "FlatRollout",
    "Interruptor",
    "MLPPolicy",
    "MultiStep",
    "RandomPolicy",
    "RayCollector",
    "Rollout",
    "SequenceSummaryStats",
    "StepBatch",
    "SyncDataCollector",
    "TorchVectorEnv",
    "exploration_type",
    "load_episodes",
    "rollout",
    "set_exploration_type",
]

# What few programs need, with the module of each: torch takes seconds to import, and Ray's collector has many modules.
_LOADED_WHEN_USED = {
    "ClusterStats": "collector.cluster.cluster_stats",
    "MLPPolicy": "collector.policy.mlp",
    "RayCollector": "collector.cluster.ray_collector",
    "TorchVectorEnv": "collector.device.torch_vector_env",
    "to_torchrl": "collector.device.to_torchrl",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module 'collector' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LOADED_WHEN_USED[name]), name)
    globals()[name] = value  # the next use finds it at once
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_LOADED_WHEN_USED})
