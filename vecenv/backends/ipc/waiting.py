"""`SpinWait`: busy-waits for a moment before the process sleeps. `Wakeup`: wakes a sleeping process.

Waking needs a system call, which the waker skips if the process is awake. The sleeper sets a flag in shared memory
*before* its last check for data. The waker writes data *before* reading the flag. Memory fences keep these orders, so
no wakeup is lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from vecenv import portability
from vecenv.portability import IN_ORDER


def _locked_fence() -> None:
    # Use a new lock, because Ctrl-C could prevent the release of a common lock.
    threading.Lock().acquire()


# Memory fence: makes earlier writes visible before later reads and writes. On x86, acquiring a lock is a fence.
# Elsewhere, a system call that releases the interpreter lock is a fence.
fence: Callable[[], None] = _locked_fence if IN_ORDER else os.sched_yield


def wakeup_fds() -> tuple[int, int]:
    """Return descriptors to sleep on and to wake with: an eventfd twice, or the ends of a pipe."""
    if (fd := portability.eventfd()) is not None:
        return fd, fd
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


ONE = (1).to_bytes(8, "little")
SLICE = 1e-3
"""Seconds. If a sched_yield takes longer, another program has used the CPU."""
FIRST_PAUSE, LONGEST_PAUSE = 8, 4096
"""Smallest and largest number of waits that check only once after a long yield. Each long yield quadruples the number,
and each busy-wait without a long yield halves it. The number starts small, because this program may cause a long yield.
"""


class SpinWait:
    """Busy-wait that checks a condition up to `looks` times, with a sched_yield in between.

    On an idle CPU, checks find an answer sooner than a sleep ends (`python -m benchmarks.micro`). If another program
    computes, a yield takes milliseconds, so the next waits check only once.
    """

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self._skip = 0
        self._pause = FIRST_PAUSE

    def until(self, done: Callable[[], bool]) -> bool:
        if done():
            return True
        if self._skip:
            self._skip -= 1
            return False
        sched_yield, clock = os.sched_yield, time.perf_counter
        now, found = clock(), False
        for _ in range(self._looks):
            sched_yield()
            before, now = now, clock()
            found = done()
            if now - before > SLICE:
                self._skip = self._pause
                self._pause = min(4 * self._pause, LONGEST_PAUSE)
                return found
            if found:
                break
        self._pause = max(self._pause // 2, FIRST_PAUSE)
        return found


class Wakeup:
    """Descriptors to sleep on (`read`) and to wake with (`write`). `flag`: byte in shared memory, 1 during sleep."""

    def __init__(self, read: int, write: int, flag: Any) -> None:
        self.read, self.write = read, write
        self.flag = flag

    def wake(self) -> None:
        """Wake the sleeper if it sleeps. Call this after writing data and calling `fence`."""
        if self.flag[0]:
            try:  # noqa: SIM105 - saves three calls
                os.write(self.write, ONE)
            except BlockingIOError:  # the pipe is full of unread wakeups
                pass

    def clear(self) -> None:
        try:  # noqa: SIM105 - saves three calls
            os.read(self.read, 4096)
        except BlockingIOError:
            pass
