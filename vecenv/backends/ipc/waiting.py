"""`SpinWait` looks for a change for a moment before its process sleeps. `Wakeup` wakes a sleeping process.

Waking an awake process needs no system call. The sleeper sets a flag in shared memory *before* the last check for data.
The waker writes data *before* reading the flag. Fences keep these orders, so no wakeup is lost. Extra wakeups do no
harm.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from vecenv import portability
from vecenv.portability import IN_ORDER


def _locked_fence() -> None:
    # A new lock each time, because a Ctrl-C before the release would leave a shared lock locked.
    threading.Lock().acquire()


# Makes earlier writes visible before later reads and writes. On x86, any locked instruction does this, for example of a
# lock. Elsewhere, a system call that releases the interpreter lock does.
fence: Callable[[], None] = _locked_fence if IN_ORDER else os.sched_yield


def wakeup_fds() -> tuple[int, int]:
    """Return descriptors to sleep on and to wake with: an eventfd, or both ends of a pipe."""
    if (fd := portability.eventfd()) is not None:
        return fd, fd
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


SLICE = 1e-3
"""Seconds. If a sched_yield takes longer, another program used the CPU."""
FIRST_PAUSE, LONGEST_PAUSE = 8, 4096
"""Number of waits without looking after such a yield. The number grows fourfold if the next try meets a long yield too,
and halves otherwise. The first pause is short, because the caller's work between batches looks the same.
"""


class SpinWait:
    """Loop that looks up to `looks` times, with a sched_yield in between.

    On an idle CPU, a look takes 0.5 us, and sleeping 50 us. If another program computes, a yield takes milliseconds, so
    the next waits sleep without looking.
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
    """End of a wakeup. `flag` is a view of one byte in shared memory, non-zero while the sleeper sleeps."""

    def __init__(self, read: int, write: int, flag: Any) -> None:
        self.read, self.write = read, write
        self.flag = flag

    def wake(self) -> None:
        """Wake the sleeper if it sleeps. Call this after writing data and a fence."""
        if self.flag[0]:
            with contextlib.suppress(BlockingIOError):  # full of unread wakeups
                os.write(self.write, (1).to_bytes(8, "little"))

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.read, 4096)
