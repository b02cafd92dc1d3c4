"""`Mark`: state of the calls of a vector env. All its layers (engine, wrappers, facades) share one mark.

    mark.owner = get_ident()   -> changes of envs, messages, counters ->   mark.owner = 0

If an exception leaves a call in between, for example from a signal handler, the mark stays `BROKEN` until `reset`. The
`except` clauses store this value before any function call, because Python runs signal handlers only around calls.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

from vecenv.errors import CLOSED_MEANWHILE, ClosedError, ConcurrentCallError, InterruptedCallError, add_note

BROKEN = -1
RECOVERY_TIMEOUT = 5.0
"""Seconds that a reset after an interrupt waits for envs of the interrupted call, before it ends their workers."""

Result = TypeVar("Result")


class Mark:
    __slots__ = ("closed", "layer", "owner")

    def __init__(self) -> None:
        self.owner = 0
        """Ident of the thread that is in a call of the engine, `BROKEN` after an interrupted call, else 0."""
        self.layer = 0
        """Ident of the thread that is in a call of a wrapper or facade, else 0."""
        self.closed: str | None = None
        """Message of ClosedError, or None before `close`."""

    def take(self) -> None:
        """Begin to change envs. Raise if another thread has begun since the check of the call, or an interrupt came."""
        me = get_ident()
        if self.owner not in (0, me):
            self.refuse()
        self.owner = me

    def refuse(self, busy: str = "has not ended") -> None:
        """Raise the error of a call while `owner` is set."""
        if self.owner == BROKEN:
            raise InterruptedCallError(
                "an exception has ended an earlier call before it was complete (for example Ctrl-C), and its results "
                "are lost: call reset(), which makes all envs usable again"
            )
        self.refuse_thread(self.owner, busy)

    def refuse_thread(self, owner: int, busy: str = "has not ended") -> None:
        if owner == get_ident():
            raise ConcurrentCallError("this call comes from inside of another call of the same vector env")
        raise ConcurrentCallError(
            f"another call waits for this vector env, and {busy}; make the calls one after the other"
        )

    def explain(self, error: BaseException, unanswered: Callable[[], list[int]]) -> None:
        """Replace the error of a call, or add a note. `unanswered` returns the ids of envs still in the call."""
        if self.closed is not None:
            if isinstance(error, Exception) and not isinstance(error, ClosedError):
                raise ClosedError(CLOSED_MEANWHILE) from None  # a second thread has closed the vector env
        elif self.owner == BROKEN:
            if isinstance(error, Warning):  # vecenv warns only while the state is consistent
                self.owner = 0
            else:
                busy = f"; it waits for envs {ids}, {RECOVERY_TIMEOUT:g} s at most" if (ids := unanswered()) else ""
                add_note(error, f"a call of a vector env has ended early: call reset() to go on{busy}")

    def await_end(self, timeout: float) -> None:
        """Wait for the end of a call in a different thread."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.owner not in (0, BROKEN, get_ident()):
            time.sleep(1e-3)  # polling, because a notification would slow down each call


def is_one_call(method: Callable[..., Result]) -> Callable[..., Result]:
    """Wrap a method that sets `mark.owner`. Refuse the call if `owner` is set. Clear `owner` after success."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Result:
        mark, me = self.mark, get_ident()
        if mark.owner:
            self.refuse()
        try:
            result = method(self, *args, **kwargs)
            if mark.owner == me:
                mark.owner = 0
        except BaseException as error:
            if mark.owner == me:
                mark.owner = BROKEN
            self.explain(error)
            raise
        return result

    return call


def mark_of(venv: Any) -> Mark:
    """Return the mark of a vector env. A custom vector env may have none."""
    return getattr(venv, "call_mark", None) or Mark()


def is_layer_call(method: Callable[..., Result]) -> Callable[..., Result]:
    """Wrap a method of a `Layer`. An interrupt breaks the engine's mark. Refuse the call of a second thread."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Result:
        mark, me = self.call_mark, get_ident()
        outer = mark.layer
        if outer and outer != me:
            mark.refuse_thread(outer)
        try:
            mark.layer = me
            result = method(self, *args, **kwargs)
            mark.layer = outer
        except Exception:
            mark.layer = outer
            raise
        except BaseException:
            mark.owner, mark.layer = BROKEN, outer
            raise
        return result

    return call


class Layer:
    """Base of wrappers and facades, whose calls also change state outside the engine. `call_mark` is the engine's."""

    has_many_envs = True
    """True, so that vecenv refuses env functions that return a vector env."""
    call_mark: Mark
