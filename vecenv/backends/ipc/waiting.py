"""`SpinWait` looks for a change for a moment before its process sleeps. `Wakeup` wakes a sleeping process.

No system call is made to wake a process that is awake. The sleeper sets a flag in shared memory *before* its last check
for data; the waker writes data *before* it reads the flag. A fence on both sides keeps these orders, so no wakeup is
lost; an extra one does no harm.
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
    # A new lock each time: a Ctrl-C before its release would leave a shared one locked.
    threading.Lock().acquire()


# Makes everything written before it visible before anything is read or written after it. On x86 any locked instruction
# does so, such as that of a lock; elsewhere a system call that releases and takes the interpreter lock.
fence: Callable[[], None] = _locked_fence if IN_ORDER else os.sched_yield


def wakeup_fds() -> tuple[int, int]:
    """The descriptors to sleep on and to wake with: one eventfd, or the two ends of a pipe where there is none."""
    if (fd := portability.eventfd()) is not None:
        return fd, fd
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


SLICE = 1e-3
"""Seconds: a sched_yield that took longer gave the CPU to a program that computes."""
FIRST_PAUSE, LONGEST_PAUSE = 8, 4096
"""Waits that sleep at once after such a yield: four times as many when the next try meets one too, half as many when it
does not. The first are few, because the caller's own work between two batches looks the same."""


class SpinWait:
    """Looks for something up to `looks` times, with a sched_yield between, where yields come back at once.

    On a CPU that is otherwise idle a look costs half a microsecond, and sleeping 50. Where another program computes, a
    yield costs a slice of milliseconds, and a process that sleeps is woken at once: after such a yield the next waits
    sleep without looking.
    """

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self._skip = 0
        self._pause = FIRST_PAUSE

    def until(self, done: Callable[[], bool]) -> bool:
        """Look until `done()`; returns False if it is time to sleep."""
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
    """One end of a wakeup; `flag` is a one-element view of shared memory, non-zero while the sleeper sleeps."""

    def __init__(self, read: int, write: int, flag: Any) -> None:
        self.read, self.write = read, write
        self.flag = flag

    def wake(self) -> None:
        """Wake the sleeper if it sleeps; to be called after its data was written and a fence."""
        if self.flag[0]:
            with contextlib.suppress(BlockingIOError):  # full of wakeups that were not read yet
                os.write(self.write, (1).to_bytes(8, "little"))

    def clear(self) -> None:
        """Discard the wakeups so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.read, 4096)
