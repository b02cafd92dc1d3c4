"""Env that leaks memory, and whose episodes follow from its random generator. Workers import this module."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Leaky(gymnasium.Env):
    """Env with episodes of 1 to 9 steps. Each episode allocates `leak` bytes, which are never freed."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(9)

    def __init__(self, leak: int = 0, fails_beside: str = "") -> None:
        if fails_beside and os.path.exists(fails_beside):
            raise RuntimeError("no second env")
        self.leak, self.leaked, self.pid = leak, [], os.getpid()
        self.level = 0
        self.t = self.length = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.leaked.append(bytearray(os.urandom(1) * self.leak))
        self.t, self.length = 0, int(self.np_random.integers(1, 10))
        return self._obs(), {"length": self.length}

    def step(self, action: Any) -> Any:
        self.t += 1
        is_over = self.t == self.length
        info = {"t": self.t} if self.t % 2 else {"t": self.t, "text": f"step {self.t}"}
        return self._obs(), float(self.np_random.random()), is_over, self.t == 9, info

    def _obs(self) -> np.ndarray:
        return np.array([self.t, self.level, self.np_random.random()])


def always(worker: Any) -> bool:
    """Replace each worker between its episodes: the value of `recycle_after`."""
    return True


def await_new_worker(venv: Any) -> None:
    """Wait until envs would move to a new worker in their next reset. On a busy machine, imports take long."""
    backend, deadline = venv.engine.backend, time.monotonic() + 60
    while not backend.moving:
        assert time.monotonic() < deadline, "no new worker has started"
        backend.recycle()
        time.sleep(1e-3)
