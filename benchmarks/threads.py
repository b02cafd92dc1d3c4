"""Compare threads with worker processes: steps per second, and the memory of 64 envs.

    python -m benchmarks.threads [--seconds 4] [ROW ...]
    python -m benchmarks.threads --memory

Short windows of both alternate, so that a busy machine disturbs both. The ratio is the median of the pairs. With a
free-threaded Python, the threads run at the same time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from functools import cache, partial
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium import spaces

from vecenv import ShmemVectorEnv, ThreadVectorEnv

WINDOW = 0.12
"""Seconds of a window."""


class Plain(gymnasium.Env[Any, Any]):
    """Env that computes for some microseconds."""

    observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (16,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, microseconds: float = 0) -> None:
        self.seconds, self.obs = microseconds * 1e-6, np.zeros(16, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.obs, {}

    def step(self, action: Any) -> Any:
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        return self.obs, 1.0, False, False, self.info()

    def info(self) -> dict[str, Any]:
        return {}


class Note:
    pass


class Infos(Plain):
    """Env whose infos hold an object, a text and a list."""

    def info(self) -> dict[str, Any]:
        return {"object": Note(), "text": "moved", "list": [1, 2, 3]}


class Frames(Plain):
    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)

    def __init__(self) -> None:
        super().__init__(20)
        self.obs = np.zeros((84, 84, 4), np.uint8)


LOADING = threading.Lock()


@cache
def weights() -> np.ndarray:
    """Return the 100 MB that all envs of a process share."""
    return np.ones(100_000_000, np.uint8)


class Loads(Plain):
    """Env that loads 100 MB, once per process."""

    def __init__(self) -> None:
        super().__init__()
        with LOADING:  # otherwise several threads would load at the same time, and each would keep a copy
            self.weights = weights()


CARTPOLE = partial(gymnasium.make, "CartPole-v1")
ROWS: dict[str, tuple[Any, int]] = {
    f"{name} x {n}": (make, n)
    for name, make in {"CartPole": CARTPOLE, "100 us": partial(Plain, 100), "infos": Infos, "frames": Frames}.items()
    for n in (8, 64)
}


def compare(make: Any, n: int, seconds: float) -> tuple[float, float, float]:
    """Return the steps per second of Thread and of Shmem, and the median ratio."""
    both = [kind([make] * n) for kind in (ThreadVectorEnv, ShmemVectorEnv)]
    actions = list(np.random.default_rng(0).integers(0, 2, (16, n)))
    rates: list[list[float]] = [[], []]
    for venv in both:
        venv.reset(seed=0)
        measure(venv, actions)
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(rates[0]) < 5:
        for venv, own in zip(both, rates, strict=True):
            own.append(measure(venv, actions))
    for venv in both:
        venv.close()
    thread, shmem = rates
    return statistics.median(thread), statistics.median(shmem), statistics.median(map(np.divide, thread, shmem))


def measure(venv: Any, actions: list[np.ndarray]) -> float:
    rounds, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < WINDOW:
        venv.step(actions[rounds % len(actions)], autoreset=True)
        rounds += 1
    return rounds * len(venv) / passed


def resident() -> float:
    """Return the MB of this process and its children. Shared pages count once."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(process.memory_full_info().pss for process in processes) / 1e6


def memory(make: Any, kind: Any, workers: int | None) -> float:
    before = resident()
    with kind([make] * 64, num_workers=workers) as venv:
        venv.reset(seed=0)
        for _ in range(20):
            venv.step(np.zeros(64, np.int64), autoreset=True)
        return resident() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"some of {list(ROWS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each row")
    parser.add_argument("--memory", action="store_true", help="the memory of 64 envs instead")
    options = parser.parse_args()
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"Python {sys.version.split()[0]}, the interpreter lock is {'on' if locked else 'off'}")
    if options.memory:
        for name, make in {"CartPole": CARTPOLE, "100 MB": Loads}.items():
            for kind in (ShmemVectorEnv, ThreadVectorEnv):  # threads last, because their data stay in this process
                for workers in (None, 64):
                    mb = memory(make, kind, workers)
                    print(f"{name:10} {kind.__name__:16} {workers or 'default':>7} workers {mb:8.0f} MB", flush=True)
                    weights.cache_clear()
        return
    for name, (make, n) in ROWS.items():
        if not options.rows or name in options.rows:
            thread, shmem, ratio = compare(make, n, options.seconds)
            print(f"{name:14} Thread {thread:9,.0f}  Shmem {shmem:9,.0f}  ratio {ratio:5.2f}", flush=True)


if __name__ == "__main__":
    # Import this module by name, so that workers import the classes of the envs instead of getting copies.
    from benchmarks import threads

    threads.main()
