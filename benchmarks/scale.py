"""`python -m benchmarks.scale`: CPU time of the process to which all workers or actors report.

    python -m benchmarks.scale                    # both parts: some minutes, a local Ray is started
    python -m benchmarks.scale --actors 200       # a single row with 200 actors; each takes 60 MB of memory

Workers: CPU time of the caller per round of `step`. The envs sleep about 5 ms, and each has its own worker.
Actors: CPU time of the process of a `RayCollector` per rollout, and the number of rollouts that it receives per second.
The actors repeat their first rollout, so that a row measures only the driver. A least-squares fit over the rows gives
the costs of a rollout, of a megabyte and of an actor.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table

import vecenv
from benchmarks.envs import EnvSpec
from collector import ActorConfig, RayCollector
from collector.cluster import actor_pool
from collector.cluster.rollout_actor import Columns, RolloutActor, RolloutReport
from vecenv import nest

WORKERS = (16, 64, 128)
BACKENDS = {"Shmem": vecenv.ShmemVectorEnv, "Subproc": vecenv.SubprocVectorEnv, "Thread": vecenv.ThreadVectorEnv}
ROWS = ((2, 4, 64), (2, 4, 16384), (2, 4, 131072), (16, 4, 64), (16, 4, 16384), (64, 4, 64))
"""Number of actors, envs per actor, floats per observation."""
STEPS = 32
"""Number of steps of each env in a rollout."""


class Zeros(gym.Env[np.ndarray, np.int64]):
    action_space: Any = gym.spaces.Discrete(2)

    def __init__(self, size: int) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (size,), np.float32)
        self._obs = np.zeros(size, np.float32)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(**kwargs)
        return self._obs, {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._obs, 0.0, False, False, {}


class Repeats(RolloutActor):
    """Actor that collects a rollout, and returns it repeatedly."""

    _rollout: tuple[RolloutReport, Columns] | None = None

    def collect(self, version: int, weights: Any, random_actions: bool) -> tuple[RolloutReport, Columns]:
        if self._rollout is None:
            report, columns = super().collect(version, weights, random_actions)
            self._rollout = report, nest.map(np.copy, columns)
        return self._rollout


def rounds(backend: str, workers: int, count: int) -> float:
    """Return the milliseconds of CPU of this process per round."""
    with BACKENDS[backend](EnvSpec("sleep").env_fns(workers), num_workers=workers) as venv:
        venv.reset()
        actions = np.zeros(workers, np.int64)
        for _ in range(5):
            venv.step(actions)
        begun = time.process_time()
        for _ in range(count):
            venv.step(actions)
        return 1e3 * (time.process_time() - begun) / count


def rollouts(actors: int, envs: int, size: int, seconds: float) -> tuple[float, float, float]:
    """Return CPU milliseconds of this process per rollout, megabytes per rollout, and rollouts per second."""
    make = [partial(Zeros, size)] * envs
    config = ActorConfig(num_cpus=0, start_timeout=600)
    with RayCollector(make, num_actors=actors, frames_per_batch=STEPS * envs, sync=False, actors=config) as collector:
        for _ in range(2 * actors):
            batch = collector.rollout()
        megabytes = sum(rows.nbytes for rows in vars(batch).values() if isinstance(rows, np.ndarray)) / 1e6
        done, cpu, begun = 0, time.process_time(), time.perf_counter()
        while time.perf_counter() < begun + seconds:
            collector.rollout()
            done += 1
        wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
        return 1e3 * cpu / done, megabytes, done / wall


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=("workers", "actors"), help="one of the two")
    parser.add_argument("--actors", type=int, help="only this row, with rollouts of 4 envs x 32 steps x 16,384 floats")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row")
    options = parser.parse_args(arguments)
    console = Console()
    if options.part != "actors" and not options.actors:
        table = Table("workers", *BACKENDS, title="the caller's CPU a round, ms: envs that sleep about 5 ms")
        for workers in WORKERS:
            table.add_row(str(workers), *(f"{rounds(name, workers, 100):.2f}" for name in BACKENDS))
        console.print(table)
    if options.part != "workers":
        measure_actors(console, options.actors, options.seconds)
    return 0


def measure_actors(console: Console, actors: int | None, seconds: float) -> None:
    import ray

    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=4_000_000_000)
    actor_pool.RolloutActor = Repeats  # type: ignore[attr-defined]
    table = Table(
        "actors", "MB per rollout", "rollouts/s", "driver's CPU, ms per rollout", title="RayCollector, sync=False"
    )
    rows, found = [], []
    for count, envs, size in [(actors, 4, 16384)] if actors else ROWS:
        cpu, megabytes, rate = rollouts(count, envs, size, seconds)
        table.add_row(str(count), f"{megabytes:.2f}", f"{rate:.0f}", f"{cpu:.2f}")
        rows.append((1.0, megabytes, count))
        found.append(cpu)
    console.print(table)
    ray.shutdown()
    if len(rows) > 1:
        one, each_mb, each_actor = np.linalg.lstsq(np.array(rows), np.array(found), rcond=None)[0]
        actor = f"{1e3 * each_actor:.1f} us an actor waited for"
        console.print(f"fit: {one:.2f} ms per rollout, {each_mb:.3f} ms a MB, {actor}")


if __name__ == "__main__":
    raise SystemExit(main())
