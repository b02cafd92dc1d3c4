"""DummyVecEnv and SubprocVecEnv: the two vector envs of Stable-Baselines3, with the same names and arguments.

from vecenv.sb3 import SubprocVecEnv  # was: from stable_baselines3.common.vec_env import SubprocVecEnv

AgentMonitor and AgentRolloutBuffer are for the rows of `flatten_agents`.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

from vecenv.facades.driver import check_facade_options
from vecenv.facades.sb3_agents import AgentMonitor, AgentRolloutBuffer
from vecenv.facades.to_sb3 import SB3VecEnv
from vecenv.venvs import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv

__all__ = ["AgentMonitor", "AgentRolloutBuffer", "DummyVecEnv", "SubprocVecEnv"]

EnvFns = Sequence[Callable[[], Any] | str]


class _OwningVecEnv(SB3VecEnv):
    """Makes the vector env that it wraps."""

    def _open(self, kind: Any, env_fns: EnvFns, options: dict[str, Any], **arguments: Any) -> None:
        """Refuse arguments that do not apply before any env is made; close the envs if they do not fit SB3."""
        context = "SB3 calls it start_method, and only SubprocVecEnv has it"
        check_facade_options(type(self), kind, options, context=context)
        venv = kind(env_fns, **arguments, **options)
        try:
            super().__init__(venv)
        except BaseException:
            venv.close()
            raise


class DummyVecEnv(_OwningVecEnv):
    """All envs in this process, one after the other: SB3's `DummyVecEnv` with its argument.

    Keywords are the options of DummyVectorEnv, such as `on_error="restart"`. `envs` are the envs themselves. ValueError
    if two env_fns return the same env object.

    >>> import gymnasium as gym
    >>> env = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2)
    >>> env.reset().shape, env.get_attr("gravity")
    ((2, 4), [9.8, 9.8])
    >>> env.close()
    """

    def __init__(self, env_fns: EnvFns, **options: Any) -> None:
        self._open(DummyVectorEnv, env_fns, options)


class SubprocVecEnv(_OwningVecEnv):
    """Envs in worker processes: SB3's `SubprocVecEnv` with its arguments.

    Arguments:
        start_method: "forkserver" (None means it too), "fork" or "spawn". None of them needs an
            `if __name__ == "__main__"` guard.
        shared_memory: True for ShmemVectorEnv, False for SubprocVectorEnv, which exchanges arrays through sockets.

    A worker hosts a block of envs; by default there are as many workers as CPUs. Other keywords are the options of
    ShmemVectorEnv, such as `num_workers`, `step_timeout` and `on_error="restart"`.

    >>> import gymnasium as gym
    >>> env = SubprocVecEnv([lambda: gym.make("CartPole-v1")] * 4, num_workers=2)
    >>> obs = env.reset()
    >>> obs, rewards, dones, infos = env.step([0, 1, 1, 0])
    >>> rewards
    array([1., 1., 1., 1.], dtype=float32)
    >>> env.close()
    """

    def __init__(
        self, env_fns: EnvFns, start_method: str | None = None, *, shared_memory: bool = True, **options: Any
    ) -> None:
        if start_method is not None:
            multiprocessing.get_context(start_method)  # raises the same ValueError as SB3's class
        kind = ShmemVectorEnv if shared_memory else SubprocVectorEnv
        self._open(kind, env_fns, options, context=start_method)
