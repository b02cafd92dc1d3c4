"""vecenv: many RL environments behind one numpy object."""

import importlib
from typing import TYPE_CHECKING, Any

from vecenv.backends.backend import Backend
from vecenv.backends.env_worker import EnvWorker
from vecenv.base import BaseVectorEnv
from vecenv.errors import (
    ClosedError,
    ConcurrentCallError,
    EnvContractError,
    EnvStepError,
    NotStartedError,
    ObservationError,
    Partial,
    RemoteTraceback,
    SharedMemoryError,
    VectorEnvError,
    WorkerDiedError,
    WorkerTimeoutError,
)
from vecenv.norm_obs import RunningMeanStd, VectorEnvNormObs
from vecenv.venvs import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv
from vecenv.wrappers import RowWiseWrapper, VectorEnvWrapper

if TYPE_CHECKING:
    from vecenv.backends.memory.shared_state import SharedState
    from vecenv.creator import EnvCreator
    from vecenv.envs.atari_env import AtariVectorEnv as AtariVectorEnv
    from vecenv.envs.dm_control_env import DMControlEnv
    from vecenv.envs.envpool_env import EnvPoolVectorEnv, MultiThreadedEnv, MultiThreadedEnvWrapper
    from vecenv.envs.flatten_agents import flatten_agents
    from vecenv.envs.from_gymnasium import from_gymnasium
    from vecenv.envs.gym_env import GymEnv
    from vecenv.envs.pettingzoo_env import PettingZooEnv
    from vecenv.envs.pettingzoo_vector import AECVectorEnv, ParallelVectorEnv
    from vecenv.envs.tianshou_wrappers import ContinuousToDiscrete, MultiDiscreteToDiscrete, TruncatedAsTerminated
    from vecenv.envs.torchrl_names import ParallelEnv, SerialEnv, step_mdp
    from vecenv.facades.make_vec import AsyncVectorEnv, SyncVectorEnv, make_vec
    from vecenv.facades.to_gymnasium import GymnasiumVectorEnv
    from vecenv.facades.to_sb3 import SB3VecEnv as SB3VecEnv
    from vecenv.transforms.compose import Compose
    from vecenv.transforms.transform import Transform
    from vecenv.transforms.transformed_env import TransformedEnv
    from vecenv.transforms.transformed_vector_env import TransformedVectorEnv
    from vecenv.transforms.vec_norm import VecNorm
    from vecenv.tuning.tune import TuneResult, TuneRow, tune

# `from vecenv import *` loads every name that stands here: AtariVectorEnv and SB3VecEnv are classes of other libraries,
# which need not be installed.
__all__ = [
    "AECVectorEnv",
    "AsyncVectorEnv",
    "Backend",
    "BaseVectorEnv",
    "ClosedError",
    "Compose",
    "ConcurrentCallError",
    "ContinuousToDiscrete",
    "DMControlEnv",
    "DummyVectorEnv",
    "EnvContractError",
    "EnvCreator",
    "EnvPoolVectorEnv",
    "EnvStepError",
    "EnvWorker",
    "GymEnv",
    "GymnasiumVectorEnv",
    "MultiDiscreteToDiscrete",
    "MultiThreadedEnv",
    "MultiThreadedEnvWrapper",
    "NotStartedError",
    "ObservationError",
    "ParallelEnv",
    "ParallelVectorEnv",
    "Partial",
    "PettingZooEnv",
    "RayVectorEnv",
    "RemoteTraceback",
    "RowWiseWrapper",
    "RunningMeanStd",
    "SerialEnv",
    "SharedMemoryError",
    "SharedState",
    "ShmemVectorEnv",
    "SubprocVectorEnv",
    "SyncVectorEnv",
    "ThreadVectorEnv",
    "Transform",
    "TransformedEnv",
    "TransformedVectorEnv",
    "TruncatedAsTerminated",
    "TuneResult",
    "TuneRow",
    "VecNorm",
    "VectorEnvError",
    "VectorEnvNormObs",
    "VectorEnvWrapper",
    "WorkerDiedError",
    "WorkerTimeoutError",
    "flatten_agents",
    "from_gymnasium",
    "make_vec",
    "step_mdp",
    "tune",
]
__version__ = "0.1.0"

# Names that are loaded when they are first used, by their modules: not every program needs what they stand on.
_MODULES = {
    "backends.memory.shared_state": "SharedState",
    "creator": "EnvCreator",
    "envs.atari_env": "AtariVectorEnv",
    "envs.dm_control_env": "DMControlEnv",
    "envs.gym_env": "GymEnv",
    "envs.flatten_agents": "flatten_agents",
    "envs.pettingzoo_env": "PettingZooEnv",
    "envs.pettingzoo_vector": "AECVectorEnv ParallelVectorEnv",
    "envs.envpool_env": "EnvPoolVectorEnv MultiThreadedEnv MultiThreadedEnvWrapper",
    "envs.from_gymnasium": "from_gymnasium",
    "envs.tianshou_wrappers": "ContinuousToDiscrete MultiDiscreteToDiscrete TruncatedAsTerminated",
    "envs.torchrl_names": "ParallelEnv SerialEnv step_mdp",
    "facades.make_vec": "AsyncVectorEnv SyncVectorEnv make_vec",
    "facades.to_gymnasium": "GymnasiumVectorEnv",
    "facades.to_sb3": "SB3VecEnv",
    "transforms.compose": "Compose",
    "transforms.transform": "Transform",
    "transforms.transformed_env": "TransformedEnv",
    "transforms.transformed_vector_env": "TransformedVectorEnv",
    "transforms.vec_norm": "VecNorm",
    "tuning.tune": "TuneResult TuneRow tune",
}
_LOADED_WHEN_USED = {name: f"vecenv.{module}" for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module 'vecenv' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LOADED_WHEN_USED[name]), name)
    globals()[name] = value  # the next use finds it at once
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_LOADED_WHEN_USED, "testing", "__version__"})
