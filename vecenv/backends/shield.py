"""Shield: holds Ctrl-C back while something is half done, for microseconds.

Python runs a signal's handler between any two steps of a program. A KeyboardInterrupt between taking bytes off a
socket and keeping them, or between asking an env and noting that it was asked, would leave the next wait without an
end. While the shield is up the handler only remembers; as soon as it is down the handler that was there before runs.
It is never up while this process waits or runs an env's code.
"""

from __future__ import annotations

import os
import signal
import threading
from _signal import getsignal  # that of `signal` makes an enum of what it finds, or tries to, for 20 times as long
from types import FrameType
from typing import Any


class Shield:
    """`with shield:` around what must not be torn apart. Only the main thread is ever interrupted, so only there it
    does anything.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._missed: Any = None
        """What is to run for the signal that came while the shield was up."""
        self._users = 0
        self._main = threading.main_thread().ident

    def __enter__(self) -> None:
        if self._users and threading.get_ident() == self._main:
            # Others set handlers of their own for a while, as notebooks do for each cell.
            if not self._depth and getsignal(signal.SIGINT).__class__ is not Handler:
                self._put_up()
            self._depth += 1

    def __exit__(self, *exception: Any) -> None:
        if not self._depth or threading.get_ident() != self._main:
            return
        self._depth -= 1
        if self._missed is not None and not self._depth:
            missed, self._missed = self._missed, None
            missed(signal.SIGINT, None)

    def acquire(self) -> None:
        """Put the shield before the handler of SIGINT, if that is a Python function and this the main thread."""
        self._users += 1
        if threading.get_ident() == self._main:
            self._put_up()

    def _put_up(self) -> None:
        handler = getsignal(signal.SIGINT)
        if callable(handler) and handler.__class__ is not Handler:
            signal.signal(signal.SIGINT, Handler(self, handler))

    def release(self) -> None:
        """Put the old handler back once nobody needs the shield, if it is still ours that is there."""
        self._users -= 1
        handler = getsignal(signal.SIGINT)
        if self._users == 0 and handler.__class__ is Handler and threading.get_ident() == self._main:
            signal.signal(signal.SIGINT, handler.previous)

    def lower(self) -> None:
        """In a forked process nobody is left who would."""
        self._depth, self._missed = 0, None

    def handle(self, previous: Any, number: int, frame: FrameType | None) -> None:
        """A signal that is `previous`'s business."""
        if self._depth:
            self._missed = previous
        else:
            previous(number, frame)


class Handler:
    """The handler of SIGINT that is put before the one that was there, `previous`.

    One each time: others keep ours to call it from their own, or to put it back later.
    """

    def __init__(self, shield: Shield, previous: Any) -> None:
        self._shield = shield
        self.previous = previous

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._shield.handle(self.previous, number, frame)


shield = Shield()
os.register_at_fork(after_in_child=shield.lower)
