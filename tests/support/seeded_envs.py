"""Envs of the tests of seeded episodes. Workers import this module, so it does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.support.steps import Steps


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


class Masked(Steps):
    """Env that allows two of five actions in each step, and fails after any other action."""

    action_space = spaces.Discrete(5, start=2)
    length = 9

    def __init__(self, place: str) -> None:
        self._in_obs = place == "obs"
        plain = spaces.Box(0, 9, (1,))
        masked = spaces.Dict({"x": plain, "action_mask": spaces.MultiBinary(5)})
        self.observation_space = masked if self._in_obs else plain

    def pay(self, action: Any) -> float:
        if not self._mask[action - 2]:
            raise ValueError(f"{action} is not allowed")
        return 0.0

    def observe(self) -> Any:
        self._mask = np.zeros(5, np.int8)
        self._mask[self.np_random.choice(5, 2, replace=False)] = 1
        x = super().observe()
        return {"x": x, "action_mask": self._mask} if self._in_obs else x

    def tell(self) -> Any:
        return {} if self._in_obs else {"action_mask": self._mask.copy()}


class Told(Steps):
    """Env with infos that repeat the observation as `code` and allow one action, as `action_mask`. Other actions are
    errors.

    Observations are the number of the seed, or of the episode, and the number of the step. Episodes have `steps` steps.
    """

    action_space = spaces.Discrete(5, start=2)
    observation_space = spaces.Box(-1, 2**62, (2,), np.int64)

    def __init__(self, steps: int) -> None:
        self.length = steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode = self.episode if seed is None else seed - 1
        return super().reset(seed=seed)

    def pay(self, action: Any) -> float:
        assert action == self._allowed + 2
        return 0.0

    def observe(self) -> Any:
        self._allowed = (self.episode + self.taken) % 5
        return np.array([self.episode, self.taken])

    def tell(self) -> Any:
        mask = (np.arange(5) == self._allowed).astype(np.int8)
        return {"code": np.array([self.episode, self.taken]), "action_mask": mask, "first": self.taken == 0}
