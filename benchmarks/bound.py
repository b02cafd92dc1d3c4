"""Measure the bound: W independent processes that step bare envs and never communicate.

No vector env of Python processes can be faster on the same cores.
"""

from __future__ import annotations

import itertools
import multiprocessing as mp
import time
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.envs import EnvFn, EnvSpec, draw_actions
from benchmarks.sample import Sample

_START_DELAY = 0.1  # seconds from the command to the common start; the workers warm up meanwhile


class Bound:
    """`workers` processes, each with a block of the `count` envs, that step in the same window of time.

    bound = Bound(EnvSpec("cartpole"), count=64, workers=2)
    print(bound.measure(1.0).rate)
    bound.close()
    """

    def __init__(self, spec: EnvSpec, count: int, workers: int) -> None:
        context = mp.get_context("spawn")
        blocks = _split(spec.env_fns(count), workers)
        self._pipes: list[Connection] = []
        self._processes = []
        first = 0
        for block in blocks:
            here, there = context.Pipe()
            process = context.Process(target=_bound_worker, args=(there, block, count, first), daemon=True)
            process.start()
            there.close()  # so that a dead worker reads as the end of the file
            self._pipes.append(here)
            self._processes.append(process)
            first += len(block)
        for pipe in self._pipes:
            pipe.recv()

    def measure(self, seconds: float) -> Sample:
        """Step all workers for the same `seconds`. The rate is the sum of the workers' rates."""
        start = time.perf_counter() + _START_DELAY
        for pipe in self._pipes:
            pipe.send((start, start + seconds))
        replies = [pipe.recv() for pipe in self._pipes]
        rate = sum(steps / wall for steps, wall in replies)
        return Sample(steps=round(rate * seconds), calls=0, wall=seconds, cpu_main=0.0)

    def close(self) -> float:
        begun = time.perf_counter()
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
        return time.perf_counter() - begun


def _split(env_fns: list[EnvFn], parts: int) -> list[list[EnvFn]]:
    size, extra = divmod(len(env_fns), parts)
    cuts = [index * size + min(index, extra) for index in range(parts + 1)]
    return [env_fns[begin:end] for begin, end in itertools.pairwise(cuts)]


def _bound_worker(pipe: Connection, env_fns: list[EnvFn], total: int, first: int) -> None:
    envs = [env_fn() for env_fn in env_fns]
    for index, env in enumerate(envs):
        env.reset(seed=first + index)
    # numpy scalars, because vector envs pass numpy scalars to envs
    columns = draw_actions(total)[:, first : first + len(envs)]
    rows = [list(row) for row in columns]
    pipe.send("ready")
    position = 0
    while True:
        try:
            start, stop = pipe.recv()
        except EOFError:
            return
        _, position, begun = _step_until(envs, rows, position, start)
        steps, position, ended = _step_until(envs, rows, position, stop)
        pipe.send((steps, ended - begun))


def _step_until(envs: list[Any], rows: list[list[Any]], position: int, stop: float) -> tuple[int, int, float]:
    """Step every env in turn until the clock passes `stop`. Resets take time, but are not counted."""
    clock = time.perf_counter
    pairs = list(enumerate(envs))
    rounds = 0
    now = clock()
    while now < stop:
        actions = rows[position]
        for index, env in pairs:
            _, _, terminated, truncated, _ = env.step(actions[index])
            if terminated or truncated:
                env.reset()
        position = (position + 1) % len(rows)
        rounds += 1
        now = clock()
    return rounds * len(envs), position, now
