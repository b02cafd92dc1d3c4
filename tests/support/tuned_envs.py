"""Envs for the tests of tune and backend="auto". Workers import this module, so it imports little."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from tests.support.checked_envs import Calm


class Draws(Calm):
    """Env whose step takes `work` seconds of CPU time and `sleep` seconds."""

    observation_space = spaces.Box(-9, 9, (3,), np.float64)
    thread_safe = True

    def __init__(self, work: float = 0.0, sleep: float = 0.0) -> None:
        super().__init__()
        self.work, self.sleep = work, sleep

    def observe(self) -> Any:
        return self.np_random.uniform(-9, 9, 3)

    def pay(self, action: Any) -> float:
        end = time.thread_time() + self.work
        while time.thread_time() < end:
            pass
        if self.sleep:
            time.sleep(self.sleep)
        return super().pay(action)


class Logged(Draws):
    """Env that appends a line with its process id to a file when it is created, and when it is closed."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = log
        self.note("made")

    def note(self, word: str) -> None:
        with self.log.open("a") as file:  # a single short write, so that lines of several processes do not mix
            file.write(f"{word} {os.getpid()}\n")

    def close(self) -> None:
        self.note("closed")


class OnlyIn(Draws):
    """Env that can be created in one process only."""

    def __init__(self, pid: int) -> None:
        if os.getpid() != pid:
            raise RuntimeError("not made here")
        super().__init__()


class Fails(Draws):
    """Env with a constructor or a step that fails."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        if how == "is never made":
            threading.Event().wait()
        elif how == "imports for long":  # longer than a measurement may take
            time.sleep(1.5)
        elif how == "crashes":
            os._exit(7)

    def step(self, action: Any) -> Any:
        if self.how == "raises":
            raise OverflowError("the env broke")
        if self.how == "hangs":
            threading.Event().wait()
        return super().step(action)


def lock_holder(lock: Any) -> Draws:
    return Draws()
