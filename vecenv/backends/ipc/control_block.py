"""The control page: a few numbers that the parent and its workers share.

Each is written by one store instruction, so that every reader sees either the old number or the new one.
Copies of several bytes have no such guarantee, and may even write some bytes twice.
"""

from __future__ import annotations

import mmap
from typing import Any

from vecenv.backends.memory.shared_memory import PAGE, anonymous_file, reserve

LINE = 8  # numbers of 8 bytes in a line of 64
# Written by the worker: index of the env in use + block size * count of uses; it changes with each use.
PROGRESS = 0
FRAMES = 1  # written by the parent: how many frames it has posted that the worker has to read (Shmem)
BUSY_NS = 2  # written by the worker: nanoseconds spent in rounds
DOING = 3  # written by the worker: one of the following
NOTHING, A_ROUND, A_CALL, SENDING = range(4)
ELSEWHERE = 4  # written by the parent: has something to do, but shares no memory that would show what


class Control:
    """The control page of one vector env; a worker maps the file `fd`.

    Each worker has a line of `LINE` 64-bit numbers, one cache line. The rest is for Shmem, in one place
    because the parent uses it in every round: `rounds`, how many rounds of a part of the envs each worker had a share
    in; `full`, the number of rounds of all envs, both written after the status bytes; and `sleepers`, a byte for each
    worker and behind them one for the parent, 1 while it sleeps on its wakeup.
    """

    def __init__(self, workers: int, fd: int | None = None) -> None:
        lines = workers * LINE * 8
        rounds = lines + workers * 8
        full = rounds + 8
        size = -(-(full + workers + 1) // PAGE) * PAGE
        if fd is None:
            self.fd = anonymous_file("vecenv-control")
            self._memory = reserve(self.fd, size, "the control page")
        else:
            self.fd = fd
            self._memory = mmap.mmap(fd, size)
        memory = memoryview(self._memory)
        self._numbers = memory[:lines].cast("q")
        self.rounds: Any = memory[lines:rounds].cast("q")
        self.full: Any = memory[rounds:full].cast("q")
        self.sleepers: Any = memory[full : full + workers + 1]

    def line(self, worker: int) -> Any:
        """The numbers of one worker, a memoryview of 64-bit integers."""
        return self._numbers[worker * LINE : (worker + 1) * LINE]
