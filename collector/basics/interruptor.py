"""End batches and jobs early."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

from vecenv.ray_cluster import ends_soon


class Interruptor:
    """Flag with which a signal handler or another thread ends a batch after the envs' current step.

    Example::

        stop = Interruptor()
        collector = SyncDataCollector(env_fns, policy, frames_per_batch=4096, interruptor=stop)
        threading.Timer(60, stop.stop_collection).start()   # after 60 s, all batches end early
    """

    def __init__(self) -> None:
        self._stopped = False

    def start_collection(self) -> None:
        """Clear the flag, so that batches run to their end."""
        self._stopped = False

    def stop_collection(self) -> None:
        """End the current batch after the envs' current step, and each later batch after its first step."""
        self._stopped = True

    def collection_stopped(self) -> bool:
        """Return whether the batch has to end."""
        return self._stopped


DRAIN_INTERVAL = 1.0
"""Seconds between checks whether Ray ends this host soon."""


def stop_when_host_ends(interruptor: Interruptor) -> threading.Event:
    """Start a thread that calls `stop_collection` when Ray announces this host's end.

    Set the returned event to end the thread.
    """
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(DRAIN_INTERVAL):
            with contextlib.suppress(Exception):  # Ray's head node may not answer
                if ends_soon():
                    interruptor.stop_collection()
                    return

    threading.Thread(target=watch, name="vecenv-host-watch", daemon=True).start()
    return ended


BATCH_SECONDS = 1.0
NOTICE = (
    b"\nEnding the job: finished episodes are kept, unfinished ones are dropped. A second signal ends it immediately.\n"
)


class Stopping(Interruptor):
    """Interruptor of a job. Ends each batch after `BATCH_SECONDS`, so that the job can store episodes and report.

    In the `with` block, the first SIGINT or SIGTERM ends the batch after the envs' current step. A second signal does
    what it did before the block. By default, Ctrl-C raises KeyboardInterrupt, and SIGTERM kills the process.

    A signal that was already ignored (for example SIGINT in a shell's background job) stays ignored.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signum = 0
        """Number of the first signal, or 0."""
        self._previous: dict[int, Any] = {}
        self._batch_ends = 0.0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(signum) != signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._handle)
        return self

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def begin_batch(self) -> None:
        self._batch_ends = time.monotonic() + BATCH_SECONDS

    def collection_stopped(self) -> bool:
        return self._stopped or time.monotonic() >= self._batch_ends

    def __exit__(self, *exception: object) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        self.stop_collection()
        self.__exit__()
        # `print` would fail if the signal interrupted another `print`. `write` fails if stderr's reader has ended.
        with contextlib.suppress(OSError):
            os.write(2, NOTICE)
