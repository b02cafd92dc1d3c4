"""vecenv: run many RL environments as one vector env, with numpy batches."""

import importlib
from typing import TYPE_CHECKING, Any

from vecenv.backends.backend import Backend as Backend
from vecenv.backends.env_worker import EnvWorker as EnvWorker
from vecenv.base import BaseVectorEnv as BaseVectorEnv
from vecenv.errors import ClosedError as ClosedError
from vecenv.errors import ConcurrentCallError as ConcurrentCallError
from vecenv.errors import EnvContractError as EnvContractError
from vecenv.errors import EnvStepError as EnvStepError
from vecenv.errors import InterruptedCallError as InterruptedCallError
from vecenv.errors import NotStartedError as NotStartedError
from vecenv.errors import ObservationError as ObservationError
from vecenv.errors import Partial as Partial
from vecenv.errors import RemoteTraceback as RemoteTraceback
from vecenv.errors import SharedMemoryError as SharedMemoryError
from vecenv.errors import VectorEnvError as VectorEnvError
from vecenv.errors import WorkerDiedError as WorkerDiedError
from vecenv.errors import WorkerTimeoutError as WorkerTimeoutError
from vecenv.norm_obs import VectorEnvNormObs as VectorEnvNormObs
from vecenv.running_mean_std import RunningMeanStd as RunningMeanStd
from vecenv.venvs import DummyVectorEnv as DummyVectorEnv
from vecenv.venvs import RayVectorEnv as RayVectorEnv
from vecenv.venvs import ShmemVectorEnv as ShmemVectorEnv
from vecenv.venvs import SubprocVectorEnv as SubprocVectorEnv
from vecenv.venvs import ThreadVectorEnv as ThreadVectorEnv
from vecenv.wrappers import RowWiseWrapper as RowWiseWrapper
from vecenv.wrappers import VectorEnvWrapper as VectorEnvWrapper

if TYPE_CHECKING:
    from vecenv.backends.memory.shared_state import SharedState as SharedState
    from vecenv.backends.worker.plain_code import RemoteObject as RemoteObject
    from vecenv.creator import EnvCreator as EnvCreator
    from vecenv.envs.atari_env import AtariVectorEnv as AtariVectorEnv
    from vecenv.envs.dm_control_env import DMControlEnv as DMControlEnv
    from vecenv.envs.drop_in_names import ContinuousToDiscrete as ContinuousToDiscrete
    from vecenv.envs.drop_in_names import MultiDiscreteToDiscrete as MultiDiscreteToDiscrete
    from vecenv.envs.drop_in_names import ParallelEnv as ParallelEnv
    from vecenv.envs.drop_in_names import SerialEnv as SerialEnv
    from vecenv.envs.drop_in_names import TruncatedAsTerminated as TruncatedAsTerminated
    from vecenv.envs.drop_in_names import step_mdp as step_mdp
    from vecenv.envs.envpool_env import EnvPoolVectorEnv as EnvPoolVectorEnv
    from vecenv.envs.envpool_env import MultiThreadedEnv as MultiThreadedEnv
    from vecenv.envs.envpool_env import MultiThreadedEnvWrapper as MultiThreadedEnvWrapper
    from vecenv.envs.flatten_agents import flatten_agents as flatten_agents
    from vecenv.envs.from_gymnasium import from_gymnasium as from_gymnasium
    from vecenv.envs.gym_env import GymEnv as GymEnv
    from vecenv.envs.pettingzoo_env import PettingZooEnv as PettingZooEnv
    from vecenv.envs.pettingzoo_vector import AECVectorEnv as AECVectorEnv
    from vecenv.envs.pettingzoo_vector import ParallelVectorEnv as ParallelVectorEnv
    from vecenv.facades.make_vec import AsyncVectorEnv as AsyncVectorEnv
    from vecenv.facades.make_vec import SyncVectorEnv as SyncVectorEnv
    from vecenv.facades.make_vec import make_vec as make_vec
    from vecenv.facades.to_gymnasium import GymnasiumVectorEnv as GymnasiumVectorEnv
    from vecenv.facades.to_sb3 import SB3VecEnv as SB3VecEnv
    from vecenv.transforms.compose import Compose as Compose
    from vecenv.transforms.transform import Transform as Transform
    from vecenv.transforms.transformed_env import TransformedEnv as TransformedEnv
    from vecenv.transforms.transformed_vector_env import TransformedVectorEnv as TransformedVectorEnv
    from vecenv.transforms.vec_norm import VecNorm as VecNorm
    from vecenv.tuning.tune import TuneResult as TuneResult
    from vecenv.tuning.tune import TuneRow as TuneRow
    from vecenv.tuning.tune import tune as tune

__version__ = "0.1.0"

# Public names by module. The first use imports the module.
_MODULES = {
    "backends.memory.shared_state": "SharedState",
    "backends.worker.plain_code": "RemoteObject",
    "creator": "EnvCreator",
    "envs.atari_env": "AtariVectorEnv",
    "envs.dm_control_env": "DMControlEnv",
    "envs.gym_env": "GymEnv",
    "envs.flatten_agents": "flatten_agents",
    "envs.pettingzoo_env": "PettingZooEnv",
    "envs.pettingzoo_vector": "AECVectorEnv ParallelVectorEnv",
    "envs.envpool_env": "EnvPoolVectorEnv MultiThreadedEnv MultiThreadedEnvWrapper",
    "envs.from_gymnasium": "from_gymnasium",
    "envs.drop_in_names": "ContinuousToDiscrete MultiDiscreteToDiscrete TruncatedAsTerminated ParallelEnv SerialEnv "
    "step_mdp",
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

# `from vecenv import *` imports all names in `__all__`, so leave out two classes that need optional packages.
_LOADED = {name for name, value in vars().items() if str(getattr(value, "__module__", None)).startswith("vecenv.")}
__all__ = sorted((_LOADED | _LOADED_WHEN_USED.keys()) - {"AtariVectorEnv", "SB3VecEnv"})


def __getattr__(name: str) -> Any:
    if name == "testing":
        return importlib.import_module("vecenv.testing")
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module 'vecenv' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LOADED_WHEN_USED[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_LOADED_WHEN_USED, "testing", "__version__"})
