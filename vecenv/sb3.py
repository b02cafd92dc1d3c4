"""`DummyVecEnv` and `SubprocVecEnv` with the arguments of Stable-Baselines3.

To use them, change the import: `from vecenv.sb3 import SubprocVecEnv`.

`AgentMonitor` and `AgentRolloutBuffer` are for batches of `vecenv.flatten_agents`, which have a row per agent.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from vecenv.facades.stepper import check_facade_options
from vecenv.facades.to_sb3 import SB3VecEnv
from vecenv.venvs import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv

try:
    from stable_baselines3.common.buffers import RolloutBuffer
    from stable_baselines3.common.type_aliases import RolloutBufferSamples
    from stable_baselines3.common.vec_env import VecEnv, VecMonitor
except ImportError as error:
    raise ImportError("SB3VecEnv needs Stable-Baselines3: pip install 'vecenv[sb3]'") from error


class AgentMonitor(VecMonitor):
    """SB3's `VecMonitor` for batches with a row per agent. A row counts as a step unless its info has `active` False.

    `venv`: any `VecEnv`, usually `SB3VecEnv(flatten_agents(env, own_episodes=True))`. Other arguments: see VecMonitor.
    """

    active: np.ndarray
    """Bool mask (num_envs,) of the rows whose agent acted in the last step."""

    def __init__(self, venv: VecEnv, filename: str | None = None, info_keywords: tuple[str, ...] = ()) -> None:
        super().__init__(venv, filename, info_keywords)
        self.active = np.ones(self.num_envs, dtype=np.bool_)

    def step_wait(self) -> Any:
        """Wait for the step and return it. Add `episode` to the infos of agents whose episode ended."""
        obs, rewards, dones, infos = self.venv.step_wait()
        infos = list(infos)
        self.active = np.array([bool(info.get("active", True)) for info in infos])
        self.episode_returns += rewards
        self.episode_lengths += self.active
        for i in dones.nonzero()[0].tolist():
            if self.episode_lengths[i]:
                infos[i] = {**infos[i], "episode": self._episode(i, infos[i])}
            self.episode_returns[i] = self.episode_lengths[i] = 0
        return obs, rewards, dones, infos

    def _episode(self, i: int, info: dict[str, Any]) -> dict[str, Any]:
        seconds = round(time.time() - self.t_start, 6)
        episode = {"r": self.episode_returns[i], "l": self.episode_lengths[i], "t": seconds}
        episode |= {key: info[key] for key in self.info_keywords}
        self.episode_count += 1
        if self.results_writer:
            self.results_writer.write_row(episode)
        return episode


class AgentRolloutBuffer(RolloutBuffer):
    """SB3's `RolloutBuffer` for PPO and A2C, without rows of agents that did not act.

        envs = AgentMonitor(SB3VecEnv(flatten_agents(env, own_episodes=True)))
        PPO("MlpPolicy", envs, rollout_buffer_class=AgentRolloutBuffer, rollout_buffer_kwargs={"monitor": envs})

    `monitor`: the AgentMonitor around the envs. Dict observations are not supported.
    """

    def __init__(self, *args: Any, monitor: AgentMonitor, **kwargs: Any) -> None:
        if not isinstance(monitor, AgentMonitor):
            raise TypeError(f"AgentRolloutBuffer takes the AgentMonitor around the envs as monitor=, got {monitor!r}")
        self._monitor = monitor
        super().__init__(*args, **kwargs)

    def reset(self) -> None:
        super().reset()
        self.active = np.zeros((self.buffer_size, self.n_envs), dtype=np.bool_)

    def add(self, *args: Any, **kwargs: Any) -> None:
        self.active[self.pos] = self._monitor.active
        super().add(*args, **kwargs)

    def get(self, batch_size: int | None = None) -> Iterator[RolloutBufferSamples]:  # type: ignore[override]
        """Yield random batches of rows whose agent acted."""
        if not self.generator_ready:
            next(super().get(1))  # flattens the arrays
        rows = np.random.permutation(np.flatnonzero(self.swap_and_flatten(self.active)))
        size = batch_size or len(rows)
        for start in range(0, len(rows), max(size, 1)):
            yield self._get_samples(rows[start : start + size])


__all__ = ["AgentMonitor", "AgentRolloutBuffer", "DummyVecEnv", "SubprocVecEnv"]

EnvFns = Sequence[Callable[[], Any] | str]


class _OwningVecEnv(SB3VecEnv):
    def _open(self, kind: Any, env_fns: EnvFns, options: dict[str, Any], **arguments: Any) -> None:
        context = "pass start_method to SubprocVecEnv, as in SB3"
        check_facade_options(type(self), kind, options, context=context)
        venv = kind(env_fns, **arguments, **options)
        try:
            super().__init__(venv)
        except BaseException:
            venv.close()
            raise


class DummyVecEnv(_OwningVecEnv):
    """SB3 `VecEnv` with all envs in this process, in place of SB3's `DummyVecEnv`.

    `options` are keywords of DummyVectorEnv. `envs` has the env objects. Raises ValueError if two env_fns return the
    same object.

    >>> import gymnasium as gym
    >>> env = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2)
    >>> env.reset().shape, env.get_attr("gravity")
    ((2, 4), [9.8, 9.8])
    >>> env.close()
    """

    def __init__(self, env_fns: EnvFns, **options: Any) -> None:
        self._open(DummyVectorEnv, env_fns, options)


class SubprocVecEnv(_OwningVecEnv):
    """SB3 `VecEnv` with envs in worker processes, in place of SB3's `SubprocVecEnv`.

    Arguments:
        start_method: "forkserver" (default), "fork" or "spawn". The script needs no `if __name__ == "__main__"`.
        shared_memory: False uses sockets (SubprocVectorEnv).
        options: keywords of ShmemVectorEnv, such as `num_workers`, `step_timeout` and `on_error="restart"`.

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
            multiprocessing.get_context(start_method)  # raises ValueError, as in SB3
        kind = ShmemVectorEnv if shared_memory else SubprocVectorEnv
        self._open(kind, env_fns, options, context=start_method)

    @property
    def processes(self) -> list[Any]:
        """Worker processes, each with one or more envs."""
        return self._stepper.processes
