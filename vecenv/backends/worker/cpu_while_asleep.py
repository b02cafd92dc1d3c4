"""CPUWhileAsleep: workers that are woken together start at once, each on a CPU of its own."""

from __future__ import annotations

import contextlib

from vecenv.portability import allow_cpus, allowed_cpus, binds_to_cpus


class CPUWhileAsleep:
    """Context in which a worker sleeps: it may be woken on one CPU only, and may run on all as soon as it is awake.

    The scheduler wakes a task where it ran last. Where there are as many workers as CPUs, two of them then share one
    while the other CPU idles once the caller sleeps, for half a millisecond or more. Nothing is bound while it runs, so
    two programs still share the machine fairly.
    """

    def __init__(self, index: int, num_workers: int) -> None:
        self._index, self._num_workers = index, num_workers
        self._all: set[int] | None = None
        self._own: set[int] | None = None

    def __enter__(self) -> None:
        if self._all is None:  # not before: env constructors may change it
            self._all = (allowed_cpus() if binds_to_cpus() else None) or set()
            if 1 < len(self._all) <= self._num_workers:
                self._own = {sorted(self._all)[self._index % len(self._all)]}
        if self._own is not None:
            self._allow(self._own)

    def __exit__(self, *exc: object) -> None:
        if self._own is not None:
            self._allow(self._all or set())

    @staticmethod
    def _allow(cpus: set[int]) -> None:
        with contextlib.suppress(OSError):  # a CPU was taken away from the process meanwhile
            allow_cpus(0, cpus)
