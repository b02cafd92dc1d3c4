"""Lane that runs a loop: its description, and its driver."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.drive import WARM_UP
from benchmarks.sample import Sample


@dataclass(frozen=True)
class LoopSpec:
    """Loop with its arguments. Only the process of the lane imports the loop and its libraries."""

    title: str
    loop: str
    """`module:function` in this package."""
    arguments: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    """Modules that must be importable, besides gymnasium."""
    settle: float = 0.0

    def missing(self) -> str:
        names = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"{' and '.join(names)} is not installed" if names else ""

    def build(self) -> LoopDriver:
        module, _, function = self.loop.partition(":")
        loop = getattr(importlib.import_module(f"benchmarks.loops.{module}"), function)
        return LoopDriver(loop(**self.arguments))


class LoopDriver:
    """Driver that runs iterations of a loop for a time. The constructor runs the first, which imports and compiles."""

    def __init__(self, loop: Iterator[tuple[int, float]]) -> None:
        self._loop: Any = loop
        next(loop)

    def measure(self, seconds: float, warm_up: float = WARM_UP) -> Sample:
        """Run whole iterations for at least `seconds`. `p50` and `p99` are times of rollouts without learning."""
        clock, loop = time.perf_counter, self._loop
        stop = clock() + warm_up
        while clock() < stop:
            next(loop)
        gc.collect()
        times: list[float] = []
        steps, outside, cpu = 0, 0.0, time.process_time()
        begun = now = clock()
        stop = begun + seconds
        while now < stop:
            frames, spent = next(loop)
            then, now = now, clock()
            times.append(now - then - spent)
            steps += frames
            outside += spent
        cpu = time.process_time() - cpu
        p50, p99 = np.percentile(times, (50, 99))
        return Sample(steps, len(times), now - begun, cpu, float(p50), float(p99), outside=outside)

    def close(self) -> float:
        begun = time.perf_counter()
        self._loop.close()
        return time.perf_counter() - begun
