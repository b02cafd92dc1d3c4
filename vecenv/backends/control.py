"""The control page: a few numbers that the parent and its workers share, one cache line a worker."""

from __future__ import annotations

import mmap
from typing import Any

from vecenv.backends.arena import PAGE, anonymous_file, reserve

LINE = 8  # numbers of 8 bytes in a line of 64
PROGRESS = (
    0  # written by the worker: index of the env it is using + block size * count of uses; changes while it gets on
)
CALLS = 1  # written by the parent: how many frames it has posted that the worker has to read
BUSY_NS = 2  # written by the worker: nanoseconds spent in rounds
ROUNDS = 3  # written by the parent: how often it has asked for something (Shmem)
SLEEPS = 4  # written by whose line it is: 1 while it sleeps on its bell (Shmem)
DOING = 5  # written by the worker: one of the following
NOTHING, A_ROUND, A_CALL = range(3)


class Control:
    """Lines of `LINE` 64-bit numbers, one for each worker; `fd` is what a worker maps."""

    def __init__(self, workers: int, fd: int | None = None) -> None:
        self._workers = workers
        size = -(-(workers + 1) * LINE * 8 // PAGE) * PAGE
        if fd is None:
            self.fd = anonymous_file("vecenv-control")
            self._memory = reserve(self.fd, size, "the control page")
        else:
            self.fd = fd
            self._memory = mmap.mmap(fd, size)
        self._numbers = memoryview(self._memory).cast("q")

    def line(self, worker: int) -> Any:
        """The numbers of one worker, a memoryview of 64-bit integers."""
        return self._numbers[worker * LINE : (worker + 1) * LINE]

    def parent_line(self) -> Any:
        """The numbers that the parent writes for all workers."""
        return self.line(self._workers)
