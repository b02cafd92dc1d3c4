"""Contenders of the benchmark: every library behind the same small interface.

    contender = CONTENDERS["gymnasium Async"](env_fns)
    steps = contender.step(actions)      # number of env steps
    contender.close()

`step` resets finished envs in the library's way, and does not count rows of resets. Each library is imported only in
the process of its lane, so that its import cannot slow the other libraries.
"""

from __future__ import annotations

import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from benchmarks.envs import EnvFn


class Contender(ABC):
    """Open vector env whose envs have been reset."""

    name: ClassVar[str]
    needs: ClassVar[str]
    """Name of the module that must be importable."""
    cartpole_only: ClassVar[bool] = False
    settle: ClassVar[float] = 0.0
    """Seconds for which its workers use CPU after a step. The next lane is measured after this time."""

    @classmethod
    def available(cls) -> bool:
        return importlib.util.find_spec(cls.needs) is not None

    @abstractmethod
    def __init__(self, env_fns: Sequence[EnvFn], **options: Any) -> None: ...

    @abstractmethod
    def step(self, actions: np.ndarray) -> int:
        """Step all envs. Return the number of env steps."""

    @abstractmethod
    def close(self) -> None: ...


class NextStepAutoreset(Contender):
    """Contender with gymnasium's five results. The next step resets a finished env."""

    def _start(self, venv: Any, count: int) -> None:
        self._venv = venv
        self._count = count
        self._resetting = 0
        venv.reset()

    def step(self, actions: np.ndarray) -> int:
        _, _, terminated, truncated, _ = self._venv.step(actions)
        steps = self._count - self._resetting
        self._resetting = int(np.count_nonzero(np.logical_or(terminated, truncated)))
        return steps

    def close(self) -> None:
        self._venv.close()


class GymnasiumSync(NextStepAutoreset):
    name = "gymnasium Sync"
    needs = "gymnasium"

    def __init__(self, env_fns: Sequence[EnvFn], **options: Any) -> None:
        from gymnasium.vector import SyncVectorEnv

        self._start(SyncVectorEnv(list(env_fns), **options), len(env_fns))


class GymnasiumAsync(NextStepAutoreset):
    name = "gymnasium Async"
    needs = "gymnasium"

    def __init__(self, env_fns: Sequence[EnvFn], **options: Any) -> None:
        from gymnasium.vector import AsyncVectorEnv

        self._start(AsyncVectorEnv(list(env_fns), shared_memory=True, **options), len(env_fns))


class GymnasiumAsyncNoCopy(GymnasiumAsync):
    name = "gymnasium Async, copy=False"

    def __init__(self, env_fns: Sequence[EnvFn], **options: Any) -> None:
        super().__init__(env_fns, copy=False, **options)


class EnvPool(NextStepAutoreset):
    name = "EnvPool (C++)"
    needs = "envpool"
    cartpole_only = True

    def __init__(self, env_fns: Sequence[EnvFn], **options: Any) -> None:
        import envpool

        self._start(envpool.make_gymnasium("CartPole-v1", num_envs=len(env_fns)), len(env_fns))


class PufferMultiprocessing(NextStepAutoreset):
    """PufferLib 1.x. One core is left to the caller, because this setting is the fastest here."""

    name = "PufferLib Multiprocessing"
    needs = "pufferlib"
    settle = 0.6

    def __init__(self, env_fns: Sequence[EnvFn], **options: Any) -> None:
        import pufferlib.vector
        from pufferlib.emulation import GymnasiumPufferEnv

        count = len(env_fns)
        # The caller and the workers wait without yielding. Without a core for the caller, all become very slow.
        workers = min(count, max(1, len(os.sched_getaffinity(0)) - 1))
        while count % workers:  # it accepts only blocks of equal size
            workers -= 1
        # In 1.0.1, `make` rejects a list of env functions, so the class is built directly.
        venv = pufferlib.vector.Multiprocessing(
            [GymnasiumPufferEnv] * count,
            [[] for _ in env_fns],
            [{"env_creator": env_fn} for env_fn in env_fns],
            count,
            num_workers=workers,
            **options,
        )
        self._start(venv, count)


