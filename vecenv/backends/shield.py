"""Shield: holds Ctrl-C back while something is half done, for microseconds.

Python runs a signal's handler between any two steps of a program. A KeyboardInterrupt between taking bytes off a
socket and keeping them, or between asking an env and noting that it was asked, would leave the next wait without an
end. While the shield is up the handler only remembers; as soon as it is down the handler that was there before runs.
It is never up while this process waits or runs an env's code.
"""

from __future__ import annotations

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
        self._missed = False
        self._users = 0
        self._previous: Any = None
        self._ours = self._handle
        self._main = threading.main_thread().ident

    def __enter__(self) -> None:
        if self._users and threading.get_ident() == self._main:
            # Others set handlers of their own for a while, as notebooks do for each cell.
            if not self._depth and getsignal(signal.SIGINT) is not self._ours:
                self._put_up()
            self._depth += 1

    def __exit__(self, *exception: Any) -> None:
        if not self._depth or threading.get_ident() != self._main:
            return
        self._depth -= 1
        if self._missed and not self._depth:
            self._missed = False
            self._previous(signal.SIGINT, None)

    def acquire(self) -> None:
        """Put the shield before the handler of SIGINT, if that is a Python function and this the main thread."""
        self._users += 1
        if threading.get_ident() == self._main:
            self._put_up()

    def _put_up(self) -> None:
        handler = getsignal(signal.SIGINT)
        if callable(handler) and handler is not self._ours:
            self._previous = handler
            signal.signal(signal.SIGINT, self._ours)

    def release(self) -> None:
        """Put the old handler back once nobody needs the shield, if it is still ours that is there."""
        self._users -= 1
        ours = getsignal(signal.SIGINT) is self._ours
        if self._users == 0 and ours and threading.get_ident() == self._main:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._depth:
            self._missed = True
        else:
            self._previous(number, frame)


shield = Shield()
