"""Mark: set while a call changes the state of a vector env, so that an interrupt cannot leave half a change unnoticed.

    mark.set()   -> status bytes, frames, extras, counters ->   mark.is_set = False

An interrupt is an exception that a signal handler raises between any two bytecodes, such as KeyboardInterrupt. The
call that it ends leaves the mark set, and the next call recovers first.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any, TypeVar

from vecenv.backends.memory.shared_state import free_stale_locks, holds
from vecenv.errors import ClosedError

INTERRUPTS = (KeyboardInterrupt, SystemExit)
"""Exceptions that signal handlers raise in the middle of a call, mainly KeyboardInterrupt on Ctrl-C."""
SIGNAL = "a signal"
RECOVERY_TIMEOUT = 5.0
"""Seconds that a recovery waits for the workers of an interrupted call before it ends them."""

Result = TypeVar("Result")
_calls: set[CodeType] = set()
"""The code of all functions that set a mark, the `mark` of their `self`."""


class Mark:
    """The mark of one vector env."""

    __slots__ = ("cause", "closed", "ids", "is_set")

    def __init__(self) -> None:
        self.is_set: int = False
        """The ident of the thread whose call has set the mark; True if that call has ended by an exception."""
        self.ids: Collection[int] = ()
        """The envs of the call that has set the mark."""
        self.cause = SIGNAL
        """The exception that ended this call, for error texts."""
        self.closed: str | None = None
        """The text of the ClosedError once the vector env is closed."""

    def set(self) -> None:
        """Set the mark for a call of this thread."""
        self.is_set = threading.get_ident()

    def is_in_use(self, frame: FrameType | None = None) -> bool:
        """Return whether the call that set the mark still runs, in another thread or below the handler of a signal, or
        has cleared it meanwhile.

        `frame`: the innermost frame of this thread to look at, by default that of the caller. Only frames of this
        thread are looked at: without the interpreter lock the frames of another thread change meanwhile.
        """
        owner = self.is_set
        return not owner or _is_elsewhere(owner) or self._is_set_in(frame or sys._getframe(1))

    def _is_set_in(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code in _calls and getattr(frame.f_locals.get("self"), "mark", None) is self:
                return True
            frame = frame.f_back
        return False

    def await_end(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for a call of another thread to end, once it has been told to."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and _is_elsewhere(self.is_set):
            time.sleep(1e-3)  # the call has no way to tell its end that costs nothing while nobody closes

    def note_end(self, error: BaseException) -> None:
        """Note the exception that ended a call. It was an interrupt unless the call has cleared the mark before."""
        if self.is_set:
            self.is_set = True
        if self.closed is not None:
            if isinstance(error, Exception) and not isinstance(error, ClosedError):
                raise ClosedError(self.closed) from None  # another thread has closed the vector env
        elif isinstance(error, Warning):  # turned into an exception; nothing is half done where warnings are shown
            self.is_set = False
        elif self.is_set:
            self.cause = type(error).__name__


def _is_elsewhere(owner: int) -> bool:
    """Return whether `owner`, the value of a mark, is the ident of another thread that exists."""
    return owner not in (False, True, threading.get_ident()) and owner in sys._current_frames()


def sets_mark(method: Callable[..., Result]) -> Callable[..., Result]:
    """Declare a method that sets the mark `self.mark`, and clears it."""
    _calls.add(method.__code__)
    return method


def is_one_call(method: Callable[..., Result]) -> Callable[..., Result]:
    """Recover with `self.recover` before the method if the mark is set, and clear the mark after it.

    The method sets the mark before its first change.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Result:
        if holds:
            free_stale_locks(sys._getframe(1))
        if self.mark.is_set:
            self.recover(sys._getframe(1))
        try:
            result = method(self, *args, **kwargs)
        except BaseException as error:
            self.mark.note_end(error)
            raise
        self.mark.is_set = False
        return result

    return sets_mark(call)