class _StableBaselines(Contender):
    """SB3's class, which resets finished envs within the step."""

    needs = "stable_baselines3"

    def _start(self, venv: Any, count: int) -> None:
        self._venv = venv
        self._count = count
        venv.reset()

    def step(self, actions: np.ndarray) -> int:
        self._venv.step(actions)
        return self._count

    def close(self) -> None:
        self._venv.close()


class StableBaselinesDummy(_StableBaselines):
    name = "SB3 Dummy"

    def __init__(self, env_fns: Sequence[EnvFn], **options: Any) -> None:
        from stable_baselines3.common.vec_env import DummyVecEnv

        self._start(DummyVecEnv(list(env_fns), **options), len(env_fns))


class StableBaselinesSubproc(_StableBaselines):
    name = "SB3 Subproc"

    def __init__(self, env_fns: Sequence[EnvFn], **options: Any) -> None:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        self._start(SubprocVecEnv(list(env_fns), start_method="fork", **options), len(env_fns))


class StepThenReset(Contender):
    """Contender without autoreset, like tianshou's and our classes: the caller resets finished ids."""

    def _start(self, venv: Any, count: int) -> None:
        self.venv = venv
        self._count = count
        venv.reset()

    def step(self, actions: np.ndarray) -> int:
        _, _, terminated, truncated, _ = self.venv.step(actions)
        ended = np.flatnonzero(np.logical_or(terminated, truncated))
        if len(ended):
            self.venv.reset(ended)
        return self._count

    def close(self) -> None:
        self.venv.close()


class _Tianshou(StepThenReset):
    needs = "tianshou"
    kind: ClassVar[str]

    def __init__(self, env_fns: Sequence[EnvFn], **options: Any) -> None:
        import tianshou.env

        venv = getattr(tianshou.env, self.kind)(list(env_fns), **options)
        self._start(venv, len(env_fns))


class TianshouDummy(_Tianshou):
    name = "tianshou Dummy"
    kind = "DummyVectorEnv"


class TianshouSubproc(_Tianshou):
    name = "tianshou Subproc"
    kind = "SubprocVectorEnv"


class TianshouShmem(_Tianshou):
    name = "tianshou Shmem"
    kind = "ShmemVectorEnv"


class TianshouRay(_Tianshou):
    """Contender that is not in PEERS, because it needs the cluster of `benchmarks.ray`."""

    name = "tianshou Ray"
    kind = "RayVectorEnv"


class TorchRLParallel(Contender):
    """TorchRL's class. `step_and_maybe_reset` does the work of a random rollout without storing it."""

    name = "TorchRL ParallelEnv"
    needs = "torchrl"

    def __init__(self, env_fns: Sequence[EnvFn], **options: Any) -> None:
        import torch
        from torchrl.envs import GymWrapper, ParallelEnv

        torch.set_num_threads(1)
        makers = [_TorchRLMaker(GymWrapper, env_fn) for env_fn in env_fns]
        self._venv = ParallelEnv(len(makers), makers, mp_start_method="fork", **options)
        self._count = len(makers)
        self._from_numpy = torch.from_numpy
        self._state = self._venv.reset()

    def step(self, actions: np.ndarray) -> int:
        self._state.set("action", self._from_numpy(actions))
        _, self._state = self._venv.step_and_maybe_reset(self._state)
        return self._count

    def close(self) -> None:
        self._venv.close()


class _TorchRLMaker:
    """Picklable function that makes a wrapped env with integer actions."""

    def __init__(self, wrapper: Any, env_fn: EnvFn) -> None:
        self._wrapper = wrapper
        self._env_fn = env_fn

    def __call__(self) -> Any:
        return self._wrapper(self._env_fn(), categorical_action_encoding=True)


PEERS: list[type[Contender]] = [
    GymnasiumSync,
    GymnasiumAsync,
    GymnasiumAsyncNoCopy,
    StableBaselinesDummy,
    StableBaselinesSubproc,
    TianshouDummy,
    TianshouSubproc,
    TianshouShmem,
    TorchRLParallel,
    PufferMultiprocessing,
    EnvPool,
]
