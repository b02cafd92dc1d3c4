"""Rows of `RayCollector` in `benchmarks.ray`: two actors, each with half of the envs, compared with a local collector.

All collect with the same network of two hidden layers on the CPU. The local collector has a process for the policy, and
two workers for the envs. An actor computes the actions of its envs itself, between their steps.
"""

from __future__ import annotations

import gc
import importlib.util
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.envs import EnvSpec
from benchmarks.rows import Claim, Experiment
from benchmarks.sample import Sample

LOCAL, IN_TURN, AHEAD = "local collector, Shmem", "RayCollector, sync", "RayCollector, sync=False"
ENVS, STEPS, ACTORS = 64, 64, 2
DEPTH = 2
"""Number of rollouts that an actor collects in advance with `sync=False`, the default."""
SETTLE = 1.0
"""Seconds that actors need to collect these rollouts in advance."""


@dataclass(frozen=True)
class CollectorSpec:
    """Collector of ENVS envs in a lane: a local collector, or, with `options`, a RayCollector with two actors."""

    title: str
    env: EnvSpec
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def settle(self) -> float:
        return SETTLE if self.options else 0.0

    def missing(self) -> str:
        absent = [name for name in ("torch", "ray") if importlib.util.find_spec(name) is None]
        return f"{' and '.join(absent)} not installed" if absent else ""

    def build(self) -> CollectorDriver:
        from benchmarks.collector import Net
        from collector import RayCollector, SyncDataCollector
        from vecenv import ShmemVectorEnv

        if not self.options:
            venv = ShmemVectorEnv(self.env.env_fns(ENVS), num_workers=ACTORS)
            return CollectorDriver(SyncDataCollector(venv, Net(), frames_per_batch=ENVS * STEPS), 1)
        frames = ENVS * STEPS // (1 if self.options["sync"] else ACTORS)
        env_fns = self.env.env_fns(ENVS // ACTORS)
        collector = RayCollector(env_fns, Net(), num_actors=ACTORS, frames_per_batch=frames, **self.options)
        return CollectorDriver(collector, 1 if self.options["sync"] else ACTORS * DEPTH)


class CollectorDriver:
    """Driver that takes rollouts. `ahead` is the number of rollouts that may have been collected in advance."""

    def __init__(self, collector: Any, ahead: int) -> None:
        self._collector, self._ahead = collector, ahead

    def measure(self, seconds: float) -> Sample:
        """Collect for `seconds`. First take the rollouts that were collected in advance."""
        clock = time.perf_counter
        for _ in range(self._ahead):
            self._collector.rollout()
        gc.collect()
        times: list[float] = []
        steps, cpu = 0, time.process_time()
        begun = now = clock()
        while now < begun + seconds:
            steps += self._collector.rollout().frames
            then, now = now, clock()
            times.append(now - then)
        cpu = time.process_time() - cpu
        p50, p99 = np.percentile(times, (50, 99))
        return Sample(steps, len(times), now - begun, cpu, float(p50), float(p99))

    def close(self) -> float:
        begun = time.perf_counter()
        self._collector.shutdown()
        return time.perf_counter() - begun


def collector_experiments(iterations: int) -> list[Experiment]:
    found = []
    for name, env, target in (("cartpole", EnvSpec("cartpole"), 0.0), ("busy", EnvSpec("busy", iterations), 1.0)):
        near = {"resources": {"near": 1}}
        lanes = [
            CollectorSpec(LOCAL, env),
            CollectorSpec(IN_TURN, env, {**near, "sync": True}),
            CollectorSpec(AHEAD, env, {**near, "sync": False}),
        ]
        claims = [Claim(f"{lane}, 2 actors x Dummy, {ENVS} x {name}", lane, LOCAL, target) for lane in (IN_TURN, AHEAD)]
        found.append(Experiment(f"collector-{name}", lanes, claims, yardstick=LOCAL))
    return found
