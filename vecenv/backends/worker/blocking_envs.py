"""BlockingMeter: detects envs that wait more than they compute, which should not share a worker."""

from __future__ import annotations

import resource
import time


def _waits() -> int:
    """Number of times that this thread has waited; where the system counts no threads, this process."""
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw


def advice(n: int, workers: int) -> str:
    """The end of the warning of `BlockingMeter`: what to pass for `n` envs where they are to have `workers`."""
    own = (
        f". Pass num_workers={min(n, workers)} to the vector env, or to the collector that makes it, to give each its "
        "own worker"
    )
    if n < 3:
        return f"{own}."
    return (
        f"{own}. Where their steps differ in length, wait_num={max(n // 4, 1)} is faster still (it gives each its own "
        "worker too), in a loop that goes on with those that are ready, as AsyncDataCollector does: "
        "docs/guides/waiting-envs.md"
    )


class BlockingMeter:
    """Measures in the first rounds whether envs that share a worker wait (sockets, sleep).

    A thread that waits has voluntary context switches; one that is only preempted has none. CPU time is that of the
    whole process: envs may compute in further threads, and a thread that waits for the interpreter lock is none that
    waits for something outside.
    """

    MIN_WALL = 0.25
    MIN_ROUNDS = 8  # a single long step proves nothing
    MAX_SHARE = 0.5

    def __init__(self, envs: int) -> None:
        self._envs = envs
        self._wall = self._cpu = 0.0
        self._rounds = self._waits = 0
        self.measuring = envs > 1

    def start(self) -> None:
        """Start to measure a round."""
        self._begin = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF), _waits()

    def stop(self) -> str | None:
        """End the measurement of a round; returns the text of a warning, once, or None."""
        begin, before, waits = self._begin
        now = resource.getrusage(resource.RUSAGE_SELF)
        self._wall += time.perf_counter() - begin
        self._cpu += now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
        self._waits += _waits() - waits
        self._rounds += 1
        if self._wall < self.MIN_WALL or self._rounds < self.MIN_ROUNDS:
            return None
        self.measuring = False
        if self._cpu > self.MAX_SHARE * self._wall or self._waits < self._rounds:
            return None
        return (
            f"a worker spent {self._wall:.2f} s stepping its {self._envs} envs but only {self._cpu:.2f} s of CPU: "
            "they wait more than they compute, one after the other"
        )
