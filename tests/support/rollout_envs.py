"""Envs of the tests of rollout actors, in a module that actors import."""

from __future__ import annotations

import itertools
import os
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.support.countdown import Countdown
from vecenv import BaseVectorEnv, DummyVectorEnv
from vecenv.testing import GateEnv

_numbers = itertools.count()


class Signed(gymnasium.Wrapper):
    """Env with unique observations: (pid, number of the env in its process, steps before). Each step appends a byte to
    a file.
    """

    def __init__(self, env: gymnasium.Env, ledger: str) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0, 2**62, (3,), np.int64)
        self._ledger, self._number, self._taken = ledger, next(_numbers), 0

    def reset(self, **kwargs: Any) -> Any:
        self.env.reset(**kwargs)
        return self._sign(), {}

    def step(self, action: Any) -> Any:
        _, reward, terminated, truncated, _ = self.env.step(action)
        with Path(self._ledger).open("ab") as file:
            file.write(b".")
        self._taken += 1
        return self._sign(), reward, terminated, truncated, {}

    def _sign(self) -> np.ndarray:
        return np.array([os.getpid(), self._number, self._taken])


def signed(ledger: str, lengths: tuple[int, ...] = (3, 5)) -> BaseVectorEnv:
    return DummyVectorEnv([partial(lambda length: Signed(Countdown(length), ledger), length) for length in lengths])


def gated(ledger: str, folder: str, gate: int) -> BaseVectorEnv:
    """Return a vector env with one env, which steps only when a gate opens."""
    return DummyVectorEnv([lambda: Signed(GateEnv(folder, gate, ops=("step",)), ledger)])
