"""SyncVectorEnv and AsyncVectorEnv: gymnasium's two classes by their own names and arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from vecenv.base import BaseVectorEnv
from vecenv.engine.arguments import check_env_fns
from vecenv.facades.driver import check_facade_options
from vecenv.facades.to_gymnasium import GymnasiumVectorEnv, check_arguments
from vecenv.venvs import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv

EnvFns = Sequence[Callable[[], Any] | str]
FACADE_OPTIONS = ("final_info_format", "seed_episodes", "random_initial_steps")


class _OwningVectorEnv(GymnasiumVectorEnv):
    """Makes the vector env that it wraps."""

    env_fns: EnvFns
    _kind: type[BaseVectorEnv]

    def __init__(
        self,
        env_fns: EnvFns,
        copy: bool = True,
        observation_mode: Any = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **options: Any,
    ) -> None:
        self.env_fns = env_fns
        arguments = {"copy": copy, "observation_mode": observation_mode, "autoreset_mode": autoreset_mode}
        self._open(self._kind, check_env_fns(env_fns), options, **arguments)

    def _open(self, kind: Any, env_fns: EnvFns, options: dict[str, Any], **arguments: Any) -> None:
        """Check all that can be checked before an env is made; close what was made if the rest is wrong."""
        check_facade_options(type(self), kind, options)
        arguments |= {name: options.pop(name) for name in FACADE_OPTIONS if name in options}
        check_arguments(**arguments)
        venv = kind(env_fns, copy=arguments["copy"], **options)
        try:
            super().__init__(venv, **arguments)
        except BaseException:
            venv.close()
            raise


class SyncVectorEnv(_OwningVectorEnv):
    """All envs in this process, one after the other: `gymnasium.vector.SyncVectorEnv` with its arguments.

    Besides those, as keywords: `final_info_format`, `seed_episodes` and `random_initial_steps` of GymnasiumVectorEnv,
    and the options of DummyVectorEnv. `envs` are the envs themselves.

    >>> import gymnasium as gym
    >>> with_seeds = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2, seed_episodes=True)
    >>> obs, infos = with_seeds.reset(seed=7)
    >>> with_seeds, obs.dtype, with_seeds.envs[1].unwrapped.gravity
    (SyncVectorEnv(num_envs=2), dtype('float32'), 9.8)
    >>> with_seeds.close()
    """

    _refused_calls = frozenset()
    """`call("reset")` is possible here, as in gymnasium."""

    _kind = DummyVectorEnv

    @property
    def envs(self) -> list[Any]:
        """The envs themselves."""
        return self.venv.envs


class AsyncVectorEnv(_OwningVectorEnv):
    """Envs in worker processes: `gymnasium.vector.AsyncVectorEnv` with its arguments.

    A worker hosts a block of envs, as many workers as CPUs by default. The arguments in which that matters:

        shared_memory: True for ShmemVectorEnv, False for SubprocVectorEnv. Every space works with both.
        context: "forkserver" (None means it too), "fork" or "spawn".
        daemon: True and False mean the same: workers end with this process, and may start processes.
        worker: refused. Workers of your own plug in by `BaseVectorEnv(env_fns, worker_fn)`.
        max_concurrency: the number of workers: each steps its envs one after the other.

    Besides those, as keywords: `final_info_format`, `seed_episodes` and `random_initial_steps` of GymnasiumVectorEnv,
    and the options of ShmemVectorEnv, as `num_workers`, `on_error="restart"`, `step_timeout`.

    >>> import gymnasium as gym
    >>> envs = AsyncVectorEnv([lambda: gym.make("CartPole-v1")] * 4, max_concurrency=2)
    >>> obs, infos = envs.reset(seed=7)
    >>> obs, rewards, terminations, truncations, infos = envs.step([0, 1, 1, 0])
    >>> rewards, infos
    (array([1., 1., 1., 1.]), {})
    >>> envs.close()
    """

    def __init__(
        self,
        env_fns: EnvFns,
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: None = None,
        observation_mode: Any = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        **options: Any,
    ) -> None:
        if worker is not None:
            raise ValueError(
                "a `worker` is a loop for the processes of gymnasium's AsyncVectorEnv, which are not used here; "
                "to change how envs are driven, make a BaseVectorEnv(env_fns, worker_fn) with your own EnvWorker "
                "and wrap it: GymnasiumVectorEnv(venv); to change resets, wrap the envs or choose an autoreset_mode"
            )
        self.env_fns, fns = env_fns, check_env_fns(env_fns)
        self.shared_memory, self.context, self.daemon = shared_memory, context, daemon
        self.worker, self.max_concurrency = worker, max_concurrency
        if max_concurrency is not None:
            options = {**options, "num_workers": _as_workers(max_concurrency, len(fns), options.get("num_workers"))}
        arguments = {"copy": copy, "observation_mode": observation_mode, "autoreset_mode": autoreset_mode}
        kind = ShmemVectorEnv if shared_memory else SubprocVectorEnv
        self._open(kind, fns, {**options, "context": context}, **arguments)


class ThreadedVectorEnv(_OwningVectorEnv):
    """Envs in threads of this process, with the arguments of SyncVectorEnv and the options of ThreadVectorEnv."""

    _kind = ThreadVectorEnv


class ActorVectorEnv(_OwningVectorEnv):
    """Envs in actors of Ray, with the arguments of SyncVectorEnv and the options of RayVectorEnv."""

    _kind = RayVectorEnv


def _as_workers(max_concurrency: Any, n: int, num_workers: int | None) -> int:
    if isinstance(max_concurrency, bool) or not isinstance(max_concurrency, (int, np.integer)):
        raise ValueError(f"`max_concurrency` must be an integer or None, got {type(max_concurrency)}.")
    if max_concurrency < 1:
        raise ValueError(f"`max_concurrency` must be a positive or None, got {max_concurrency}.")
    if num_workers is None:
        return min(int(max_concurrency), n)
    if num_workers > max_concurrency:
        raise ValueError(f"num_workers={num_workers} envs would step at once, but max_concurrency={max_concurrency}")
    return num_workers
