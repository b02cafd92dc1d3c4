"""vecenv: many RL environments behind one numpy object."""

from vecenv.backends.base import Backend
from vecenv.backends.per_env import EnvWorker
from vecenv.base import BaseVectorEnv
from vecenv.errors import (
    ClosedError,
    EnvContractError,
    EnvStepError,
    ObservationError,
    Partial,
    RemoteTraceback,
    SharedMemoryError,
    VectorEnvError,
    WorkerDiedError,
    WorkerTimeoutError,
)
from vecenv.running import RunningMeanStd
from vecenv.venvs import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from vecenv.wrappers import VectorEnvNormObs, VectorEnvWrapper

__all__ = [
    "Backend",
    "BaseVectorEnv",
    "ClosedError",
    "DummyVectorEnv",
    "EnvContractError",
    "EnvStepError",
    "EnvWorker",
    "ObservationError",
    "Partial",
    "RemoteTraceback",
    "RunningMeanStd",
    "SharedMemoryError",
    "ShmemVectorEnv",
    "SubprocVectorEnv",
    "VectorEnvError",
    "VectorEnvNormObs",
    "VectorEnvWrapper",
    "WorkerDiedError",
    "WorkerTimeoutError",
]
__version__ = "0.1.0"
