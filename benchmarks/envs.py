"""Envs of the benchmarks, and their descriptions for other processes.

An `EnvSpec` is a small picklable value. `EnvSpec.env_fns(n)` returns the n env functions that every contender gets.
Work is a number of loop iterations, not a wall time, so an env that is preempted takes longer, like a real simulator.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

EnvFn = Callable[[], "gym.Env[Any, Any]"]

EPISODE_STEPS = 500
SLEEP_SECONDS = 0.005
PIXEL_SHAPE = (4, 84, 84)
ACTION_ROWS = 256  # rows of actions drawn before; longer runs start again at the first row


@dataclass(frozen=True)
class EnvSpec:
    """Kind of env (`cartpole`, `busy`, `pixels` or `sleep`), and the work per step."""

    kind: str
    iterations: int = 0

    def env_fns(self, count: int) -> list[EnvFn]:
        """Return `count` env functions. The position of an env is its seed, so all runs are equal."""
        return [partial(make_env, self, index) for index in range(count)]


def make_env(spec: EnvSpec, index: int) -> gym.Env[Any, Any]:
    if spec.kind == "cartpole":
        return gym.make("CartPole-v1")
    if spec.kind == "busy":
        return BusyEnv(spec.iterations, index)
    if spec.kind == "pixels":
        return PixelEnv(spec.iterations, index)
    if spec.kind == "sleep":
        return SleepEnv(index)
    raise ValueError(f"unknown environment {spec.kind!r}; expected cartpole, busy, pixels or sleep")


def draw_actions(count: int, seed: int = 0) -> np.ndarray:
    """Draw actions for `count` envs before the clock starts: shape (ACTION_ROWS, count)."""
    return np.random.default_rng(seed).integers(0, 2, size=(ACTION_ROWS, count), dtype=np.int64)


def burn(iterations: int) -> int:
    """Do a fixed amount of work in the interpreter that uses almost no memory."""
    total = 0
    for i in range(iterations):
        total += i & 7
    return total


def calibrate(seconds: float = 100e-6, repeats: int = 25) -> int:
    """Return the number of iterations of `burn` that take `seconds` of CPU time on this machine if undisturbed.

    The fastest of many short runs counts, because a disturbance only adds time. Call this once per benchmark, and pass
    the number to every process, so that all processes do the same work.
    """
    trial, calls = 2000, 50  # as long as a step of the benchmark, because adding larger integers takes longer
    fastest = float("inf")
    for _ in range(repeats):
        start = time.thread_time()
        for _ in range(calls):
            burn(trial)
        fastest = min(fastest, time.thread_time() - start)
    return max(1, round(trial * calls * seconds / fastest))


class _TimedEnv(gym.Env[Any, Any]):
    """Base of the synthetic envs: two actions, and episodes that end at different times."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, index: int) -> None:
        self.action_space = spaces.Discrete(2)
        self.observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (4,), np.float32)
        # The first episode of each env is shortened differently, so that ends do not coincide.
        self._left = 1 + (index * 67) % EPISODE_STEPS
        self._rows: list[np.ndarray] = [np.full(4, value, np.float32) for value in (0.0, 0.25, 0.5, 1.0)]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._rows[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._work()
        self._left -= 1
        ended = self._left == 0
        if ended:
            self._left = EPISODE_STEPS
        return self._rows[self._left & 3], 1.0, False, ended, {}

    def _work(self) -> None:
        raise NotImplementedError


class BusyEnv(_TimedEnv):
    """Env whose step is a calibrated loop. The observation is four floats."""

    def __init__(self, iterations: int, index: int = 0) -> None:
        super().__init__(index)
        self._iterations = iterations

    def _work(self) -> None:
        burn(self._iterations)


class PixelEnv(BusyEnv):
    """`BusyEnv` with (4, 84, 84) uint8 frames that were drawn before: 28 KB per step."""

    def __init__(self, iterations: int, index: int = 0) -> None:
        super().__init__(iterations, index)
        self.observation_space = spaces.Box(0, 255, PIXEL_SHAPE, np.uint8)
        rng = np.random.default_rng(index)
        self._rows = [rng.integers(0, 256, PIXEL_SHAPE, dtype=np.uint8) for _ in range(4)]


class SleepEnv(_TimedEnv):
    """Env whose step sleeps for 5 ms +- 50 %, like an env that waits for something outside Python."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self._pause = np.random.default_rng(index)

    def _work(self) -> None:
        time.sleep(SLEEP_SECONDS * self._pause.uniform(0.5, 1.5))


gym.register("Busy-v0", entry_point="benchmarks.envs:BusyEnv")  # gym.make("benchmarks.envs:Busy-v0", iterations=...)
