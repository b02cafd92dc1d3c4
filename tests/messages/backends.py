"""Messages of backends: workers of commands, coroutine envs, env functions that cannot be sent."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from collector import AsyncDataCollector, SyncDataCollector
from tests.messages.rows import NOTHING, Subject, rows_for
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


OF_A_COMMAND = Subject(commanded, _steps)


class SeedsByCoroutine(Gated):
    async def seed(self, seed: int) -> None:
        await asyncio.sleep(0)


def _seeds() -> ThreadVectorEnv:
    return ThreadVectorEnv([partial(Gated, 0), partial(SeedsByCoroutine, 1)])


class NoReward(CountingEnv):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, None, *rest


BY_NAME = TypeError, "gets env functions by name", "module:function", "a gymnasium id"
WRAPPERS: list[Any] = [
    partial(gymnasium.wrappers.TimeLimit, max_episode_steps=5),
    gymnasium.wrappers.OrderEnforcing,
    gymnasium.Wrapper,
    lambda env: TransformedEnv(env, RewardScaling(1.0, 2.0)),
]
PAUSE = "pause must be a number of seconds, at least 0 and below 60, got "
WRONG_TUNE: list[tuple[Any, ...]] = [
    ({"env_fns": []}, ValueError, "env_fns is empty"),
    ({"env_fns": "CartPole-v1"}, TypeError, "env_fns must be a sequence of callables"),
    *(({"pause": pause}, ValueError, f"{PAUSE}{pause!r}") for pause in (-1e-3, float("nan"), "1")),
    *(({"seconds": each}, ValueError, "seconds must be a positive number of seconds") for each in (0, None)),
]
ROWS = [
    *rows_for(
        NOTHING,
        *((lambda _, fn=fn: commanded(fn), *BY_NAME) for fn in (lambda: None, print, 3, ("a", 3), partial(print, 1))),
        (lambda _: commanded(Elsewhere), TypeError, f'Write "{NAME}"'),
        *(
            (lambda _, command=command: commanded(command=command), TypeError, "worker_command must be a list")
            for command in ("ssh host", [], [1], 3)
        ),
        *(
            (lambda _, option=option: commanded(**option), TypeError, "worker processes of this program")
            for option in ({"context": "fork"}, {"share_memory": True}, {"affinity": True})
        ),
        *(
            (
                lambda _, large=large: ShmemVectorEnv([partial(Counter, large), partial(under_a_lock(), large)]),
                TypeError,
                "env_fns[1] cannot be sent to a worker: ",
                "lock",
                'context="fork"',
            )
            for large in (0, np.ones(40_000), b"a" * (2 << 20))
        ),
        (
            lambda _: CoroutineVectorEnv(counters(6), every=2, num_workers=2),
            ValueError,
            "env 0 is a coroutine env, and shares a worker with env 1",
            "or pass 6",
        ),
        *(
            (
                lambda _, cls=cls: cls([partial(Gated, 0), partial(Gated, 1)]),
                TypeError,
                "coroutine functions (async def): use ThreadVectorEnv, or backend='thread'",
            )
            for cls in (DummyVectorEnv, ShmemVectorEnv)
        ),
        *(
            (
                lambda _, wrap=wrap: ThreadVectorEnv([lambda: wrap(Gated(0))]),
                TypeError,
                "does not await the reset and step of a coroutine env. Return the env",
            )
            for wrap in WRAPPERS
        ),
    ),
    *rows_for(
        NOTHING,
        *((lambda _, given=given: tune(**{"env_fns": [CountingEnv], **given}), *says) for given, *says in WRONG_TUNE),
        *(
            (
                lambda _, kind=kind: kind([CountingEnv] * 2, frames_per_batch=20, backend="threads"),
                ValueError,
                "backend must be one of ",
                "'auto'",
                ", or None for ",
                "; got 'threads'",
            )
            for kind in (SyncDataCollector, AsyncDataCollector)
        ),
    ),
    *rows_for(
        OF_A_COMMAND,
        (
            lambda venv: venv.call("method", object()),
            TypeError,
            "env 0 cannot be sent to its worker: a builtins.object cannot cross",
        ),
        (lambda venv: venv.reset(options={"function": print}), TypeError, "cannot be sent"),
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
