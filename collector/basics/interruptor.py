"""End batches and jobs early."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

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


@contextmanager
def sigint_deferred() -> Iterator[None]:
    """Defer the first Ctrl-C to the end of a `with` block in the main thread. A second Ctrl-C is immediate."""
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


BATCH_SECONDS = 1.0
NOTICE = (
    b"\nEnding the job: finished episodes are kept, unfinished ones are dropped. A second signal ends it immediately.\n"
)
GRACE_SECONDS = 5.0
KILL_SECONDS = 20.0
_WATCHDOG = """
import os, select, signal, sys, time
pid, seconds = int(sys.argv[1]), float(sys.argv[2])
while (byte := os.read(0, 1)) and byte[0] not in (signal.SIGINT, signal.SIGTERM):
    pass
ends = time.monotonic() + seconds
while byte and (rest := ends - time.monotonic()) > 0:
    if select.select([0], [], [], rest)[0]:
        byte = os.read(0, 1)
if byte and os.getppid() == pid:
    os.kill(pid, signal.SIGKILL)
"""


Self = TypeVar("Self", bound="Stopping")


class OutOfTime(KeyboardInterrupt):
    """Error if a step does not end soon after a signal. The base is KeyboardInterrupt, which envs rarely catch."""


class Stopping(Interruptor):
    """Interruptor of a job. Ends each batch after `BATCH_SECONDS`, so that the job can store episodes and report.

    In the `with` block, the first SIGINT or SIGTERM ends the job:

    - `GRACE_SECONDS` later, `OutOfTime` ends a `leaving_in_time` block that still runs.
    - A second Ctrl-C raises KeyboardInterrupt, and a second SIGTERM kills the process.
    - If an env holds the interpreter lock, no Python handler runs. So a watchdog process kills this process
      `KILL_SECONDS` after the grace period. Python's C code reports the signal to the watchdog through a pipe.

    A signal that was already ignored (for example SIGINT in a shell's background job) stays ignored.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signum = 0
        """Number of the first signal, or 0."""
        self._previous: dict[int, Any] = {}
        self._batch_ends = 0.0
        self._may_raise = False
        self._alarm_before: Any = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._wakeup_before = -1

    def __enter__(self: Self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(signum) != signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._handle)
        if self._previous:
            arguments = [
                sys.executable,
                "-I",
                "-S",
                "-c",
                _WATCHDOG,
                str(os.getpid()),
                str(GRACE_SECONDS + KILL_SECONDS),
            ]
            with contextlib.suppress(OSError):
                self._watchdog = subprocess.Popen(arguments, bufsize=0, stdin=subprocess.PIPE, start_new_session=True)
                assert self._watchdog.stdin is not None
                os.set_blocking(self._watchdog.stdin.fileno(), False)
                self._wakeup_before = signal.set_wakeup_fd(self._watchdog.stdin.fileno(), warn_on_full_buffer=False)
        return self

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def begin_batch(self) -> None:
        self._batch_ends = time.monotonic() + BATCH_SECONDS

    def collection_stopped(self) -> bool:
        return self._stopped or time.monotonic() >= self._batch_ends

    @contextmanager
    def leaving_in_time(self) -> Iterator[None]:
        """Allow `OutOfTime` in the `with` block."""
        self._may_raise = True
        try:
            yield
        finally:
            self._may_raise = False
            if self._stopped:  # the watchdog could kill the process during the last write to disk
                self._end_watchdog()

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Delay `OutOfTime` until the `with` block has stored episodes."""
        before, self._may_raise = self._may_raise, False
        try:
            yield
        finally:
            self._may_raise = before

    def _end_watchdog(self) -> None:
        if self._watchdog is not None:
            signal.set_wakeup_fd(self._wakeup_before)
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None

    def __exit__(self, *exception: object) -> None:
        self._end_watchdog()
        if self._alarm_before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._alarm_before)
            self._alarm_before = None
        if signal.getsignal(signal.SIGINT) == self._second_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._restore()

    def _restore(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        self.stop_collection()
        self._restore()
        # `print` would fail if the signal interrupted another `print`. `write` fails if stderr's reader has ended.
        with contextlib.suppress(OSError):
            os.write(2, NOTICE)
        if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
            signal.signal(signal.SIGINT, self._second_interrupt)
        self._alarm_before = signal.signal(signal.SIGALRM, self._out_of_time)
        # The alarm repeats every second, because an alarm during `finishing` has no effect.
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS, 1.0)

    def _second_interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Handle the second Ctrl-C, and prevent `OutOfTime`, which would interrupt the cleanup."""
        self._may_raise = False
        raise KeyboardInterrupt

    def _out_of_time(self, signum: int, frame: FrameType | None) -> None:
        if self._may_raise:
            self._may_raise = False
            raise OutOfTime
