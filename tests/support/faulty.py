"""Envs that break, each in its own way: small named classes. Kept light, for every worker imports this file."""

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
from collections.abc import Callable, Container
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

AGES = 600.0
"""Seconds that count as for ever."""


class Counter(gymnasium.Env):
    """Shows who it is and what was done to it, (id, episode, t, last action): a stale, lost or mixed-up row shows.

    The reward is t + id / 1000. Envs with an odd id have infos, {"t": t}, the others empty ones.
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
        """The fault in reset."""

    def on_step(self) -> None:
        """The fault in step."""


def counters(n: int, **bad: Callable[[int], Any]) -> list[Callable[[], Any]]:
    """`n` env_fns: counters, but for the envs named in `bad` (env1=RaisesOnStep)."""
    return [partial(bad.get(f"env{i}", Counter), i) for i in range(n)]


# It raises.


BOOM = "boom: 100 %d of {nothing}, %(x)s {0}"


def boom() -> Exception:
    return ValueError(BOOM)


class Chatty(Counter):
    """Returns infos and Text besides numbers: they travel beside the rows, and say of which step they are."""

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.observation_space = spaces.Dict(
            {"row": spaces.Box(-np.inf, np.inf, (4,), np.float64), "text": spaces.Text(20)}
        )

    def _told(self, obs: Any) -> Any:
        return {"row": np.resize(obs, 4).astype(np.float64), "text": f"{self.t}"}

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return self._told(obs), {**info, "at": self.t}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return self._told(obs), reward, terminated, truncated, {**info, "at": self.t, "name": f"{self.t}"}


class Does(Counter):
    """Calls `what` in step `at` of every episode."""

    def __init__(self, id: int, at: int, what: Callable[[], Any]) -> None:
        super().__init__(id)
        self.at, self.what = at, what

    def on_step(self) -> None:
        if self.t == self.at:
            self.what()


class RaisesOnStep(Does):
    def __init__(self, id: int, at: int = 2, error: Callable[[], BaseException] = boom) -> None:
        super().__init__(id, at, self.fail)
        self.error = error

    def fail(self) -> None:
        raise self.error()


class RaisesOnReset(Counter):
    """At the beginning of the episodes `at`, the first one is 1."""

    def __init__(self, id: int, at: Container[int]) -> None:
        super().__init__(id)
        self.at = at

    def on_reset(self) -> None:
        if self.episode in self.at:
            raise ValueError(f"no episode {self.episode}")


class RaisesInInit(Counter):
    def __init__(self, id: int, error: Callable[[], BaseException] = boom) -> None:
        raise error()


class RaisesElsewhere(Counter):
    """In close, in render, in a method, in a property, and when it is seeded."""

    def fail(self, *values: Any) -> Any:
        raise boom()

    close = render = method = seed = fail
    prop = property(fail, fail)


# It ends its process.


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


class DiesOnStep(Does):
    """Its process ends in step `at`, in one of the ways of `ENDS`."""

    def __init__(self, id: int, at: int = 2, end: str = "SIGKILL") -> None:
        super().__init__(id, at, lambda: ENDS[self.end]())
        self.end = end


class _BreaksOff:
    """A number that ends its process, or raises, when it is read: then what stands before it is written already."""

    def __init__(self, end: str | None) -> None:
        self.end = end

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        if self.end is not None:
            ENDS[self.end]()
        raise boom()


class BreaksOffItsRow(Counter):
    """In step `at` the row of env `broken` is written in part; `end`: its process ends then, else it raises."""

    observation_space = spaces.Dict({"first": Counter.observation_space, "second": spaces.Box(-1, 2**40, (), np.int64)})

    def __init__(self, id: int, broken: int = 1, at: int = 3, end: str | None = None) -> None:
        super().__init__(id)
        self.at, self.is_broken, self.end = at, id == broken, end

    def observe(self, action: Any) -> Any:
        second: Any = np.int64(self.t)
        if self.is_broken and self.t == self.at:
            second = _BreaksOff(self.end)
        return {"first": super().observe(action), "second": second}


class DiesOnReset(Counter):
    """Its process ends in its second reset; `always`: in the first one, so that no restart helps."""

    def __init__(self, id: int, always: bool = False) -> None:
        super().__init__(id)
        self.first = 1 if always else 2

    def on_reset(self) -> None:
        if self.episode >= self.first:
            ENDS["SIGKILL"]()


class DiesInInit(Counter):
    """Its process ends in the constructor; `flag`: only once this file exists."""

    def __init__(self, id: int, flag: str | None = None) -> None:
        super().__init__(id)
        if flag is None or os.path.exists(flag):
            os._exit(3)


class DiesElsewhere(Counter):
    """Its process ends in a method, in a property, and when it is seeded."""

    def die(self, *values: Any) -> Any:
        ENDS["SIGKILL"]()

    method = seed = die
    prop = property(die, die)


# It takes its time.


def hold_interpreter_lock() -> None:
    """Sleep in C without giving the lock back: no other Python thread of the process runs. Signals do not end it."""
    unwritten, _ = os.pipe()
    ctypes.PyDLL(None).read(unwritten, ctypes.create_string_buffer(1), 1)


def sleep_for_ages() -> None:
    time.sleep(AGES)


def HangsOnStep(id: int, at: int = 2, gil: bool = False, seen: str = "") -> Does:
    """In step `at` of every episode; the file `seen` appears first."""
    return Does(id, at, lambda: (seen and Path(seen).touch(), hold_interpreter_lock() if gil else sleep_for_ages()))


class HangsElsewhere(Counter):
    """In a method, and in the second reset."""

    def method(self) -> None:
        sleep_for_ages()

    def on_reset(self) -> None:
        if self.episode == 2:
            sleep_for_ages()


class HangsInInit(Counter):
    def __init__(self, id: int, gil: bool = False) -> None:
        hold_interpreter_lock() if gil else sleep_for_ages()


class SlowClose(Counter):
    """A minute and more."""

    def close(self) -> None:
        sleep_for_ages()


class TakesLong(Counter):
    """Each step takes `seconds`."""

    def __init__(self, id: int, seconds: float) -> None:
        super().__init__(id)
        self.seconds = seconds

    def on_step(self) -> None:
        time.sleep(self.seconds)


class LargeAction(Counter):
    """Actions of 1 MiB; the observation shows the first number of the last one."""

    action_space = spaces.Box(-128, 127, (1 << 20,), np.int8)

    def observe(self, action: Any) -> Any:
        return super().observe(action if np.ndim(action) == 0 else action[0])


def WaitsForFile(id: int, at: int, go: str) -> Does:
    """Step `at` lasts until the file `go` is there: the test decides when it ends."""

    def wait() -> None:
        while not os.path.exists(go):
            time.sleep(0.005)

    return Does(id, at, wait)


# It starts processes and threads.


class SpawnsChild(Counter):
    """Starts a program that runs for ages."""

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
    """Has each reward computed by a process of its own, and a thread running all the time."""

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
    """Its thread or pool still runs when it has closed."""

    def __init__(self, id: int, what: str) -> None:
        super().__init__(id)
        if what == "thread":
            threading.Thread(target=threading.Event().wait).start()
        else:
            self.pool = multiprocessing.get_context("fork").Pool(1)


class NoSpace(Counter):
    """Has no observation space, so that its observations travel as objects: (numbers, extra)."""

    observation_space = None
    action_space = None

    def observe(self, action: Any) -> Any:
        return {"numbers": super().observe(-1), "extra": None}
