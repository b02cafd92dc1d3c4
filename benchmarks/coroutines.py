"""Measure envs that wait 50 ms per step: coroutine envs and threads of vecenv, a bare event loop, and gymnasium.

    python -m benchmarks.coroutines [--envs 1000] [--rounds 15] [--repeats 3] [CONTENDER ...]

The contenders take turns, each in a fresh process.

- `round` is the median time of a step of all envs. `fastest` is the shortest time, which other programs disturb least.
- `CPU` is the processor time of this process per step.
- `alive` is the longest time that a second thread waits for an `alive()` of the same vector env during steps.
- The memory is the proportional set size (PSS) of all processes after the steps, and the part that the vector env has
  added.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from benchmarks.memory import resident
from vecenv import ThreadVectorEnv

SECONDS = 0.05


class Waits(gymnasium.Env[Any, Any]):
    """Env that waits in each step."""

    observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (4,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self) -> None:
        self.obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.obs, {}

    def step(self, action: Any) -> Any:
        time.sleep(SECONDS)
        return self.obs, 1.0, False, False, {}


class WaitsAsync(Waits):
    """The same env, with coroutines."""

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.obs, {}

    async def step(self, action: Any) -> Any:
        await asyncio.sleep(SECONDS)
        return self.obs, 1.0, False, False, {}


Round = Callable[[], Any]


def gather(n: int, measure: Callable[[Round, Any], None]) -> None:
    """Step the envs by `asyncio.gather`."""
    envs = [WaitsAsync() for _ in range(n)]
    with asyncio.Runner() as runner:

        async def step() -> Any:
            return await asyncio.gather(*(env.step(0) for env in envs))

        measure(lambda: runner.run(step()), None)


def vector_env(make: Callable[[int], Any], n: int, measure: Callable[[Round, Any], None]) -> None:
    venv = make(n)
    venv.reset(seed=0)
    actions = np.zeros(n, np.int64)
    measure(lambda: venv.step(actions), venv)
    venv.close()


def in_threads(n: int) -> Any:
    return ThreadVectorEnv([Waits] * n, num_workers=n)


def in_one_loop(n: int) -> Any:
    return ThreadVectorEnv([WaitsAsync] * n)


def gymnasium_async(n: int) -> Any:
    return gymnasium.vector.AsyncVectorEnv([Waits] * n)


CONTENDERS: dict[str, tuple[Callable[..., None], int | None]] = {
    "gather": (gather, None),
    "coroutines": (partial(vector_env, in_one_loop), None),
    "threads": (partial(vector_env, in_threads), None),
    "coroutines-64": (partial(vector_env, in_one_loop), 64),
    "threads-64": (partial(vector_env, in_threads), 64),
    "gymnasium-64": (partial(vector_env, gymnasium_async), 64),
}
"""By name: the function that plays, and the number of envs (`None`: --envs)."""


def play(name: str, envs: int, rounds: int) -> None:
    """Run a contender, and print its figures as JSON."""
    function, own = CONTENDERS[name]
    n, before, begin = own or envs, resident_here(), time.perf_counter()
    figures: dict[str, Any] = {"envs": n}

    def measure(step: Round, venv: Any) -> None:
        figures["start_s"] = time.perf_counter() - begin
        for _ in range(3):
            step()
        times, computed, alive = list[float](), list[float](), list[float]()
        stop = threading.Event()
        watcher = threading.Thread(target=watch, args=(venv, alive, stop))
        for watched in (False, True):
            if watched and hasattr(venv, "alive"):
                watcher.start()
            for _ in range(rounds):
                start, used = time.perf_counter(), time.process_time()
                step()
                if not watched:
                    times.append(time.perf_counter() - start)
                    computed.append(time.process_time() - used)
        stop.set()
        memory = resident_here()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        figures.update(round_ms=1e3 * median(times), fastest_ms=1e3 * min(times), cpu_ms=1e3 * median(computed))
        figures.update(memory_mb=memory, added_mb=memory - before, peak_mb=peak)
        figures["alive_ms"] = 1e3 * max(alive, default=float("nan"))

    function(n, measure)
    print(json.dumps(figures))


def watch(venv: Any, alive: list[float], stop: threading.Event) -> None:
    while not stop.wait(0.003):
        start = time.perf_counter()
        venv.alive()
        alive.append(time.perf_counter() - start)


def resident_here() -> float:
    return resident(os.getpid())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of {list(CONTENDERS)} (default: all)")
    parser.add_argument("--envs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--play", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.play:
        play(options.play, options.envs, options.rounds)
        return
    names = options.names or list(CONTENDERS)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    command = [sys.executable, "-m", "benchmarks.coroutines", "--envs", str(options.envs)]
    for _ in range(options.repeats):
        for name in names:
            played = [*command, "--rounds", str(options.rounds), "--play", name]
            found[name].append(json.loads(subprocess.run(played, check=True, capture_output=True).stdout))
    for name, each in found.items():
        now = {key: median(one[key] for one in each) for key in each[0]}
        print(
            f"{name:14} {now['envs']:5.0f} envs  start {now['start_s']:5.2f} s  round {now['round_ms']:7.1f} ms  "
            f"fastest {now['fastest_ms']:6.1f} ms  "
            f"CPU {now['cpu_ms']:6.1f} ms  "
            f"alive {now['alive_ms']:6.1f} ms  {now['memory_mb']:6.0f} MB, {now['added_mb']:+.0f} MB",
            flush=True,
        )
    if "gather" in found and "coroutines" in found:
        for key in ("round_ms", "fastest_ms"):
            pairs = zip(found["coroutines"], found["gather"], strict=True)
            print(f"coroutines / gather, {key}: {median(ours[key] / bare[key] for ours, bare in pairs):.2f}")


if __name__ == "__main__":
    # Import this module by name, so that workers import the classes of the envs instead of getting copies.
    from benchmarks import coroutines as module

    module.main()
