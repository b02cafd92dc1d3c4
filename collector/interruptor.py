"""Ending a batch early, also by a signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

Stop = TypeVar("Stop", bound="StopSignals")


class Interruptor:
    """Ends the batch being collected after its current round, from a signal handler or another thread.

    Example::

        stop = Interruptor()
        collector = SyncDataCollector(env_fns, policy, frames_per_batch=4096, interruptor=stop)
        threading.Timer(60, stop.stop_collection).start()   # a batch that takes longer is shorter than others
    """

    def __init__(self) -> None:
        self._stopped = False

    def start_collection(self) -> None:
        """Let batches be collected to their end."""
        self._stopped = False

    def stop_collection(self) -> None:
        """End the current batch, and each one after it, after one round."""
        self._stopped = True

    def collection_stopped(self) -> bool:
        """Whether batches are to end now."""
        return self._stopped


@contextmanager
def sigint_deferred() -> Iterator[None]:
    """A critical section: Ctrl-C takes effect behind it, a second one at once.

    Nothing is changed outside the main thread, in which handlers run, and where SIGINT has no handler of Python.
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


class StopSignals(Interruptor):
    """While entered, SIGINT and SIGTERM end a collection after its current round instead of killing the process.

    The second one does what it did before: Ctrl-C raises KeyboardInterrupt, SIGTERM kills. A signal that was ignored
    before (as SIGINT is in a shell's background jobs) stays ignored. Outside the main thread, where Python allows no
    handlers, nothing is changed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signum = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self: Stop) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(signum) != signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        self.stop_collection()
        self._restore()
        # Not by print: a handler may run in the middle of one.
        os.write(2, b"\nEnding after this round, and keeping what is whole; once more ends it at once.\n")

    def _restore(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())
