"""Step a vector env. Before each round, the caller computes for a while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from benchmarks.envs import draw_actions
from benchmarks.loops.vector_envs import GYMNASIUM


def step_after_pauses(
    vector_env: str, env_id: str, num_envs: int, pause: float, **env_kwargs: Any
) -> Iterator[tuple[int, float]]:
    """Before each round, compute in a Python loop for `pause` seconds."""
    envs = GYMNASIUM[vector_env](env_id, num_envs, **env_kwargs)
    try:
        envs.reset(seed=0)
        for action in cycle(draw_actions(num_envs)):
            began = now = time.perf_counter()
            while now < began + pause:
                now = time.perf_counter()
            envs.step(action)
            yield num_envs, now - began
    finally:
        envs.close()
