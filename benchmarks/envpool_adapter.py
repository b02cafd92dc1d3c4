"""Measure how much of EnvPool's speed EnvPoolVectorEnv keeps, with 64 CartPole-v1 envs.

python -m benchmarks.envpool_adapter [--rounds 300] [--turns 41]

The bare pool and the vector env step all envs with the same actions. The pool resets finished envs by itself, and the
vector env resets finished envs on request. Each turn makes a new pool for each, because the speed of a pool depends on
the CPUs on which its threads run. The output has the medians of the speeds, and of the ratios within a turn.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from vecenv import EnvPoolVectorEnv
from vecenv.envs.envpool_env import make_pool

ENVS = 64
WARM_UP = 50


def bare(actions: np.ndarray) -> float:
    """Return the steps per second of the pool."""
    pool = make_pool("CartPole-v1", ENVS, seed=0)
    pool.reset()

    def step(action: np.ndarray) -> np.ndarray:
        _, _, terminated, truncated, _ = pool.step(action)
        return np.logical_or(terminated, truncated)

    return _speed(step, actions)


def adapted(actions: np.ndarray) -> float:
    """Return the steps per second of the vector env."""
    with EnvPoolVectorEnv.make("CartPole-v1", ENVS, seed=0) as venv:
        venv.reset()
        done = np.zeros(ENVS, dtype=np.bool_)

        def step(action: np.ndarray) -> None:
            nonlocal done
            _, _, terminated, truncated, _ = venv.step(action, reset=done)
            done = np.logical_or(terminated, truncated)

        return _speed(step, actions)


def _speed(step: Callable[[np.ndarray], Any], actions: np.ndarray) -> float:
    for action in actions[:WARM_UP]:
        step(action)
    gc.collect()
    begin = time.perf_counter()
    for action in actions[WARM_UP:]:
        step(action)
    return actions[WARM_UP:].size / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="in each turn")
    parser.add_argument("--turns", type=int, default=41)
    arguments = parser.parse_args()
    actions = np.random.default_rng(0).integers(0, 2, (WARM_UP + arguments.rounds, ENVS))
    sides = [bare, adapted]
    speeds = []
    for _ in range(arguments.turns):
        result = {side: side(actions) for side in sides}
        speeds.append([result[bare], result[adapted]])
        sides.reverse()  # so that both are first equally often
    pool, venv = np.median(speeds, axis=0)
    low, middle, high = np.quantile([b / a for a, b in speeds], [0.25, 0.5, 0.75])
    print(f"bare pool {pool:,.0f} steps/s, EnvPoolVectorEnv {venv:,.0f} steps/s")
    print(f"of the speed kept: {middle:.2f} (quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
