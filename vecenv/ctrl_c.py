"""`sigint_deferred`: code that Ctrl-C does not interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def sigint_deferred() -> Iterator[None]:
    """Defer the first Ctrl-C to the end of a `with` block in the main thread.

    A second Ctrl-C is immediate, except in a system call of `start_process`, which blocks SIGINT.
    """
    before, pending = signal.getsignal(signal.SIGINT), list[FrameType | None]()
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def note(signum: int, frame: FrameType | None) -> None:
        pending.append(frame)
        if len(pending) > 1:
            before(signum, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pending:
            before(signal.SIGINT, pending[0])
