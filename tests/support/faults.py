"""`Faulty`: env with one fault at one place, for the table of faults. Workers import this module."""

from __future__ import annotations

import os
import sys
import time
from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from tests.support import oddities
from tests.support.faulty import ENDS, Counter, boom, hold_interpreter_lock
from tests.support.oddities import Unpicklable
from vecenv import EnvContractError

EXCEPTIONS: dict[str, Callable[[], BaseException]] = {
    "raise": boom,
    "unpicklable error": partial(oddities.HoldsLock, "held"),
    "KeyError": partial(KeyError, "missing\nkey"),
    "UnicodeDecodeError": oddities.decode_error,
    "StopIteration": partial(StopIteration, 5),
    "FileNotFoundError": partial(FileNotFoundError, 2, "No such", "f"),
    "OSError": OSError,
    "EnvContractError": EnvContractError,
    "Local": oddities.local_class,
    "KeywordOnly": partial(oddities.KeywordOnly, what="w"),
    "RaisesWhenRebuilt": partial(oddities.RaisesWhenRebuilt, "x"),
    "BufferError": partial(BufferError, "y" * (10 << 20)),
    "NoAttributes": partial(oddities.NoAttributes, "bare"),
    "OwnBase": partial(oddities.OwnBase, "base"),
    "KeyboardInterrupt": partial(KeyboardInterrupt, "basic"),
    "CancelledError": partial(CancelledError, "base"),
    "StopAsyncIteration": StopAsyncIteration,
}
FAULTS: dict[str, Callable[[], Any]] = {
    **ENDS,
    "sys.exit": lambda: sys.exit("out"),
    "exit": ENDS["code 3"],
    "hang in C": hold_interpreter_lock,
    "too much memory": lambda: bytearray(1 << 62),
    "closed descriptors": lambda: os.closerange(3, 1000),
}


RESULTS: dict[str, Callable[[], Any]] = {
    "unpicklable result": Unpicklable,
    "pickle raises": oddities.RaisesAtPickle,
    "pickle exits": oddities.ExitsAtPickle,
    "unpickle raises": oddities.RaisesAtUnpickle,
    "unpickle exits": oddities.ExitsAtUnpickle,
}
"""Makers of objects that cannot be sent: values of infos, results of methods, attributes."""
RECEIVED = {f"gets {name}": make for name, make in RESULTS.items()}
"""Makers of objects that cannot be read in a worker: options of a reset, and objects that an env_fn holds."""


class Faulty(Counter):
    """Env whose `trap`, such as "step: raise", says what happens once, at the next use of this place.

    With a path `flag`, the trap waits until this file exists, and removes the file. A hang in Python ends when the file
    `go` exists, because a thread cannot be killed. Episodes have `length` steps (0: no end).
    """

    def __init__(self, id: int, go: str = "", trap: str = "", flag: str = "", length: int = 0) -> None:
        super().__init__(id)
        self.go, self.trap, self.flag, self.length, self.sprung = go, trap, flag, length, ""
        self.spring("construct")
        if self.sprung == "unpicklable result":
            self.metadata = {"odd": Unpicklable()}

    def spring(self, place: str) -> None:
        wanted, _, fault = self.trap.partition(": ")
        self.sprung = fault if wanted == place and self.takes_flag() else ""
        if self.sprung:
            self.trap = ""
        while self.sprung == "hang in Python" and not os.path.exists(self.go):
            time.sleep(0.005)
        if self.sprung in EXCEPTIONS:
            raise EXCEPTIONS[self.sprung]()
        if self.sprung in FAULTS:
            FAULTS[self.sprung]()

    def takes_flag(self) -> bool:
        if not self.flag:
            return True
        with suppress(FileNotFoundError):
            os.unlink(self.flag)
            return True
        return False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.options = options
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, self.t == self.length, truncated, info

    def on_step(self) -> None:
        self.spring("step")

    def on_reset(self) -> None:
        self.spring("reset")

    def observe(self, action: Any) -> Any:
        obs = super().observe(action)
        if self.sprung == "wrong shape":
            return np.stack([obs, obs])
        return obs + 0.5 if self.sprung == "wrong dtype" else obs

    def info(self) -> dict[str, Any]:
        return {"odd": RESULTS[self.sprung]()} if self.sprung in RESULTS else super().info()

    def method(self) -> Any:
        self.spring("call")
        return RESULTS[self.sprung]() if self.sprung in RESULTS else self.id

    @property
    def prop(self) -> Any:
        self.spring("get_env_attr")
        return RESULTS[self.sprung]() if self.sprung in RESULTS else self.id

    @prop.setter
    def prop(self, value: int) -> None:
        self.spring("set_env_attr")

    def render(self) -> Any:
        self.spring("render")
        return [[self.id]]

    def seed(self, seed: int | None = None) -> None:
        self.spring("seed")

    def close(self) -> None:
        self.spring("close")


class FaultyEpisode(Faulty):
    """Env with one fault, in the episode with the seed `bad`, for jobs."""

    def __init__(self, trap: str, flag: str, bad: int) -> None:
        self.seeded, self.bad = -1, bad
        super().__init__(0, trap=trap, flag=flag, length=5)

    def takes_flag(self) -> bool:
        return self.trap.startswith("construct") or (self.seeded == self.bad and super().takes_flag())

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeded = seed
        return super().reset(seed=seed, options=options)

    seed = None  # type: ignore[assignment]
