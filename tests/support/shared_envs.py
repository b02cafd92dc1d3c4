"""Envs that share state, in a module that workers import."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np

from vecenv import SharedState, TransformedEnv
from vecenv.testing import CountingEnv
from vecenv.transforms import VecNorm


class Counts:
    """State that counts resets and steps. It can also replace a transform."""

    def __init__(self, width: int = 2, first: float = 0.0) -> None:
        self.state = SharedState({"calls": np.zeros((), np.int64), "sums": np.full(width, first)})

    def shared_state(self) -> Mapping[str, np.ndarray]:
        return self.state.read()

    def bind_shared_state(self, state: SharedState) -> None:
        self.state = state

    def count(self) -> None:
        with self.state.update() as arrays:
            arrays["calls"] += 1
            arrays["sums"] = arrays["sums"] + 0.5


class Counted(gymnasium.Wrapper):
    """Wrapper that counts resets and steps in shared state, and reports the total of all envs."""

    def __init__(self, env: gymnasium.Env, width: int = 2, first: float = 0.0) -> None:
        super().__init__(env)
        self.counts = Counts(width, first)
        self.shared_state, self.bind_shared_state = self.counts.shared_state, self.counts.bind_shared_state

    def calls(self) -> int:
        return int(self.counts.state.read()["calls"])

    def own_pid(self) -> int:
        return os.getpid()

    def reset(self, **kwargs: Any) -> Any:
        self.counts.count()
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.counts.count()
        return self.env.step(action)


class Transformed(gymnasium.Wrapper):
    """Env with transforms, like TransformedEnv."""

    def __init__(self, env: gymnasium.Env, transform: Any) -> None:
        super().__init__(env)
        self.transform = transform


class Chain:
    def __init__(self, *parts: Any) -> None:
        self.transforms = list(parts)


def counted(env_id: int = 0, length: int = 5, width: int = 2, first: float = 0.0) -> gymnasium.Env:
    return Counted(CountingEnv(env_id, length=length, infos=False), width, first)


def normalised(decay: float) -> TransformedEnv:
    return TransformedEnv(CountingEnv(length=5), VecNorm(["observation"], decay=decay))


def update_often(creator: Any, times: int, die_at: int | None, ready: Any) -> None:
    """Update the state many times, as the body of a process. The process kills itself in update `die_at`."""
    state = creator().counts.state
    ready.wait(30)
    for k in range(times):
        with state.update() as arrays:
            arrays["sums"] += 1
            if k == die_at:
                os.kill(os.getpid(), 9)
            arrays["calls"] += 1


def step_env(creator: Any, steps: int) -> None:
    env = creator()
    env.reset()
    for _ in range(steps):
        env.step(0)


def add_until(state: SharedState, leave: Any) -> None:
    while not leave.is_set():
        with state.update() as arrays:
            arrays["a"] += 1
            arrays["b"] += 1


def hold(creator: Any, entered: Any, leave: Any) -> None:
    """Count a call, in an update that lasts until `leave` is set."""
    with creator().counts.state.update() as arrays:
        arrays["calls"] += 1
        entered.set()
        leave.wait(30)


def run_all(
    processes: Iterable[multiprocessing.process.BaseProcess], then: Callable[[], Any] = lambda: None
) -> list[int | None]:
    """Run processes, call `then` when all have started, and return the exit codes."""
    started = list(processes)
    for process in started:
        process.start()
    then()
    for process in started:
        process.join(60)
    codes = [process.exitcode for process in started]
    for process in started:
        process.close()
    return codes
