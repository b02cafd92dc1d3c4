"""SpinWait: looks for something for a moment before its process sleeps. Wakeup: wakes a process that sleeps.

No system call is made to wake a process that is awake. The sleeper sets a flag in shared memory *before* its last check
for data; the waker writes data *before* it reads the flag. A fence on both sides keeps these orders, so no wakeup is
lost; an extra one does no harm.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from vecenv import portability
from vecenv.backends.ipc.control_block import SLEEPS
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


class SpinWait:
    """Looks for something up to `looks` times, with a sched_yield between, unless `line[SLEEPS]` is set."""

    def __init__(self, looks: int, line: Any) -> None:
        self._looks, self._line = range(looks), line

    def until(self, done: Callable[[], bool]) -> bool:
        """Look until `done()`; returns False if it is time to sleep."""
        if done():
            return True
        if self._line[SLEEPS]:
            return False
        sched_yield = os.sched_yield
        for _ in self._looks:
            sched_yield()
            if done():
                return True
        return False


PERIOD = 16
"""Waits that are timed together."""
GAIN = 0.9
"""The time of waits must fall to this part for the other way to be used."""
CHANGE = 2.0
"""Waits that take so many times longer than before: other programs have come, so both ways are compared again."""
FIRST_PAUSE, LONGEST_PAUSE = 4, 256
"""Periods between two comparisons, doubled while the result is the same."""


class LookOrSleep:
    """Chooses by the time that waits take whether the caller and the workers look before they sleep.

    On a CPU that is otherwise idle a look costs half a microsecond, and a sleep 50. Where another program computes, a
    sched_yield costs a slice of milliseconds, and a process that sleeps is woken at once. No process can see which is
    better, so both are tried, for one period each.
    """

    def __init__(self, lines: Sequence[Any]) -> None:
        self._lines = lines
        self._waited = self._usual = 0.0
        self._tries = False
        self._pause = self._left = FIRST_PAUSE

    def review(self, waited: float) -> None:
        """End a period; `waited`: total seconds of all waits."""
        now, self._waited = waited - self._waited, waited
        if self._tries:
            self._tries = False
            if now < GAIN * self._usual:
                self._pause, self._usual = FIRST_PAUSE, now
            else:
                self._pause = min(2 * self._pause, LONGEST_PAUSE)
                self._change()
            self._left = self._pause
            return
        self._left -= 1
        if self._usual and now > CHANGE * self._usual:
            self._pause, self._left = FIRST_PAUSE, min(self._left, 1)
        self._usual = 0.75 * self._usual + 0.25 * now if self._usual else now
        if self._left <= 0:
            self._tries = True
            self._change()

    def _change(self) -> None:
        for line in self._lines:
            line[SLEEPS] = 1 - line[SLEEPS]


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
