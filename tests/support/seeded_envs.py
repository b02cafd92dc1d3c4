"""Envs of the tests of seeded episodes. Workers import this module, so it does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Failing(gymnasium.Wrapper):
    """Env that fails in the fourth step after the first reset with one of these seeds."""

    def __init__(self, seeds: set[int | None], path: Path, env_fn: Callable[[], gymnasium.Env]) -> None:
        super().__init__(env_fn())
        self._seeds, self._path = seeds, path

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._seed, self._steps = seed, 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == 4 and self._seed in self._seeds and not (self._path / str(self._seed)).exists():
            (self._path / str(self._seed)).touch()
            raise RuntimeError("failed")
        return super().step(action)


class Masked(gymnasium.Env):
    """Env that allows two of five actions in each step, and fails after any other action."""

    action_space = spaces.Discrete(5, start=2)

    def __init__(self, place: str) -> None:
        self._place = place
        plain = spaces.Box(0, 9, (1,))
        self.observation_space = (
            spaces.Dict({"x": plain, "action_mask": spaces.MultiBinary(5)}) if place == "obs" else plain
        )

    def _returned(self) -> Any:
        self._mask = np.zeros(5, np.int8)
        self._mask[self.np_random.choice(5, 2, replace=False)] = 1
        x = np.full(1, self._steps, np.float32)
        if self._place == "obs":
            return {"x": x, "action_mask": self._mask}, {}
        return x, {"action_mask": self._mask.copy()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._returned()

    def step(self, action: Any) -> Any:
        if not self._mask[action - 2]:
            raise ValueError(f"{action} is not allowed")
        self._steps += 1
        obs, info = self._returned()
        return obs, 0.0, self._steps == 9, False, info


class Told(gymnasium.Env):
    """Env with infos that repeat the observation as `code` and allow one action, as `action_mask`. Other actions are
    errors.

    Observations are the number of the seed, or of the episode, and the number of the step. Episodes have `steps` steps.
    """

    action_space = spaces.Discrete(5, start=2)
    observation_space = spaces.Box(-1, 2**62, (2,), np.int64)

    def __init__(self, steps: int) -> None:
        self._length, self._episode = steps, -1

    def _returned(self) -> Any:
        self._allowed = (self._episode + self._steps) % 5
        mask = np.zeros(5, np.int8)
        mask[self._allowed] = 1
        obs = np.array([self._episode, self._steps])
        return obs, {"code": obs.copy(), "action_mask": mask, "first": self._steps == 0}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._episode, self._steps = self._episode + 1 if seed is None else seed, 0
        return self._returned()

    def step(self, action: Any) -> Any:
        assert action == self._allowed + 2
        self._steps += 1
        obs, info = self._returned()
        return obs, 0.0, self._steps == self._length, False, info
