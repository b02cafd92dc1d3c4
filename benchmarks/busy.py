"""`python -m benchmarks.busy`: steps per second of vector envs while other programs use the CPUs.

    python -m benchmarks.busy                             # 16 envs, three rounds: eight minutes
    python -m benchmarks.busy --fast                      # only a check that each part runs
    python -m benchmarks.busy --beside 2 python -m benchmarks.loops sb3-ppo    # any command while two endless loops run

In each round, all contenders (ours and gymnasium's) run in turn, each in its own process. A figure is the median of the
rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import mean, median
from typing import Any

import gymnasium
import numpy as np

import vecenv
from benchmarks.envs import EnvSpec

CONTENDERS: dict[str, Any] = {
    "Shmem": vecenv.AsyncVectorEnv,
    "Subproc": lambda env_fns: vecenv.AsyncVectorEnv(env_fns, shared_memory=False),
    "Thread": lambda env_fns: vecenv.GymnasiumVectorEnv(vecenv.ThreadVectorEnv(env_fns)),
    "gymnasium Async": gymnasium.vector.AsyncVectorEnv,
    "gymnasium Sync": gymnasium.vector.SyncVectorEnv,
}
STEP_SECONDS = 1e-4


class Computing(gymnasium.Env[Any, Any]):
    """Env whose step computes for 100 us of wall time."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        end = time.perf_counter() + STEP_SECONDS
        while time.perf_counter() < end:
            pass
        return np.zeros(4, np.float32), 0.0, False, False, {}


def steps_per_second(contender: str, env: str, num_envs: int, seconds: float) -> float:
    env_fns: list[Any] = EnvSpec("cartpole").env_fns(num_envs) if env == "CartPole" else [Computing] * num_envs
    envs = CONTENDERS[contender](env_fns)
    envs.reset(seed=0)
    actions = np.zeros(num_envs, np.int64)
    for _ in range(20):
        envs.step(actions)
    rounds, begin = 0, time.perf_counter()
    while (wall := time.perf_counter() - begin) < seconds:
        envs.step(actions)
        rounds += 1
    envs.close()
    return rounds * num_envs / wall


@contextlib.contextmanager
def endless_loops(count: int, nice: int = 0) -> Iterator[None]:
    """Keep `count` processes computing."""
    command = ["nice", "-n", str(nice), sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(contender: str, env: str, copies: int, num_envs: int, seconds: float) -> float:
    """Return the mean steps per second of `copies` vector envs that run at the same time, each in its own process."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.busy",
        "--only",
        contender,
        env,
        "--envs",
        str(num_envs),
    ]
    command += ["--seconds", str(seconds)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(copies)]
    return mean(float(process.communicate()[0]) for process in running)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each contender in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--rows", default="", help="only the rows whose titles hold this text")
    parser.add_argument("--only", nargs=2, metavar=("CONTENDER", "ENV"), help="print one figure")
    parser.add_argument(
        "--beside", nargs=argparse.REMAINDER, help="COUNT COMMAND: run a command while endless loops run"
    )
    options = parser.parse_args(arguments)
    if options.only:
        print(steps_per_second(*options.only, options.envs, options.seconds))
        return
    if options.beside:
        with endless_loops(int(options.beside[0])):
            sys.exit(subprocess.run(options.beside[1:]).returncode)
    rounds, seconds = (1, 0.05) if options.fast else (options.rounds, options.seconds)
    cpus = len(os.sched_getaffinity(0))
    rows = [("quiet", 0, 0, 1)]
    rows += [(f"{n} loops at nice {nice}", n, nice, 1) for nice in (15, 0) for n in (cpus, 2 * cpus)]
    rows += [(f"{copies} at once", 0, 0, copies) for copies in (2, 4)]
    print(f"{'':22} {'':9}" + "".join(f"{name:>17}" for name in CONTENDERS))
    for title, loops, nice, copies in [row for row in rows if options.rows in row[0]]:
        for env in ("CartPole", "100 us"):
            with endless_loops(loops, nice):
                found = [[measure(c, env, copies, options.envs, seconds) for c in CONTENDERS] for _ in range(rounds)]
            rates = [median(column) for column in zip(*found, strict=True)]
            print(f"{title:22} {env:9}" + "".join(f"{rate:17,.0f}" for rate in rates), flush=True)


if __name__ == "__main__":
    main()
