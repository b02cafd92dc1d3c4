"""Envs for the tests of tune and backend="auto". Workers import this module, so it imports little."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Draws(gymnasium.Env):
    """Env that draws observations from its own generator. Episodes have 7 steps; a step takes `work` seconds of CPU
    time and `sleep` seconds.
    """

    observation_space = spaces.Box(-9, 9, (3,), np.float64)
    thread_safe = True

    def __init__(self, work: float = 0.0, sleep: float = 0.0, slow_steps: int = 0) -> None:
        self.action_space = spaces.Discrete(3)
        self.work, self.sleep, self.slow_steps = work, sleep, slow_steps
        self.taken = self.total = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return self.np_random.uniform(-9, 9, 3), {}

    def step(self, action: Any) -> Any:
        self.taken, self.total = self.taken + 1, self.total + 1
        end = time.thread_time() + self.work
        while time.thread_time() < end:
            pass
        if sleep := 0.005 if self.total <= self.slow_steps else self.sleep:
            time.sleep(sleep)
        return self.np_random.uniform(-9, 9, 3), float(action), self.taken == 7, False, {}


class SlowlyReset(Draws):
    """Env that sleeps in each reset. Episodes have `length` steps."""

    def __init__(self, seconds: float, length: int) -> None:
        super().__init__()
        self.seconds, self.length = seconds, length

    def reset(self, **options: Any) -> Any:
        threading.Event().wait(self.seconds)
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, self.taken == self.length, False, {}


class Logged(Draws):
    """Env that appends a line with its process id to a file when it is created, and when it is closed."""

    def __init__(self, log: Path, **options: Any) -> None:
        super().__init__(**options)
        self.log = log
        self.note("made")

    def note(self, word: str) -> None:
        with self.log.open("a") as file:  # a single short write, so that lines of several processes do not mix
            file.write(f"{word} {os.getpid()}\n")

    def close(self) -> None:
        self.note("closed")


class NeverMade(Draws):
    def __init__(self) -> None:
        threading.Event().wait()


class ImportsForLong(Draws):
    """Env that once takes longer to create than a measurement may take."""

    def __init__(self) -> None:
        threading.Event().wait(1.5)
        super().__init__()


class CrashesWhenMade(Draws):
    def __init__(self) -> None:
        os._exit(7)


class RaisesOnStep(Draws):
    def step(self, action: Any) -> Any:
        raise OverflowError("the env broke")


class HangsOnStep(Draws):
    def step(self, action: Any) -> Any:
        threading.Event().wait()


class OnlyIn(Draws):
    """Env that can be created in one process only."""

    def __init__(self, pid: int) -> None:
        if os.getpid() != pid:
            raise RuntimeError("not made here")
        super().__init__()


def lock_holder(lock: Any) -> Draws:
    return Draws()
