"""BlockingMeter: detects envs that wait more than they compute, which should not share a worker."""

from __future__ import annotations

import resource
import time


def advice(n: int, workers: int) -> str:
    """The end of the warning of `BlockingMeter`: how many workers to pass for `n` envs."""
    return f". Pass num_workers={min(n, workers)} to give each its own worker."


class BlockingMeter:
    """Measures in the first rounds whether envs that share a worker wait (sockets, sleep).

    A process that waits has voluntary context switches; one that is only preempted has none. Block threads measure the
    whole process too: a thread that waits for the interpreter lock must not be taken for an env that waits.
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
        self._begin = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)

    def stop(self) -> str | None:
        """End the measurement of a round; returns the text of a warning, once, or None."""
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
