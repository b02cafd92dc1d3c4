"""Wakeup: wakes the process that sleeps on it, without a system call while it is awake.

The sleeper sets a flag in shared memory *before* it looks a last time whether there is something to do; the waker
writes what there is to do *before* it looks at the flag. A fence on both sides keeps these orders, so no wake-up is
lost; an extra one does no harm.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

from vecenv import portability
from vecenv.portability import IN_ORDER


def _locked_fence() -> None:
    # A fresh lock each time: one for all could be left locked by a Ctrl-C in between.
    threading.Lock().acquire()


# Everything written before is seen before what is read or written after. On x86 any locked instruction does it, and
# there is one in a lock; elsewhere it takes a system call with the interpreter lock given up and taken again.
fence: Callable[[], None] = _locked_fence if IN_ORDER else os.sched_yield


def wakeup_fds() -> tuple[int, int]:
    """The descriptors to sleep on and to wake with: one eventfd, or the two ends of a pipe where there is none."""
    if (fd := portability.eventfd()) is not None:
        return fd, fd
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


class Wakeup:
    """One end of a wake-up; `flag` is a one-element view of shared memory, non-zero while the sleeper sleeps."""

    def __init__(self, read: int, write: int, flag: Any) -> None:
        self.read, self.write = read, write
        self.flag = flag

    def wake(self) -> None:
        """Wake the sleeper if it sleeps; the data for it has been written, and a fence has passed."""
        if self.flag[0]:
            with contextlib.suppress(BlockingIOError):  # full of wake-ups that were not read yet
                os.write(self.write, (1).to_bytes(8, "little"))

    def clear(self) -> None:
        """Drop the wake-ups so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.read, 4096)
