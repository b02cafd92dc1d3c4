"""Compare the speed of `vecenv.SyncVectorEnv` with gymnasium's, in the same process.

    python -m benchmarks.sync_steps [--seconds 4] [ROW ...]

Short windows of both alternate, so that a busy machine disturbs both. Each pair gives a ratio of CPU times, and the
table has the median ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import vecenv

WINDOW = 0.05
"""CPU seconds of a window."""


class Empty(gymnasium.Env):
    """Env that does nothing, so the vector env takes all the time. Infos hold an int, an array and a nested dict."""

    def __init__(self, text: bool) -> None:
        box = spaces.Box(-1, 1, (16,), np.float32)
        self.observation_space = spaces.Dict({"a": box, "b": spaces.Text(20)}) if text else box
        self.action_space = spaces.Discrete(2)
        row = np.zeros(16, np.float32)
        self._obs: Any = {"a": row, "b": "go to the red door"} if text else row
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self._obs, self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._obs, 1.0, False, self._steps == 500, self._info()

    def _info(self) -> dict[str, Any]:
        return {"count": self._steps, "array": np.zeros(1 + self._steps % 3), "nested": {"x": 1.0, "y": self._steps}}


def registered(name: str) -> Callable[[], gymnasium.Env]:
    return partial(gymnasium.make, name)


ROWS: dict[str, tuple[Callable[[], gymnasium.Env], int]] = {
    "CartPole x 8": (registered("CartPole-v1"), 8),
    "CartPole x 64": (registered("CartPole-v1"), 64),
    "Pendulum x 8": (registered("Pendulum-v1"), 8),
    "HalfCheetah x 8": (registered("HalfCheetah-v5"), 8),
    "infos x 8": (partial(Empty, False), 8),
    "infos x 64": (partial(Empty, False), 64),
    "Dict and infos x 8": (partial(Empty, True), 8),
    "Dict and infos x 64": (partial(Empty, True), 64),
}


def ratio(make: Callable[[], gymnasium.Env], n: int, seconds: float) -> tuple[float, float]:
    """Return the median ratio of our speed to gymnasium's, and the microseconds of our step."""
    both = [vecenv.SyncVectorEnv([make] * n), gymnasium.vector.SyncVectorEnv([make] * n)]
    for envs in both:
        envs.reset(seed=0)
        envs.action_space.seed(0)
    actions = [both[0].action_space.sample() for _ in range(64)]
    steps = 4
    while cpu_time(both[0], actions, steps) < WINDOW:
        steps *= 2
    pairs, end = [], time.monotonic() + seconds
    while time.monotonic() < end or len(pairs) < 5:
        order = both if len(pairs) % 2 else both[::-1]
        times = {id(envs): cpu_time(envs, actions, steps) for envs in order}
        pairs.append((times[id(both[0])], times[id(both[1])]))
    for envs in both:
        envs.close()
    ours = statistics.median(a for a, _ in pairs)
    return statistics.median(b / a for a, b in pairs), ours / steps * 1e6


def cpu_time(envs: Any, actions: list[Any], steps: int) -> float:
    begin = time.process_time()
    for k in range(steps):
        envs.step(actions[k % len(actions)])
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"some of {list(ROWS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each row")
    options = parser.parse_args()
    for name, (make, n) in ROWS.items():
        if not options.rows or name in options.rows:
            share, micro = ratio(make, n, options.seconds)
            print(f"{name:22} {share:5.2f} of gymnasium's speed, {micro:8.1f} us a step", flush=True)


if __name__ == "__main__":
    main()
