"""`python -m benchmarks.micro`: costs of the primitives that a vector env uses, on this machine.

Each figure is the median of several batches, followed by the fastest and the slowest batch. Round trips are exchanges
between two processes, with their median and 99th percentile.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import time
from collections.abc import Callable
from multiprocessing.synchronize import Semaphore
from statistics import median
from typing import Any

import numpy as np

from benchmarks.envs import EnvSpec

BATCHES = 15
ROUND_TRIPS = 3000
SPINS = 2000


def main() -> int:
    for title, seconds in _in_process().items():
        costs = [1e6 * value for value in seconds]
        print(f"{title:58s} {median(costs):8.3f} us  ({min(costs):.3f}-{max(costs):.3f})")
    for title, spins, where in (
        ("semaphore round trip, both block, placed by the kernel", 0, "anywhere"),
        ("semaphore round trip, both block, on two CPUs", 0, "apart"),
        (f"semaphore round trip, {SPINS} tries with yield, on two CPUs", SPINS, "apart"),
        ("semaphore round trip, both block, on one CPU", 0, "together"),
        (f"semaphore round trip, {SPINS} tries with yield, on one CPU", SPINS, "together"),
    ):
        trips = _ping_pong(spins, where)
        p50, p99 = 1e6 * np.percentile(trips, (50, 99))
        print(f"{title:58s} {p50:8.1f} us  (p99 {p99:.1f})")
    return 0


def _in_process() -> dict[str, list[float]]:
    lock: Any = mp.Semaphore(0)._semlock  # type: ignore[attr-defined]

    def release_acquire() -> None:
        lock.release()
        lock.acquire(False)

    flags = memoryview(bytearray(8))
    reward = np.zeros(64)
    obs = np.zeros((64, 4), np.float32)
    return {
        "CartPole-v1 from gym.make, one step": _cartpole_step(),
        "os.sched_yield": _cost(os.sched_yield),
        "semaphore: release, then acquire(False) that succeeds": _cost(release_acquire),
        "semaphore: acquire(False) that fails": _cost(lambda: lock.acquire(False)),
        "a lambda that does nothing (part of the line above)": _cost(lambda: None),
        "memoryview of flags: tobytes": _cost(flags.tobytes),
        "time.perf_counter": _cost(time.perf_counter),
        "copy of (64, 4) float32": _cost(obs.copy),
        "copy of 64 float64": _cost(reward.copy),
    }


def _cost(call: Callable[[], Any], count: int = 20_000) -> list[float]:
    """Return the seconds of a call in each batch, without the time of the empty loop."""
    clock = time.perf_counter
    costs = []
    for _ in range(BATCHES):
        begun = clock()
        for _ in range(count):
            pass
        empty = clock() - begun
        begun = clock()
        for _ in range(count):
            call()
        costs.append((clock() - begun - empty) / count)
    return costs


def _cartpole_step(count: int = 5000) -> list[float]:
    env = EnvSpec("cartpole").env_fns(1)[0]()
    env.reset(seed=0)
    actions = list(np.random.default_rng(0).integers(0, 2, count))
    costs = []
    for _ in range(BATCHES):
        begun = time.perf_counter()
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        costs.append((time.perf_counter() - begun) / count)
    return costs


def _ping_pong(spins: int, where: str) -> list[float]:
    """Return the seconds of each exchange: this process releases a semaphore, and a second process releases another."""
    context = mp.get_context("fork")
    ping, pong = context.Semaphore(0), context.Semaphore(0)
    usable = os.sched_getaffinity(0)
    here, there = {
        "anywhere": (usable, usable),
        "apart": ({min(usable)}, {max(usable)}),
        "together": ({min(usable)}, {min(usable)}),
    }[where]
    partner = context.Process(target=_answer, args=(ping, pong, spins, there), daemon=True)
    partner.start()
    os.sched_setaffinity(0, here)
    try:
        trips = []
        for index in range(ROUND_TRIPS):
            begun = time.perf_counter()
            ping.release()
            _take(pong, spins)
            if index >= ROUND_TRIPS // 10:  # the first exchanges warm up
                trips.append(time.perf_counter() - begun)
        return trips
    finally:
        os.sched_setaffinity(0, usable)
        partner.join()


def _answer(ping: Semaphore, pong: Semaphore, spins: int, where: set[int]) -> None:
    os.sched_setaffinity(0, where)
    for _ in range(ROUND_TRIPS):
        _take(ping, spins)
        pong.release()


def _take(semaphore: Semaphore, spins: int) -> None:
    """Wait like a worker or its parent: try `spins` times with a yield in between, then block."""
    acquire = semaphore._semlock.acquire  # type: ignore[attr-defined]
    for _ in range(spins):
        if acquire(False):
            return
        os.sched_yield()
    acquire(True)


if __name__ == "__main__":
    raise SystemExit(main())
