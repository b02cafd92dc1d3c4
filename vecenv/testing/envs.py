"""Envs for tests: one whose observations say who and when they are, and small ones that misbehave in one way each."""

from __future__ import annotations

import os
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class CountingEnv(gymnasium.Env):
    """Every observation names its env, episode, time, seed and last action: a row that is lost, stale or swapped shows.

    `form` is how the five integers are observed: "array" is one int64 array, "dict" a Dict with a Tuple in it, "object"
    a Sequence, which has no fixed shape. The reward is `env_id + t / 1024`, exact in float32. Even episodes end by
    termination after `length` steps, odd ones by truncation. With `infos`, every second step has an info.
    `reset(options={"t": 3})` begins at t = 3.

    The model of an env in a worker is the same class in the test.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, env_id: int = 0, length: int = 5, form: str = "array", infos: bool = True) -> None:
        self.env_id, self.length, self.form, self.infos = env_id, length, form, infos
        self.action_space = spaces.Discrete(100)
        self.observation_space = self._space()
        self.render_mode = "rgb_array"
        self.episode = self.seeded = self.action = -1
        self.t = 0
        self.calls = 0
        """The number of calls of `reset` and `step`."""
        self.own_info: dict[str, Any] = {}
        """The info that was returned last: the very object."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.calls += 1
        self.episode, self.t, self.action = self.episode + 1, (options or {}).get("t", 0), -1
        if seed is not None:
            self.seeded = seed
        self.own_info = {"episode": self.episode} if self.infos else {}
        return self._observation(), self.own_info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.calls += 1
        self.t, self.action = self.t + 1, int(action)
        over = self.t >= self.length
        terminated, truncated = over and self.episode % 2 == 0, over and self.episode % 2 == 1
        self.own_info = {"t": self.t} if self.infos and self.t % 2 else {}
        return self._observation(), self.env_id + self.t / 1024, terminated, truncated, self.own_info

    def render(self) -> np.ndarray:
        """A frame of one colour, the env's id."""
        return np.full((2, 3, 3), self.env_id, dtype=np.uint8)

    def _space(self) -> spaces.Space[Any]:
        far = 2**40
        if self.form == "array":
            return spaces.Box(-far, far, (5,), np.int64)
        if self.form == "dict":
            numbers, picture = spaces.Box(-far, far, (4,), np.int64), spaces.Box(-1, 1, (2, 3), np.float32)
            when: spaces.Space[Any] = spaces.Tuple((numbers, picture))
            return spaces.Dict({"who": spaces.Discrete(1000), "when": when})
        if self.form == "object":
            return spaces.Sequence(spaces.Discrete(2 * far, start=-far))
        raise ValueError(f'form must be "array", "dict" or "object", got {self.form!r}')

    def _observation(self) -> Any:
        now = (self.env_id, self.episode, self.t, self.seeded, self.action)
        if self.form == "array":
            return np.array(now)
        if self.form == "object":
            return now
        return {"who": np.int64(self.env_id), "when": (np.array(now[1:]), np.full((2, 3), self.t / 128, np.float32))}


class RaisesInConstructor(CountingEnv):
    """Cannot be made: ValueError("boom in __init__")."""

    def __init__(self, env_id: int = 0, **options: Any) -> None:
        raise ValueError("boom in __init__")


class _Misbehaves(CountingEnv):
    """Misbehaves in the step that would be number `at` of an episode, or in the reset that begins episode `at`."""

    where = "step"

    def __init__(self, env_id: int = 0, at: int = 1, **options: Any) -> None:
        super().__init__(env_id, **options)
        self.at = at

    def misbehave(self) -> None:
        raise ValueError(f"boom in {self.where}")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.where == "step" and self.t + 1 == self.at:
            self.misbehave()
        return super().step(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.where == "reset" and self.episode + 1 == self.at:
            self.misbehave()
        return super().reset(seed=seed, options=options)


class RaisesOnStep(_Misbehaves):
    """ValueError("boom in step") in step `at` of an episode."""


class RaisesOnReset(_Misbehaves):
    """ValueError("boom in reset") in the reset that begins episode `at`, and in every later one."""

    where = "reset"


class ExitsOnStep(_Misbehaves):
    """Ends its process in step `at` of an episode, as a crash in native code would. Not for the test's own process."""

    def misbehave(self) -> None:
        os._exit(7)


class ExitsOnReset(ExitsOnStep):
    """Ends its process in the reset that begins episode `at`. Not for the test's own process."""

    where = "reset"


class HangsOnStep(_Misbehaves):
    """Never returns from step `at` of an episode."""

    def misbehave(self) -> None:
        threading.Event().wait()
