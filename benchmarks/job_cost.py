"""`python -m benchmarks.job_cost`: cost of writing in a job, compared with a job that writes nothing.

    python -m benchmarks.job_cost                    # CartPole-v1, 8 envs in this process, plain shards
    python -m benchmarks.job_cost --pixels           # Pong, 8 envs in workers, 84 x 84 pixels, compressed shards

Both jobs play the same episodes, in turn, for some rounds. The time lasts from the first step to the last commit. The
CPU time is measured in this process, and is more reliable if other programs run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from collector import Job, run_job
from collector.basics.interruptor import Stopping
from collector.jobs.job_progress import JobProgress
from collector.jobs.plan import Plan
from collector.jobs.player import Player

CARTPOLE = {"env": "CartPole-v1", "num_envs": 8, "backend": "dummy"}
PIXELS = {
    "env": "ale_py:ALE/Pong-v5",
    "num_envs": 8,
    "backend": "shmem",
    "env_kwargs": {"frameskip": 1},
    "wrappers": ("gymnasium.wrappers:AtariPreprocessing",),
    "max_episode_steps": 1000,
    "compress": True,
}


class Cost(NamedTuple):
    wall: float
    cpu: float
    steps: int


def measure(run: Callable[[], int]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    steps = run()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu, steps)


def with_store(job: Job) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return run_job(job, Path(folder) / "data").steps


def without_store(job: Job) -> int:
    """Play the same episodes without storing them. Return their number of steps."""
    plan = Plan(job.seed, job.episodes, job.steps)
    with Stopping() as stop:
        for _ in Player(job, plan, stop, JobProgress(), "cpu").play():
            pass
    return plan.end_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pixels", action="store_true")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    settings, steps = (PIXELS, 20_000) if options.pixels else (CARTPOLE, 300_000)
    job = Job(**settings, steps=options.steps or steps)
    ways = {"writes": with_store, "writes nothing": without_store}
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for i in range(options.rounds):
        for name in list(ways)[:: 1 if i % 2 else -1]:
            costs[name].append(measure(lambda name=name: ways[name](job)))
    assert len({cost.steps for each in costs.values() for cost in each}) == 1, "they played the same episodes"
    for name, each in costs.items():
        rate = statistics.median(cost.steps / cost.wall for cost in each)
        cpu = statistics.median(cost.cpu / cost.steps for cost in each)
        print(f"{name:15} {rate:10,.0f} steps/s  {cpu * 1e6:8.2f} us of CPU a step")
    for kind in ("wall", "cpu"):
        ratios = [getattr(one, kind) / getattr(other, kind) for one, other in zip(*costs.values(), strict=True)]
        middle, low, high = (f(ratios) - 1 for f in (statistics.median, min, max))
        print(f"writing costs {middle:6.1%} of {kind} time  ({low:.1%} to {high:.1%})")


if __name__ == "__main__":
    main()
