"""Objects that cannot be pickled, envs that return them, and odd exceptions."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.faulty import ENDS, Counter, NoSpace, boom, hold_interpreter_lock, sleep_for_ages


class Unpicklable:
    def __init__(self) -> None:
        self.lock = threading.Lock()


class RaisesAtPickle:
    def __reduce__(self) -> Any:
        raise RuntimeError("no pickling today")


class ExitsAtPickle:
    def __reduce__(self) -> Any:
        sys.exit("out, while pickling")


class DiesAtPickle:
    def __reduce__(self) -> Any:
        os._exit(3)


def _break_elsewhere(home: int, how: str) -> str:
    if os.getpid() != home:
        if how == "raise":
            raise RuntimeError("no unpickling here")
        if how == "hang":
            sleep_for_ages()
        sys.exit("out, while unpickling") if how == "exit" else os._exit(3)
    return "at home"


class RaisesAtUnpickle:
    """Raises when another process unpickles it."""

    how = "raise"

    def __reduce__(self) -> Any:
        return _break_elsewhere, (os.getpid(), self.how)


class ExitsAtUnpickle(RaisesAtUnpickle):
    how = "exit"


class DiesAtUnpickle(RaisesAtUnpickle):
    how = "die"


class HangsAtPickle:
    def __reduce__(self) -> Any:
        sleep_for_ages()


class HangsAtUnpickle(RaisesAtUnpickle):
    how = "hang"


class OddInfo(Counter):
    """Env with the result of `make` in the info of step `at`."""

    def __init__(self, id: int, make: Callable[[], Any], at: int = 2) -> None:
        super().__init__(id)
        self.make, self.at = make, at

    def info(self) -> dict[str, Any]:
        return {"odd": self.make()} if self.t == self.at else {}


class OddObservation(NoSpace):
    """Env with the result of `make` in the observation of step 2."""

    def __init__(self, id: int, make: Callable[[], Any]) -> None:
        super().__init__(id)
        self.make = make

    def observe(self, action: Any) -> Any:
        return {"numbers": Counter.observe(self, -1), "extra": self.make() if self.t == 2 else None}


class Breaks(Counter):
    """Env that does what `fault` names, once: in its next step, or in its next reset."""

    fault, go = "", ""

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.done = ""

    def on_step(self) -> None:
        self.fault, self.done = "", self.fault
        if self.done == "raise in step":
            raise boom()
        if self.done == "raise what cannot travel":
            raise HoldsLock("held")
        if self.done == "die":
            ENDS["SIGKILL"]()
        if self.done == "hang in C":
            hold_interpreter_lock()
        while self.done == "hang" and not os.path.exists(self.go):
            time.sleep(0.005)

    def on_reset(self) -> None:
        self.fault, self.done = "", self.fault
        if self.done == "raise in reset":
            raise boom()

    def observe(self, action: Any) -> Any:
        return super().observe(action) + (0.5 if self.done == "observe what does not fit" else 0)

    def info(self) -> dict[str, Any]:
        return {"odd": Unpicklable()} if self.done == "info that cannot travel" else super().info()


# Odd exceptions


class TwoArguments(Exception):
    def __init__(self, first: str, second: int) -> None:
        super().__init__(f"{first} and {second}")


class KeywordOnly(Exception):
    def __init__(self, *, what: str) -> None:
        super().__init__(f"keyword {what}")


class ReduceRaises(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not this one")


class HoldsLock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class HoldsHugeArray(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.array = np.zeros(100 << 20, np.uint8)


class NoAttributes(Exception):
    """Exception that takes no attributes: neither notes nor partial results."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot set {name}")


class RaisesWhenRebuilt(Exception):
    def __reduce__(self) -> Any:
        return _break_elsewhere, (os.getpid(), "raise")


def rebuilt_or_exit(home: int, kind: type[Exception], args: tuple[Any, ...]) -> Exception:
    if os.getpid() != home:
        sys.exit("out, while rebuilding an exception")
    return kind(*args)


class ExitsWhenRebuilt(Exception):
    """Exception that ends a process that unpickles it, except in the worker."""

    def __reduce__(self) -> Any:
        return rebuilt_or_exit, (os.getpid(), type(self), self.args)


class OwnBase(BaseException):
    """BaseException that is not an Exception."""


def local_class() -> Exception:
    """Return an exception with a class that no other process can import."""

    class Local(Exception):
        pass

    return Local("from a function")


def decode_error() -> Exception:
    return UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, "bad %s {byte}")
