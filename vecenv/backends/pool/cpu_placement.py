"""Placement: detects workers that take turns on one CPU while another CPU idles, and moves them apart.

The scheduler does not move a task that ran within the last half millisecond, because its caches are assumed to be
warm. Two workers that share a CPU then take turns for hundreds of short rounds (measured: up to a third of all rounds
of CartPole on two CPUs).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from vecenv.backends.ipc.control_block import BUSY_NS, Control
from vecenv.backends.pool.worker_handle import WorkerHandle
from vecenv.portability import allow_cpus, allowed_cpus, system_file

REVIEW_WAITS = 8
"""Waits between two reviews."""
MIN_GAP = 10e-6
"""Seconds per round by which waits must exceed the time of the busiest worker before workers are moved."""
PAUSE = 2e-3
"""Seconds between two moves; doubled after each move that did not help: other programs use the CPUs then."""
MAX_PAUSE = 1.0
CPU_FIELD = 36  # index among the fields after the name in /proc/<pid>/stat: the CPU on which the process ran last


class Placement:
    """Compares waits with the time of workers in rounds. A move sets the CPU affinity of a worker, and restores it."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._waited = 0.0
        self._busy: list[int] = []
        self._next, self._pause = 0.0, PAUSE

    def review(self, waited: float, workers: Sequence[WorkerHandle]) -> None:
        """Move workers that share a CPU; called every `REVIEW_WAITS` waits. `waited`: total seconds of all waits."""
        now = [self._control.line(worker.index)[BUSY_NS] for worker in workers]
        busy = [1e-9 * (b - a) for a, b in zip(self._busy, now, strict=bool(self._busy))]
        waited, self._waited, self._busy = waited - self._waited, waited, now
        if not busy:
            return
        others = (sum(busy) - max(busy)) / (len(busy) - 1)
        if waited - max(busy) < max(0.5 * others, REVIEW_WAITS * MIN_GAP):
            self._pause = PAUSE
        elif time.perf_counter() > self._next:
            spread([worker.pid for worker in workers if worker.pid is not None])
            self._next = time.perf_counter() + self._pause
            self._pause = min(2 * self._pause, MAX_PAUSE)


def spread(pids: Sequence[int]) -> None:
    """Move processes that last ran on the same CPU to CPUs on which none of the others ran."""
    with contextlib.suppress(OSError, IndexError):  # a process has ended, or /proc has fewer fields here
        taken: set[int] = set()
        for pid in pids:
            stat = system_file(f"/proc/{pid}/stat") or ""
            cpu = int(stat.rpartition(")")[2].split()[CPU_FIELD])
            allowed = allowed_cpus(pid) or set()
            if cpu in taken and (free := allowed - taken):
                cpu = min(free)
                allow_cpus(pid, {cpu})
                allow_cpus(pid, allowed)
            taken.add(cpu)
