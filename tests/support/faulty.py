"""Small env classes that fail in known ways. Imports are few, because every worker imports this module."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

AGES = 600.0
"""Seconds of a hang: longer than any test waits."""


class Counter(gymnasium.Env):
    """Env with the observation (id, episode, t, last action), so that a test sees stale, lost and swapped rows.

    The reward is t + id / 1000. Envs with an odd id return the info {"t": t}, envs with an even id an empty info.
    """

    observation_space: Any = spaces.Box(-1, 2**40, (4,), np.int64)
    action_space: Any = spaces.Discrete(2**30)

    def __init__(self, id: int) -> None:
        self.id, self.episode, self.t = id, 0, 0
        self.pid = os.getpid()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        self.on_reset()
        return self.observe(-1), self.info()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.t += 1
        self.on_step()
        return self.observe(action), self.t + self.id / 1000, False, False, self.info()

    def observe(self, action: Any) -> Any:
        return np.array([self.id, self.episode, self.t, action], np.int64)

    def info(self) -> dict[str, Any]:
        return {"t": self.t} if self.id % 2 else {}

    def on_reset(self) -> None:
        """Subclasses fail here in reset."""

    def on_step(self) -> None:
        """Subclasses fail here in step."""


def counters(n: int, **bad: Callable[[int], Any]) -> list[Callable[[], Any]]:
    """Return `n` env_fns of `Counter`. `bad` replaces the class of some envs: env1=RaisesOnStep."""
    return [partial(bad.get(f"env{i}", Counter), i) for i in range(n)]


# Envs that raise.


BOOM = "boom: 100 %d of {nothing}, %(x)s {0}"


def boom() -> Exception:
    return ValueError(BOOM)


class Does(Counter):
    """Env that calls `what` in step `at` of every episode, or in each step if `at` is 0."""

    def __init__(self, id: int, at: int, what: Callable[[], Any]) -> None:
        super().__init__(id)
        self.at, self.what = at, what

    def on_step(self) -> None:
        if self.at in (0, self.t):
            self.what()


class RaisesOnStep(Does):
    def __init__(self, id: int, at: int = 2, error: Callable[[], BaseException] = boom) -> None:
        super().__init__(id, at, self.fail)
        self.error = error

    def fail(self) -> None:
        raise self.error()


class RaisesInInit(Counter):
    def __init__(self, id: int, error: Callable[[], BaseException] = boom) -> None:
        raise error()


# Envs that end their process.


def _bus_error() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        page[0]


def _abort() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


ENDS: dict[str, Callable[[], None]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGSEGV": lambda: faulthandler._sigsegv(),  # type: ignore[attr-defined]
    "SIGBUS": _bus_error,
    "SIGABRT": _abort,
    "signal 40": lambda: os.kill(os.getpid(), 40),  # a real-time signal
    "code 0": lambda: os._exit(0),
    "code 3": lambda: os._exit(3),
    "code 255": lambda: os._exit(255),
}


class _BreaksOff:
    """A number that raises or ends its process when it is read. Earlier parts of the row are then already written."""

    def __init__(self, end: str | None) -> None:
        self.end = end

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        if self.end is not None:
            ENDS[self.end]()
        raise boom()


class BreaksOffItsRow(Counter):
    """Fails in step `at` when the row of env `broken` is half written. `end`: a key of `ENDS`; None raises."""

    observation_space = spaces.Dict({"first": Counter.observation_space, "second": spaces.Box(-1, 2**40, (), np.int64)})

    def __init__(self, id: int, broken: int = 1, at: int = 3, end: str | None = None) -> None:
        super().__init__(id)
        self.at, self.is_broken, self.end = at, id == broken, end

    def observe(self, action: Any) -> Any:
        second: Any = np.int64(self.t)
        if self.is_broken and self.t == self.at:
            second = _BreaksOff(self.end)
        return {"first": super().observe(action), "second": second}


# Envs that hang or are slow.


def hold_interpreter_lock() -> None:
    """Sleep in C with the interpreter lock held, so that no Python thread runs. Signals do not end the sleep."""
    unwritten, _ = os.pipe()
    ctypes.PyDLL(None).read(unwritten, ctypes.create_string_buffer(1), 1)


def sleep_for_ages() -> None:
    time.sleep(AGES)


def HangsOnStep(id: int, at: int = 2, gil: bool = False, seen: str = "") -> Does:
    """Hang in step `at` of every episode. The file `seen` is created first."""
    return Does(id, at, lambda: (seen and Path(seen).touch(), hold_interpreter_lock() if gil else sleep_for_ages()))


class HangsElsewhere(Counter):
    """Hangs in a method and in the second reset."""

    def method(self) -> None:
        sleep_for_ages()

    def on_reset(self) -> None:
        if self.episode == 2:
            sleep_for_ages()


def TakesLong(id: int, seconds: float) -> Does:
    """Return an env whose steps take `seconds`."""
    return Does(id, 0, partial(time.sleep, seconds))


class LargeAction(Counter):
    """Takes actions of 1 MiB. The observation has the first number of the last action."""

    action_space = spaces.Box(-128, 127, (1 << 20,), np.int8)

    def observe(self, action: Any) -> Any:
        return super().observe(action if np.ndim(action) == 0 else action[0])


class InterruptsParent(Counter):
    """Env that sends Ctrl-C to the parent at a place, "init", "step" (the second) or "close", and hangs if `hangs`."""

    def __init__(self, id: int, place: str = "step", parent: int = 0, hangs: bool = True) -> None:
        super().__init__(id)
        self.place, self.parent, self.hangs = place, parent, hangs
        self.arrive("init")

    def arrive(self, place: str) -> None:
        if self.place == place and self.parent:
            os.kill(self.parent, signal.SIGINT)
            while self.hangs:
                time.sleep(1)

    def on_step(self) -> None:
        if self.t == 2:
            self.arrive("step")

    def close(self) -> None:
        self.arrive("close")


# Envs that start processes and threads.


class SpawnsChild(Counter):
    """Starts a program that runs longer than any test."""

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({AGES})"]).pid


def SpawnsChildAndHangs(id: int, at: int = 2, gil: bool = False, seen: str = "") -> Counter:
    env: Any = HangsOnStep(id, at, gil, seen)
    env.child = SpawnsChild(id).child
    return env


def _square(number: int, pipe: Any) -> None:
    pipe.send(number * number)


class UsesMultiprocessing(Counter):
    """Computes each reward in a new process, and keeps a thread running."""

    def __init__(self, id: int, method: str) -> None:
        super().__init__(id)
        self.context = multiprocessing.get_context(method)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.stop.wait)
        self.thread.start()

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        ours, theirs = self.context.Pipe()
        child = self.context.Process(target=_square, args=(int(action), theirs))
        child.start()
        reward = ours.recv()
        child.join()
        return obs, float(reward), terminated, truncated, info

    def close(self) -> None:
        self.stop.set()
        self.thread.join()


class LeavesRunning(Counter):
    """Leaves a thread or a pool running after close."""

    def __init__(self, id: int, what: str) -> None:
        super().__init__(id)
        if what == "thread":
            threading.Thread(target=threading.Event().wait).start()
        else:
            self.pool = multiprocessing.get_context("fork").Pool(1)
