"""`Interruptor`: ends a batch early. `Stopping`: handles the signals of a job."""

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

from vecenv.extending import ends_soon


class Interruptor:
    """Ends a batch after the current round, from a signal handler or another thread.

    Example::

        stop = Interruptor()
        collector = SyncDataCollector(env_fns, policy, frames_per_batch=4096, interruptor=stop)
        threading.Timer(60, stop.stop_collection).start()   # a batch that takes longer ends early
    """

    def __init__(self) -> None:
        self._stopped = False

    def start_collection(self) -> None:
        """Let the following batches run to their end."""
        self._stopped = False

    def stop_collection(self) -> None:
        """End the current batch, and each later batch, after one round."""
        self._stopped = True

    def collection_stopped(self) -> bool:
        """Return whether the batch has to end."""
        return self._stopped


DRAIN_INTERVAL = 1.0
"""Seconds between two questions to Ray."""


def stop_when_host_ends(interruptor: Interruptor) -> threading.Event:
    """Stop `interruptor` once Ray announces the end of this host. Set the returned event to end the watch."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(DRAIN_INTERVAL):
            with contextlib.suppress(Exception):  # Ray's head does not answer now
                if ends_soon():
                    interruptor.stop_collection()
                    return

    threading.Thread(target=watch, name="vecenv-host-watch", daemon=True).start()
    return ended


@contextmanager
def sigint_deferred() -> Iterator[None]:
    """Defer the first Ctrl-C to the end of the `with` block, in the main thread. A second Ctrl-C is immediate."""
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
"""Maximum seconds of a job's batch."""
NOTICE = (
    b"\nEnding the job: finished episodes are kept, unfinished ones are dropped. A second signal ends it immediately.\n"
)
GRACE_SECONDS = 5.0
"""Seconds for the round in progress after the first signal."""
KILL_SECONDS = 20.0
"""Seconds after `GRACE_SECONDS` until the watchdog kills the process."""
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
    """The round in progress did not end after a signal. A KeyboardInterrupt, because envs do not catch it."""


class Stopping(Interruptor):
    """Interruptor of a job. Ends each batch after a second, so that the job can commit and report.

    Inside of `with`, the first SIGINT or SIGTERM ends the job:

    - The round in progress gets a few seconds. Then `OutOfTime` is raised in it.
    - A second Ctrl-C raises KeyboardInterrupt, and a second SIGTERM kills the process.
    - If an env holds the interpreter lock (`backend="dummy"`), no handler runs. Then a watchdog process, to which C
      code sends the signal's number through a pipe, kills this process.

    A signal that was ignored before (as SIGINT in a shell's background jobs) stays ignored. Only the main thread can
    set handlers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signum = 0
        """First signal, or 0."""
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
        """Allow `OutOfTime` inside of `with`."""
        self._may_raise = True
        try:
            yield
        finally:
            self._may_raise = False
            if self._stopped:  # the commit may take longer
                self._end_watchdog()

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Delay `OutOfTime` to the end of `with`, because a commit is in progress."""
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
        # Not print: the handler may run within a print. The pipe's reader may be dead.
        with contextlib.suppress(OSError):
            os.write(2, NOTICE)
        if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
            signal.signal(signal.SIGINT, self._second_interrupt)
        self._alarm_before = signal.signal(signal.SIGALRM, self._out_of_time)
        # Repeats, because an alarm during a close or commit has no effect.
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS, 1.0)

    def _second_interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Handle the second Ctrl-C. `OutOfTime` does not interrupt the following cleanup."""
        self._may_raise = False
        raise KeyboardInterrupt

    def _out_of_time(self, signum: int, frame: FrameType | None) -> None:
        if self._may_raise:
            self._may_raise = False
            raise OutOfTime
