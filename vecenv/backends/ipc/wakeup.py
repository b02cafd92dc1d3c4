"""Wakeup: wakes a process that sleeps on it; no system call is made while that process is awake.

The sleeper sets a flag in shared memory *before* its last check for data; the waker writes data *before* it reads the
flag. A fence on both sides keeps these orders, so no wakeup is lost; an extra one does no harm.
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
