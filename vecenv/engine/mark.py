"""`Mark`: flag that is set while a call changes a vector env.

    mark.is_set = get_ident()   -> changes of envs, messages, counters ->   mark.is_set = False

If a signal handler raises meanwhile, the mark stays set. The next call then first discards the results in flight.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any, TypeVar

from vecenv.errors import CLOSED_MEANWHILE, ClosedError, ConcurrentCallError

INTERRUPTS = (KeyboardInterrupt, SystemExit)
SIGNAL = "a signal"
RECOVERY_TIMEOUT = 5.0
"""Seconds that the recovery from an interrupted call waits, before it ends workers by force."""

Result = TypeVar("Result")
_calls: set[CodeType] = set()


class Mark:
    __slots__ = ("cause", "closed", "ids", "is_set")

    def __init__(self) -> None:
        self.is_set: int = False
        """Ident of the thread that is in a call. True after an interrupted call, False without a call."""
        self.ids: Collection[int] = ()
        self.cause = SIGNAL
        self.closed: str | None = None
        """Message of ClosedError, or None before `close`."""

    def is_in_use(self, frame: FrameType | None = None) -> bool:
        """Return True if the call that set the mark still runs, or has cleared the mark meanwhile.

        A call in a different thread counts as running while the thread lives, because only the current thread's
        frames are searched.
        """
        owner = self.is_set
        return not owner or _is_elsewhere(owner) or _is_in(frame or sys._getframe(1), self)

    def await_end(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and _is_elsewhere(self.is_set):
            time.sleep(1e-3)  # polling, because a notification would slow down each call

    def record_error(self, error: BaseException) -> None:
        """Record the exception that ended a call. If the mark is still set, the exception interrupted a change."""
        if self.is_set:
            self.is_set = True
        if self.closed is not None:
            if isinstance(error, Exception) and not isinstance(error, ClosedError):
                raise ClosedError(CLOSED_MEANWHILE) from None  # a second thread has closed the vector env
        # A warnings filter raised this warning. vecenv warns only while the state is consistent.
        elif isinstance(error, Warning):
            self.is_set = False
        elif self.is_set:
            self.cause = type(error).__name__


def _is_elsewhere(owner: int) -> bool:
    """Return True if `owner` is the ident of a different living thread."""
    return owner not in (False, True, threading.get_ident()) and owner in sys._current_frames()


def concurrent_call(state: str) -> ConcurrentCallError:
    return ConcurrentCallError(
        f"another call waits for this vector env, and {state}; make the calls one after the other"
    )


def sets_mark(method: Callable[..., Result]) -> Callable[..., Result]:
    """Register a method that sets `self.mark` or `_in_call`, so that `_is_in` finds running calls."""
    _calls.add(method.__code__)
    return method


class LayerMark:
    """Base of wrappers and facades, whose calls also change state outside the engine.

    A call sets `_in_call` before the first change, and to `None` after the last change. If an interrupt ends the call,
    `_abandon` sets the engine's mark.
    """

    has_many_envs = True
    """True, so that vecenv refuses env functions that return a vector env."""
    _in_call: Any = None
    _caller = 0
    """Ident of the thread of the last call, written before `_in_call`."""

    @sets_mark
    def _as_one_call(self, asked: Any, work: Callable[[], Result]) -> Result:
        if self._in_call is not None:
            self._recover(sys._getframe(1))
        self._caller, self._in_call = threading.get_ident(), asked
        try:
            result = work()
        except BaseException as error:
            self._record_error(error)
            raise
        self._in_call = None
        return result

    def _run_both(self, first: Callable[[], Any], second: Callable[[], Result]) -> Result:
        """Make two calls under one mark, because an interrupt may come between them."""
        return self._as_one_call((), lambda: (first(), second())[1])

    def _record_error(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._in_call = None
        elif isinstance(error, INTERRUPTS):
            self._abandon(error)

    def _recover(self, caller: FrameType) -> None:
        """Recover from an interrupted call, unless the call still runs in this thread.

        Raise ConcurrentCallError if the call may still run in a different thread.
        """
        if _is_in(caller, self):
            return
        if _is_elsewhere(self._caller):
            raise concurrent_call("has not ended")
        self._abandon(None)

    def _abandon(self, error: BaseException | None) -> None:
        """Let the engine's next call discard the results in flight.

        Clear `_in_call` last, so that the next call retries after an interrupt.
        """
        engine: Any = self.engine  # type: ignore[attr-defined]
        if not engine.closed:
            engine.abandon(error)
        self._in_call = None


def _is_in(frame: FrameType | None, owner: Mark | LayerMark) -> bool:
    while frame is not None:
        if frame.f_code in _calls:
            found = frame.f_locals.get("self")
            if found is owner or getattr(found, "mark", None) is owner:
                return True
        frame = frame.f_back
    return False


def is_one_call(method: Callable[..., Result]) -> Callable[..., Result]:
    """Wrap a method that sets the mark. First recover from an interrupted call. After success, clear the mark."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Result:
        if self.mark.is_set:
            self.recover(sys._getframe(1))
        try:
            result = method(self, *args, **kwargs)
        except BaseException as error:
            self.mark.record_error(error)
            raise
        self.mark.is_set = False
        return result

    return sets_mark(call)
