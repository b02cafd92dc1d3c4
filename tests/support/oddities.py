"""Objects that cannot be pickled, envs that return them, and odd exceptions."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from tests.support.faulty import Counter


class Unpicklable:
    def __init__(self) -> None:
        self.lock = threading.Lock()


class RaisesAtPickle:
    def __reduce__(self) -> Any:
        raise RuntimeError("no pickling today")


class ExitsAtPickle:
    def __reduce__(self) -> Any:
        sys.exit("out, while pickling")


def _break_elsewhere(home: int, how: str) -> str:
    if os.getpid() != home:
        if how == "raise":
            raise RuntimeError("no unpickling here")
        sys.exit("out, while unpickling")
    return "at home"


class RaisesAtUnpickle:
    """Raises when another process unpickles it."""

    how = "raise"

    def __reduce__(self) -> Any:
        return _break_elsewhere, (os.getpid(), self.how)


class ExitsAtUnpickle(RaisesAtUnpickle):
    how = "exit"


class OddInfo(Counter):
    """Env with the result of `make` in the info of step `at`."""

    def __init__(self, id: int, make: Callable[[], Any], at: int = 2) -> None:
        super().__init__(id)
        self.make, self.at = make, at

    def info(self) -> dict[str, Any]:
        return {"odd": self.make()} if self.t == self.at else {}


# Odd exceptions


class KeywordOnly(Exception):
    def __init__(self, *, what: str) -> None:
        super().__init__(f"keyword {what}")


class HoldsLock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class NoAttributes(Exception):
    """Exception that takes no attributes: neither notes nor partial results."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot set {name}")


class RaisesWhenRebuilt(Exception):
    def __reduce__(self) -> Any:
        return _break_elsewhere, (os.getpid(), "raise")


class OwnBase(BaseException):
    """BaseException that is not an Exception."""


def local_class() -> Exception:
    """Return an exception with a class that no other process can import."""

    class Local(Exception):
        pass

    return Local("from a function")


def decode_error() -> Exception:
    return UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, "bad %s {byte}")
