"""Whether the envs of a worker wait more than they compute: then they should not share it."""

from __future__ import annotations

import resource
import time


def advice(n: int, workers: int) -> str:
    """The end of the warning that `BlockingMeter` gives: how many workers the `n` envs should have."""
    return f". Pass num_workers={min(n, workers)} to give each its own worker."


class BlockingMeter:
    """Looks at the first rounds for envs that wait (sockets, sleep) but share a worker.

    A process that waits gives the CPU up voluntarily; one that is preempted does not.
    """

    MIN_WALL = 0.25
    MIN_ROUNDS = 8  # one long step is no loop that waits
    MAX_SHARE = 0.5

    def __init__(self, envs: int) -> None:
        self._envs = envs
        self._wall = self._cpu = 0.0
        self._rounds = self._waits = 0
        self.measuring = envs > 1

    def start(self) -> None:
        """A round begins."""
        self._begin = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)

    def stop(self) -> str | None:
        """A round ended: the warning to give, once, or None."""
        begin, before = self._begin
        now = resource.getrusage(resource.RUSAGE_SELF)
        self._wall += time.perf_counter() - begin
        self._cpu += now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
        self._waits += now.ru_nvcsw - before.ru_nvcsw
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
