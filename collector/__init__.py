"""Run a policy in a vector env, and turn the steps into batches for a learner or into episodes on disk."""

import importlib
from typing import TYPE_CHECKING, Any

from collector.basics.interruptor import Interruptor as Interruptor
from collector.basics.timing import CollectorStats as CollectorStats
from collector.batch.multi_step import MultiStep as MultiStep
from collector.batch.rollout import FlatRollout as FlatRollout
from collector.batch.rollout import Rollout as Rollout
from collector.batch.step_extras import StepBatch as StepBatch
from collector.collectors.async_collector import AsyncDataCollector as AsyncDataCollector
from collector.collectors.rollouts import rollout as rollout
from collector.collectors.sync_collector import SyncDataCollector as SyncDataCollector
from collector.episodes.cutter import EpisodeCutter as EpisodeCutter
from collector.episodes.episode import CollectStats as CollectStats
from collector.episodes.episode import Episode as Episode
from collector.episodes.episode import EpisodeBatch as EpisodeBatch
from collector.episodes.episode import SequenceSummaryStats as SequenceSummaryStats
from collector.episodes.seeds import EpisodeSeeds as EpisodeSeeds
from collector.episodes.seeds import action_seed as action_seed
from collector.episodes.seeds import episode_seed as episode_seed
from collector.policy.policy_call import ExplorationType as ExplorationType
from collector.policy.policy_call import exploration_type as exploration_type
from collector.policy.policy_call import set_exploration_type as set_exploration_type
from collector.policy.random_policy import RandomPolicy as RandomPolicy
from collector.store.safe_folder import DatasetError as DatasetError

if TYPE_CHECKING:
    from collector.cluster.actor_config import ActorConfig as ActorConfig
    from collector.cluster.cluster_stats import ClusterStats as ClusterStats
    from collector.cluster.ray_collector import RayCollector as RayCollector
    from collector.device.torch_vector_env import TorchVectorEnv as TorchVectorEnv
    from collector.jobs.job import Job as Job
    from collector.jobs.job import JobError as JobError
    from collector.jobs.job_files import load_job as load_job
    from collector.jobs.job_progress import JobState as JobState
    from collector.jobs.job_runner import resume_job as resume_job
    from collector.jobs.job_runner import run_job as run_job
    from collector.jobs.transform_statistics import save_statistics as save_statistics
    from collector.policy.mlp import MLPPolicy as MLPPolicy
    from collector.store.dataset import Dataset as Dataset
    from collector.store.dataset import Transitions as Transitions
    from collector.store.dataset_head import make_head as make_head
    from collector.store.export import export as export
    from collector.store.record_episodes import RecordEpisodes as RecordEpisodes
    from collector.store.writer import StoreWriter as StoreWriter

Collector = SyncDataCollector
AsyncCollector = AsyncDataCollector

# Imported at first use, because torch takes seconds, and data sets and jobs need optional libraries.
_MODULES = {
    "cluster.actor_config": "ActorConfig",
    "cluster.cluster_stats": "ClusterStats",
    "cluster.ray_collector": "RayCollector",
    "device.torch_vector_env": "TorchVectorEnv",
    "jobs.job": "Job JobError",
    "jobs.job_progress": "JobState",
    "jobs.job_files": "load_job",
    "jobs.job_runner": "resume_job run_job",
    "jobs.transform_statistics": "save_statistics",
    "policy.mlp": "MLPPolicy",
    "store.dataset": "Dataset Transitions",
    "store.dataset_head": "make_head",
    "store.export": "export",
    "store.record_episodes": "RecordEpisodes",
    "store.writer": "StoreWriter",
}
_LOADED_WHEN_USED = {name: f"collector.{module}" for module, names in _MODULES.items() for name in names.split()}

_LOADED = {name for name, value in vars().items() if str(getattr(value, "__module__", None)).startswith("collector.")}
__all__ = sorted(_LOADED | _LOADED_WHEN_USED.keys())


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module 'collector' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LOADED_WHEN_USED[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
