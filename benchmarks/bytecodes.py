"""`python -m benchmarks.bytecodes`: the number of Python bytecodes in one step, for the thread that calls `step`.

The number is equal on a busy machine, and differs between versions of Python. C code counts as zero. It is the fewest
of several steps: the workers are awake at the start of the round, and all answers have arrived when the caller first
looks. Each line says how many calls of Python functions contain the bytecodes.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv import AsyncVectorEnv, DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, TransformedVectorEnv
from vecenv.backends.ipc import waiting

ENVS, WORKERS, STEPS = 8, 2, 30
PAUSES = (1e-4, 4e-4, 0.0)
"""Seconds that the caller waits at each line of a counted step, so that the workers answer meanwhile."""
LOOK = 5e-4
"""Seconds between two looks of a worker. Its hundreds of looks outlast the pauses."""


class Still(gymnasium.Env):
    """Env without ends of episodes and infos. Its worker waits longer before it sleeps."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)
    obs = np.zeros(4, np.float32)

    def __init__(self, caller: int) -> None:
        if os.getpid() != caller:
            os.sched_yield = partial(time.sleep, LOOK)
            waiting.SLICE = math.inf

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.obs, 1.0, False, False, {}


def bytecodes(step: Callable[[Any], Any], actions: Any, pause: float = 0.0) -> tuple[int, int]:
    """Return the bytecodes of `step(actions)`, and the number of calls of Python functions."""
    opcodes = calls = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal opcodes, calls
        if event == "opcode":
            opcodes += 1
        elif event == "call":
            calls += 1
            frame.f_trace_opcodes = True
        elif event == "line" and pause:
            time.sleep(pause)
        return trace

    before = sys.gettrace()
    gc.disable()  # finalizers would be counted too
    try:
        sys.settrace(trace)
        step(actions)
    finally:
        sys.settrace(before)
        gc.enable()
    return opcodes, calls


def fewest_bytecodes(venv: Any) -> tuple[int, int]:
    actions = np.zeros(ENVS, np.int64)
    venv.reset()
    found = []
    for number in range(STEPS):
        for _ in range(3):  # after a round as long as a counted one, the caller may sleep immediately
            venv.step(actions)
        found.append(bytecodes(venv.step, actions, PAUSES[number % len(PAUSES)]))
    return min(found)


def main() -> int:
    waiting.SLICE = math.inf  # other programs end no search for answers
    kinds: dict[str, Callable[[Any], Any]] = {
        **{kind.__name__: partial(kind, num_workers=WORKERS) for kind in (ShmemVectorEnv, SubprocVectorEnv)},
        "AsyncVectorEnv": partial(AsyncVectorEnv, num_workers=WORKERS),
        "DummyVectorEnv": DummyVectorEnv,
        "TransformedVectorEnv(DummyVectorEnv)": lambda env_fns: TransformedVectorEnv(DummyVectorEnv(env_fns)),
    }
    for name, kind in kinds.items():
        with contextlib.closing(kind([partial(Still, os.getpid())] * ENVS)) as venv:
            opcodes, calls = fewest_bytecodes(venv)
        print(f"{name:38s} {opcodes:6,} bytecodes in {calls:3} calls per step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
