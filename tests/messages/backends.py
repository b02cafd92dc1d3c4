"""Messages of backends: workers of commands, coroutine envs, env functions that cannot be sent."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from operator import methodcaller as call
from typing import Any

import gymnasium

from collector import SyncDataCollector
from tests.messages.rows import NOTHING, Subject, each, rows_for
from tests.support.command_envs import Elsewhere
from tests.support.commands import COMMAND
from tests.support.coroutine_envs import CoroutineVectorEnv, Gated
from tests.support.faulty import Counter, counters
from vecenv import (
    DummyVectorEnv,
    EnvContractError,
    ShmemVectorEnv,
    SubprocVectorEnv,
    ThreadVectorEnv,
    TransformedEnv,
    tune,
)
from vecenv.testing import CountingEnv
from vecenv.transforms import RewardScaling

NAME = "tests.support.command_envs:Elsewhere"
GATED = [partial(Gated, 0), partial(Gated, 1)]


def under_a_lock() -> Any:
    lock = threading.Lock()

    def make(held: Any) -> Any:
        with lock:
            return Counter(0)

    return make


def _steps(venv: Any) -> None:
    venv.reset()
    venv.step([0] * len(venv))


def commanded(*env_fns: Any, command: Any = COMMAND, **options: Any) -> SubprocVectorEnv:
    return SubprocVectorEnv(env_fns or [NAME], worker_command=command, **options)


class SeedsByCoroutine(Gated):
    async def seed(self, seed: int) -> None:
        await asyncio.sleep(0)


def _seeds() -> ThreadVectorEnv:
    return ThreadVectorEnv([partial(Gated, 0), partial(SeedsByCoroutine, 1)])


class NoReward(CountingEnv):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, None, *rest


def threads() -> object:
    return SyncDataCollector([CountingEnv] * 2, frames_per_batch=20, backend="threads")


def shared_worker() -> object:
    return CoroutineVectorEnv(counters(6), every=2, num_workers=2)


def paused(pause: Any) -> object:
    return tune([CountingEnv], pause=pause)


def wrapped(wrap: Any) -> Any:
    return ThreadVectorEnv([lambda: wrap(Gated(0))])


def sent(large: Any) -> Any:
    return ShmemVectorEnv([partial(Counter, large), partial(under_a_lock(), large)])


NOT_BY_NAME = lambda: None, 3, ("a", 3), partial(print, 1)
OF_PROCESSES = "context", "share_memory", "affinity"
TIME_LIMIT = partial(gymnasium.wrappers.TimeLimit, max_episode_steps=5)
TRANSFORMED = partial(TransformedEnv, transform=RewardScaling(1.0, 2.0))
ROWS = [
    *rows_for(
        NOTHING,
        (each(NOT_BY_NAME, commanded), TypeError, "gets env functions by name", "module:function", "a gymnasium id"),
        (lambda: commanded(Elsewhere), TypeError, f'Write "{NAME}"'),
        (each(("ssh host", [], 3), lambda words: commanded(command=words)), TypeError, "must be a list of words, got "),
        (lambda: commanded(command=[1]), TypeError, "worker_command must be a list of texts, got 1"),
        (each(OF_PROCESSES, lambda name: commanded(**{name: 1})), TypeError, "VALUE is for worker processes of this"),
        # Large functions go another way to the worker.
        (each((0, b"a" * (2 << 20)), sent), TypeError, "env_fns[1] cannot be sent to", "lock", 'context="fork"'),
        (shared_worker, ValueError, "env 0 is a coroutine env, and shares a worker with env 1", "or pass 6"),
        (each((DummyVectorEnv, ShmemVectorEnv), lambda kind: kind(GATED)), TypeError, "use ThreadVectorEnv, or"),
        (each((TIME_LIMIT, TRANSFORMED), wrapped), TypeError, "does not await the reset and step of a coroutine env"),
        (each((-1e-3, 60, "1"), paused), ValueError, "pause must be a number of seconds, at least 0 and below 60, got"),
        (lambda: tune([CountingEnv], seconds=None), ValueError, "seconds must be a positive number", "got None"),
        (threads, ValueError, "backend must be one of ", "'auto'", ", or None for ", "; got 'threads'"),
    ),
    *rows_for(
        Subject(commanded, _steps),
        ([call("call", "x", object()), call("reset", options={"x": print})], TypeError, "env 0 cannot be sent to its"),
    ),
    *rows_for(
        Subject(_seeds, lambda venv: venv.reset(seed=3)),
        (lambda venv: venv.seed(3), TypeError, "is a coroutine function", "leave seed() out", "env 1"),
    ),
    *rows_for(
        Subject(lambda: DummyVectorEnv([NoReward])),
        (_steps, EnvContractError, "reward None", "return 0.0 until then. If a call failed, raise"),
    ),
]
