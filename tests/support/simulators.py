"""A simulator that steps n envs in one call, in numpy, torch or JAX, and the same env alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from vecenv import from_gymnasium
from vecenv.testing import CountingEnv

N = 4
OBS = spaces.Box(-100, 100, (3,), np.float32)
ACTION = spaces.Box(-1, 1, (2,), np.float32)


class Alone(gym.Env):
    """Env i of a `Simulator`. Its episode has 2 + i steps, and is truncated if i is odd."""

    observation_space, action_space = OBS, ACTION

    def __init__(self, i: int, more: bool = False) -> None:
        self.i, self.more, self.t, self.episode = i, more, 0, -1

    def _result(self) -> Any:
        obs = np.array([self.i, self.t, self.episode], np.float32)
        info: dict[str, Any] = {"speed": np.float32(self.t * 0.5), "goal": np.array([self.i, self.episode], np.int64)}
        if self.more:
            info |= {"episode": {"l": np.int64(self.t)}, "name": f"env {self.i}", "size": 1.5, "log": {"loss": 0.5}}
            info |= {"lap": np.int64(self.t)} if self.i % 2 else {}
        return obs, info

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t, self.episode = 0, self.episode + 1
        return self._result()

    def step(self, action: Any) -> Any:
        self.t += 1
        obs, info = self._result()
        over = self.t == 2 + self.i
        return obs, float(np.float32(action[0]) + self.t), over and self.i % 2 == 0, over and self.i % 2 == 1, info


class Simulator(VectorEnv):
    """Simulator of n envs in the array library `xp`. It writes into the same buffers in each step.

    final: where the last observation is: "masked" or "whole" rows of `final_obs`, "old" (the key of gymnasium 0.29, in
    each step, and no `final_info`), or "lost". With "next", it is the result of the step, and the next step resets the
    env (NEXT_STEP mode). wide: rewards and flags have the shape (n, 1). more: infos have a
    dict, a list, a value for all envs, and a column with a mask.
    """

    def __init__(
        self,
        xp: Any,
        n: int = N,
        final: str = "masked",
        wide: bool = False,
        device: Any = None,
        more: bool = False,
    ) -> None:
        self.xp, self.num_envs, self.final, self.wide, self.more = xp, n, final, wide, more
        self.on = {} if device is None else {"device": device}
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP if final == "next" else AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = OBS, ACTION
        self.observation_space, self.action_space = batch_space(OBS, n), batch_space(ACTION, n)
        self.buffers: dict[str, Any] = {}
        self.actions: Any = None
        self.t, self.episode, self.over = np.zeros(n), np.full(n, -1.0), np.zeros(n, np.bool_)

    def _returned(self, name: str, values: np.ndarray) -> Any:
        """Return the values in the buffer of this name. JAX has no buffers."""
        if self.xp is np:
            buffer = self.buffers.setdefault(name, np.empty_like(values))
            buffer[...] = values
        elif hasattr(self.xp, "Tensor"):
            new = self.xp.as_tensor(values).to(**self.on) if self.on else self.xp.as_tensor(values)
            buffer = self.buffers.setdefault(name, self.xp.empty_like(new))
            buffer.copy_(new)
        else:
            buffer = self.xp.asarray(values)
        return buffer

    def _obs(self, name: str) -> Any:
        return self._returned(name, np.stack([np.arange(self.num_envs), self.t, self.episode], 1).astype(np.float32))

    def _infos(self, name: str) -> dict[str, Any]:
        goal = np.stack([np.arange(self.num_envs), self.episode], 1).astype(np.int64)
        infos: dict[str, Any] = {
            "speed": self._returned(f"{name}speed", (self.t * 0.5).astype(np.float32)),
            "goal": self._returned(f"{name}goal", goal),
        }
        if self.more:
            infos["episode"] = {"l": self._returned(f"{name}length", self.t.astype(np.int64))}
            infos |= {"name": [f"env {i}" for i in range(self.num_envs)], "size": 1.5, "log": {"loss": 0.5}}
            infos["lap"] = self._returned(f"{name}lap", self.t.astype(np.int64))
            infos["_lap"] = self._returned("odd", np.arange(self.num_envs) % 2 == 1)
        return infos

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t[:], self.episode, self.over = 0, self.episode + 1, np.zeros(self.num_envs, np.bool_)
        return self._obs("obs"), self._infos("")

    def step(self, actions: Any) -> Any:
        self.actions, n = actions, self.num_envs
        self.t += 1
        first = np.asarray(actions.cpu() if hasattr(actions, "cpu") else actions)[:, 0]
        self.t[self.over], self.episode[self.over] = 0, self.episode[self.over] + 1
        reward = np.where(self.over, 0, first + self.t).astype(np.float32)
        over = self.t == 2 + np.arange(n)
        odd = np.arange(n) % 2 == 1
        shape = (n, 1) if self.wide else (n,)
        outcome = [
            self._returned(name, values.reshape(shape))
            for name, values in (("reward", reward), ("terminated", over & ~odd), ("truncated", over & odd))
        ]
        if self.final == "next":
            self.over = over
            return self._obs("obs"), *outcome, self._infos("")
        last, last_info = self._obs("last"), self._infos("last")
        self.t[over], self.episode[over] = 0, self.episode[over] + 1
        infos = self._infos("")
        mask = self._returned("mask", over)
        if self.final == "old":
            infos["final_observation"] = last
        elif self.final != "lost" and over.any():
            infos |= {"final_obs": last, "final_info": last_info}
            if self.final == "masked":
                infos |= {"_final_obs": mask, "_final_info": mask}
        return self._obs("obs"), *outcome, infos


def actions(t: int) -> np.ndarray:
    """Return the actions of step t for N envs of a simulator."""
    return np.linspace(-1, 1, 2 * N, dtype=np.float32).reshape(N, 2) / (1 + t)


def played(venv: Any, autoreset: bool) -> list[Any]:
    """Return the results of a reset and of twelve steps. Without `autoreset`, resets of ended envs follow."""
    log: list[Any] = [venv.reset()]
    for t in range(12):
        log.append(venv.step(actions(t), autoreset=autoreset))
        done = np.asarray(log[-1][2] | log[-1][3])
        if done.any() and not autoreset:
            log.append(venv.reset(np.flatnonzero(done)))
    return log


def counting() -> list[Any]:
    return [partial(CountingEnv, i, length=3 + i) for i in range(N)]


def native(mode: str, **options: Any) -> Any:
    """Return `from_gymnasium` around a SyncVectorEnv of counting envs in this mode."""
    return from_gymnasium(SyncVectorEnv(counting(), autoreset_mode=mode), **options)


def cartpoles(n: int = 3) -> VectorEnv:
    """Return CartPoles in numpy, which are reset in the next step only."""
    return gym.make_vec("CartPole-v1", n, vectorization_mode="vector_entry_point")


class Odd(VectorEnv):
    """VectorEnv of two envs that returns values from its arguments, and rewards for three agents."""

    def __init__(self, obs: Any, over: bool = False, mode: Any = AutoresetMode.SAME_STEP) -> None:
        self.num_envs, self.obs, self.over = 2, obs, over
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.single_observation_space: Any = spaces.Box(0, 9, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.closed_with: Any = None

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        return self.obs, np.ones((2, 3)), np.array([self.over, False]), np.zeros(2, np.bool_), {}

    def close(self, **kwargs: Any) -> None:
        self.closed_with = kwargs


class Wrong(gym.vector.VectorWrapper):
    """Simulator with another result in step 2. `value` replaces a result, or updates the infos."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(Simulator(np))
        self.name, self.value, self.t = name, value, 0

    def step(self, actions: Any) -> Any:
        self.t += 1
        result = dict(zip(("obs", "reward", "terminated", "truncated", "infos"), self.env.step(actions), strict=True))
        result["infos"]["lap"], result["infos"]["_lap"] = np.zeros(N, np.int64), np.ones(N, np.bool_)
        if self.t == 2:
            result[self.name] = {**result["infos"], **self.value} if isinstance(self.value, dict) else self.value
        return tuple(result.values())
