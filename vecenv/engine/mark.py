"""Mark: set while a call changes the state of a vector env, so that an interrupt cannot leave half a change unnoticed.

    mark.is_set = get_ident()   -> status bytes, frames, extras, counters ->   mark.is_set = False

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

from vecenv.backends.free_threading import has_gil
from vecenv.backends.memory.shared_state import free_stale_locks, holds
from vecenv.errors import CLOSED_MEANWHILE, ClosedError

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

    def is_in_use(self, frame: FrameType | None = None) -> bool:
        """Return whether the call that set the mark still runs, in another thread or below the handler of a signal, or
        has cleared it meanwhile.

        `frame`: the innermost frame of this thread to look at, by default that of the caller. Only frames of this
        thread are looked at: without the interpreter lock the frames of another thread change meanwhile.
        """
        owner = self.is_set
        return not owner or _is_elsewhere(owner) or _is_in(frame or sys._getframe(1), self)

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
                raise ClosedError(CLOSED_MEANWHILE) from None  # another thread has closed the vector env
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


class LayerMark:
    """Base of the layers above an engine (wrappers, facades), whose calls change state of their own.

    A call puts the envs that it was asked for into `_in_call` before its first change, and None after its last. An
    interrupt leaves them there, so that the next call recovers first. Unless a second interrupt prevents it, the call
    itself recovers before it ends, so that `failed_id` has these envs at once.
    """

    _in_call: Any = None

    @sets_mark
    def _as_one_call(self, asked: Any, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, the part of a call that changes state, for the envs `asked`."""
        if self._in_call is not None:
            self._recover(sys._getframe(1))
        self._in_call = asked
        try:
            result = work()
        except BaseException as error:
            self._note_end(error)
            raise
        self._in_call = None
        return result

    def _halves(self, first: Callable[[], Any], second: Callable[[], Result]) -> Result:
        """Make two calls as one, between which an interrupt may come; return the result of the second one."""
        return self._as_one_call((), lambda: (first(), second())[1])

    def _note_end(self, error: BaseException) -> None:
        """Note the exception that ended a call. One of the env or of an argument is not an interrupt."""
        if isinstance(error, Exception):
            self._in_call = None
        elif isinstance(error, INTERRUPTS):
            self._abandon(error)

    def _recover(self, caller: FrameType) -> None:
        """Recover from an interrupted call, unless it still runs; `caller` is the frame that called the method."""
        if not _is_on_a_stack(self, caller):
            self._abandon(None)

    def _abandon(self, error: BaseException | None) -> None:
        """Abandon the envs of the call, which need a reset then: those in flight. Sets `_in_call` to None, last."""
        engine: Any = self.engine  # type: ignore[attr-defined]
        if not engine.closed:
            engine.abandon(error)
        self._in_call = None


def _is_on_a_stack(owner: Mark | LayerMark, frame: FrameType) -> bool:
    """Return whether a call that has set this mark runs in some thread; `frame`: where to begin in this one.

    Without the interpreter lock only this thread is looked at, because the frames of other threads change meanwhile.
    """
    others = sys._current_frames() if has_gil() else {}
    return any(_is_in(each, owner) for each in {**others, threading.get_ident(): frame}.values())


def _is_in(frame: FrameType | None, owner: Mark | LayerMark) -> bool:
    while frame is not None:
        if frame.f_code in _calls:
            found = frame.f_locals.get("self")
            if found is owner or getattr(found, "mark", None) is owner:
                return True
        frame = frame.f_back
    return False


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
