"""Step a contender inside its lane: for a time, for a number of calls, and under a counter."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import numpy as np

from benchmarks.counting import CallCounter
from benchmarks.envs import draw_actions
from benchmarks.peers import Contender, StepThenReset
from benchmarks.sample import Sample

WARM_UP = 0.15


class Driver:
    """Driver that steps a contender with actions that were drawn in advance. Subclasses define `once`."""

    rebuild: Callable[[], Driver]
    """Function that makes a second driver of this kind, to time the opening."""
    opened_in: float
    """Seconds that the first contender of this process took to open, without the import of its library."""

    def __init__(self, contender: Contender, count: int) -> None:
        self._contender = contender
        self._rows = draw_actions(count)
        self._position = 0

    def once(self) -> int:
        """Call the contender's `step`. Return the number of env steps."""
        raise NotImplementedError

    def measure(self, seconds: float, warm_up: float = WARM_UP) -> Sample:
        """Step for `seconds` after a warm-up."""
        clock = time.perf_counter
        stop = clock() + warm_up
        while clock() < stop:
            self.once()
        gc.collect()
        times: list[float] = []
        steps = 0
        cpu = time.process_time()
        begun = now = clock()
        stop = begun + seconds
        while now < stop:
            steps += self.once()
            then, now = now, clock()
            times.append(now - then)
        cpu = time.process_time() - cpu
        p50, p99 = np.percentile(times, (50, 99))
        return Sample(steps, len(times), now - begun, cpu, float(p50), float(p99))

    def run(self, calls: int) -> int:
        """Make exactly `calls` calls, for counters outside this process."""
        return sum(self.once() for _ in range(calls))

    def count(self, calls: int) -> dict[str, float]:
        """Return the C calls of this thread per call: pickles, pipe traffic, semaphores, yields."""
        self.run(20)
        with CallCounter() as counter:
            self.run(calls)
        return {name: number / calls for name, number in counter.totals.items()}

    def reopen(self) -> tuple[float, float]:
        """Return the seconds to build a second contender of this kind, with its reset, and to close it."""
        begun = time.perf_counter()
        other = self.rebuild()
        opened = time.perf_counter()
        other.close()
        return opened - begun, time.perf_counter() - opened

    def close(self) -> float:
        begun = time.perf_counter()
        self._contender.close()
        return time.perf_counter() - begun

    def opening(self) -> float:
        """Return `opened_in`. A method, because the benchmark can only call methods."""
        return self.opened_in

    def _next_row(self) -> np.ndarray:
        row: np.ndarray = self._rows[self._position]
        self._position = (self._position + 1) % len(self._rows)
        return row


class SyncDriver(Driver):
    """Driver that steps every env in each call."""

    def once(self) -> int:
        return self._contender.step(self._next_row())


class AsyncDriver(Driver):
    """Driver that in each call sends actions to the ready envs, and receives the results that come first."""

    def __init__(self, contender: Contender, count: int) -> None:
        super().__init__(contender, count)
        assert isinstance(contender, StepThenReset), "only tianshou's contract has asynchronous steps"
        self._venv = contender.venv
        self._ready = np.arange(count)

    def once(self) -> int:
        ready = self._ready
        _, _, terminated, truncated, info = self._venv.step(self._next_row()[ready], ready)
        self._ready = np.array([row["env_id"] for row in info])
        ended = self._ready[np.logical_or(terminated, truncated)]
        if len(ended):
            self._venv.reset(ended)
        return len(self._ready)
