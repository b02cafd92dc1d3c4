"""From a vector env and a policy to data: batches for a learner, or episodes on disk."""

import importlib
from typing import TYPE_CHECKING, Any

from collector.async_collector import AsyncDataCollector
from collector.batch.multi_step import MultiStep
from collector.batch.rollout import FlatRollout, Rollout
from collector.batch.step_extras import StepBatch
from collector.episodes.episode import CollectStats, Episode, EpisodeBatch, EpisodeCutter, SequenceSummaryStats
from collector.episodes.seeds import EpisodeSeeds, action_seed, episode_seed
from collector.interruptor import Interruptor
from collector.policy.policy_call import ExplorationType, exploration_type, set_exploration_type
from collector.policy.random_policy import RandomPolicy
from collector.rollouts import rollout
from collector.store.safe_folder import DatasetError
from collector.sync_collector import SyncDataCollector
from collector.timing import CollectorStats

if TYPE_CHECKING:
    from collector.cluster.actor_config import ActorConfig
    from collector.cluster.cluster_stats import ClusterStats
    from collector.cluster.ray_collector import RayCollector
    from collector.device.to_torchrl import to_torchrl as to_torchrl
    from collector.device.torch_vector_env import TorchVectorEnv
    from collector.jobs.job import Job, JobError
    from collector.jobs.job_files import load_job
    from collector.jobs.run import resume_job, run_job
    from collector.jobs.transform_statistics import save_statistics
    from collector.policy.mlp import MLPPolicy
    from collector.store.dataset import Dataset, Transitions, load_episodes
    from collector.store.dataset_head import make_head
    from collector.store.export import export
    from collector.store.record_episodes import RecordEpisodes
    from collector.store.writer import StoreWriter

Collector = SyncDataCollector

# `from collector import *` loads every name that stands here: `to_torchrl` needs TorchRL.
__all__ = [
    "ActorConfig",
    "AsyncDataCollector",
    "ClusterStats",
    "CollectStats",
    "Collector",
    "CollectorStats",
    "Dataset",
    "DatasetError",
    "Episode",
    "EpisodeBatch",
    "EpisodeCutter",
    "EpisodeSeeds",
    "ExplorationType",
    "FlatRollout",
    "Interruptor",
    "Job",
    "JobError",
    "MLPPolicy",
    "MultiStep",
    "RandomPolicy",
    "RayCollector",
    "RecordEpisodes",
    "Rollout",
    "SequenceSummaryStats",
    "StepBatch",
    "StoreWriter",
    "SyncDataCollector",
    "TorchVectorEnv",
    "Transitions",
    "action_seed",
    "episode_seed",
    "exploration_type",
    "export",
    "load_episodes",
    "load_job",
    "make_head",
    "resume_job",
    "rollout",
    "run_job",
    "save_statistics",
    "set_exploration_type",
]

# What few programs need, with the module of each: torch takes seconds to import, Ray's collector has
# many modules, and data sets and jobs need libraries beyond the core.
_LOADED_WHEN_USED = {
    "ActorConfig": "collector.cluster.actor_config",
    "ClusterStats": "collector.cluster.cluster_stats",
    "Job": "collector.jobs.job",
    "JobError": "collector.jobs.job",
    "MLPPolicy": "collector.policy.mlp",
    "Dataset": "collector.store.dataset",
    "RecordEpisodes": "collector.store.record_episodes",
    "StoreWriter": "collector.store.writer",
    "Transitions": "collector.store.dataset",
    "load_episodes": "collector.store.dataset",
    "make_head": "collector.store.dataset_head",
    "export": "collector.store.export",
    "RayCollector": "collector.cluster.ray_collector",
    "load_job": "collector.jobs.job_files",
    "resume_job": "collector.jobs.run",
    "run_job": "collector.jobs.run",
    "save_statistics": "collector.jobs.transform_statistics",
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
