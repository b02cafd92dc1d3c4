"""`python -m benchmarks.ray`: vector envs and collectors on Ray, compared with ours without Ray and tianshou's.

It takes some minutes. A cluster of two nodes is started on this machine. Actors on the first node share memory with the
driver, and actors on the second node are reached by calls.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.envs import EnvSpec, calibrate
from benchmarks.lane import LaneSpec
from benchmarks.measure import Effort, Result, run_experiment
from benchmarks.procfs import descendants
from benchmarks.ray_collectors import collector_experiments
from benchmarks.report import print_contenders, print_results, write_json
from benchmarks.rows import SHMEM, Claim, Experiment, Settings
from vecenv.ray_cluster import NICENESS

NEAR, FAR, THEIRS = "vecenv Ray, driver's node", "vecenv Ray, other node", "tianshou Ray"
WORKERS = 2
FEW = 16
CPUS = 8
"""CPUs of each node, so that all contenders find a place at the same time."""


def experiments(iterations: int) -> list[Experiment]:
    near: dict[str, Any] = {"num_workers": WORKERS, "resources": {"near": 1}}
    far: dict[str, Any] = {"num_workers": WORKERS, "resources": {"far": 1}}

    def lanes(env: EnvSpec, count: int) -> list[LaneSpec]:
        return [
            LaneSpec(SHMEM, env, count, {"num_workers": WORKERS}),
            LaneSpec("vecenv Ray", env, count, near, NEAR),
            LaneSpec("vecenv Ray", env, count, far, FAR),
        ]

    found = []
    # tianshou has an actor per env. On two CPUs, 64 actors need more than three minutes to start, hence FEW.
    for name, env, near_share, far_share, factor in (
        ("cartpole", EnvSpec("cartpole"), 0.7, 0.0, 100.0),
        ("busy", EnvSpec("busy", iterations), 0.95, 0.65, 10.0),
    ):
        shares = [
            Claim(f"RayVectorEnv, 64 x {name}", NEAR, SHMEM, near_share),
            Claim(f"by calls, 64 x {name}", FAR, SHMEM, far_share),
        ]
        factors = [
            Claim(f"RayVectorEnv, {FEW} x {name}", NEAR, THEIRS, factor),
            Claim(f"by calls, {FEW} x {name}", FAR, THEIRS, 10.0),
        ]
        both = [*lanes(env, FEW), LaneSpec(THEIRS, env, FEW)]
        found.append(Experiment(f"ray-{name}-64", lanes(env, 64), shares, yardstick=SHMEM))
        found.append(Experiment(f"ray-{name}-{FEW}", both, factors, yardstick=SHMEM))
    return [*found, *collector_experiments(iterations)]


def main(arguments: list[str] | None = None) -> int:
    settings = Settings(workers=WORKERS, iterations=calibrate())
    found = {one.name: one for one in experiments(settings.iterations)}
    parser = argparse.ArgumentParser(prog="benchmarks.ray", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", action="append", choices=found, metavar="ROW", help=f"one of: {', '.join(found)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--json", type=Path, help="where the raw figures go")
    options = parser.parse_args(arguments)
    # Lanes connect by the address, and then need no token.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ[NICENESS] = "0"  # as in clusters that vecenv starts; Ray's default would slow all lanes
    from ray.cluster_utils import Cluster

    console = Console(width=None if sys.stdout.isatty() else 150)
    head = {"num_cpus": CPUS, "resources": {"near": 100}, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=CPUS, resources={"far": 100})
        os.environ["RAY_ADDRESS"] = cluster.address
        effort = Effort(options.rounds, options.seconds, options.patience, tuple(descendants(os.getpid())))
        wanted = [one for name, one in found.items() if not options.only or name in options.only]
        measured = [run_experiment(one, effort, console.print) for one in wanted]
    finally:
        cluster.shutdown()
    results: list[Result] = [result for one in measured for result in one.results()]
    print_contenders(console, measured)
    print_results(console, results)
    if options.json:
        plain = {name: value for name, value in vars(options).items() if name != "json"}
        write_json(options.json, settings, plain, measured, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
