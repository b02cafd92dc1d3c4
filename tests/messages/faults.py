"""Messages of faults: values that cannot travel, envs that have failed, and collectors that collect or have failed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from collector import AsyncDataCollector, SyncDataCollector
from tests.messages.rows import NOTHING, Subject, rows_for
from tests.support.collector_envs import countdowns, zeros
from tests.support.countdown import Countdown, PaysTwo
from tests.support.faulty import Counter, RaisesOnStep, counters
from tests.support.leaky import Leaky
from tests.support.oddities import ExitsAtUnpickle, RaisesAtPickle, RaisesAtUnpickle, Unpicklable
from vecenv import DummyVectorEnv, EnvContractError, ShmemVectorEnv


class TakesText(Counter):
    """Env with texts as actions."""

    action_space = spaces.Text(9)

    def observe(self, action: Any) -> Any:
        return super().observe(-1)


def _workers() -> ShmemVectorEnv:
    venv = ShmemVectorEnv([partial(TakesText, i) for i in range(3)], num_workers=2)
    venv.reset()
    return venv


def _is_untouched(venv: Any) -> None:
    assert (venv.waiting_id, venv.failed_id, venv.get_env_attr("t")) == ([], [], [0] * 3)
    assert venv.step(["a"] * 3)[0][:, :3].tolist() == [[0, 1, 1], [1, 1, 1], [2, 1, 1]]


def _has_lost_env_1(venv: Any) -> None:
    assert (venv.waiting_id, venv.failed_id) == ([], [1])
    venv.reset([1])
    assert venv.get_env_attr("t") == [1, 0, 1]


def holding(odd: Any) -> Callable[[], Any]:
    """Return an env_fn with a closure that holds the object."""
    return lambda: Counter(odd)


def _too_small_a_limit() -> ShmemVectorEnv:
    venv = ShmemVectorEnv([Leaky], recycle_after="1 MB")
    venv.reset()
    return venv


def _with_failed_env() -> DummyVectorEnv:
    venv = DummyVectorEnv(counters(2, env1=partial(RaisesOnStep, at=1)))
    venv.reset()
    try:
        venv.step([0, 0])
    except ValueError:
        return venv
    raise AssertionError("no failure")


def _is_still_failed(venv: Any) -> None:
    assert venv.failed_id == [1]
    venv.reset([1])
    assert venv.failed_id == []


class PaysNan(Countdown):
    """Env with a reward of NaN in the third step."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return (obs, np.nan if self.taken == 3 else reward, *rest)


class PaysItsAction(Countdown):
    def __init__(self) -> None:
        super().__init__(9)
        self.action_space = spaces.Box(-1, 1, (1,))

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(0)
        return (obs, action[0], *rest)


def nan_policy(obs: Any) -> Any:
    return np.full((len(obs), 1), np.nan, np.float32)


def collected(kind: Any, fns: list[Callable[[], Any]], policy: Any = zeros) -> None:
    with kind(DummyVectorEnv(fns), policy, frames_per_batch=40) as collector:
        collector.rollout()


def _collector(kind: Any) -> Any:
    return kind(DummyVectorEnv(countdowns(3, 4)), zeros, frames_per_batch=20)


def _collects(collector: Any) -> None:
    assert collector.frames == 0
    assert collector.collect(n_episode=4).lens.tolist() == [3, 3, 4, 4]


def in_batch(use: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call that collects a batch, in which a hook makes the call `use`."""
    return lambda collector: collector.collect(n_step=20, on_step=lambda step: use(collector))


def shut_down(collector: Any) -> Any:
    """Shut the collector down in a batch, and use it again."""
    try:
        in_batch(lambda collector: collector.shutdown())(collector)
    except RuntimeError:
        collector.rollout()


def _fails_for_good(collector: Any) -> Any:
    """Let a batch fail with nothing left to continue with."""

    def fails(_: Any) -> None:
        collector.env.close()
        raise ZeroDivisionError

    in_batch(fails)(collector)


def _used_after_it_failed(collector: Any) -> Any:
    try:
        _fails_for_good(collector)
    except ZeroDivisionError:
        collector.rollout()


def of_collector(kind: Any) -> list[Any]:
    """Return the rows of a class of collectors."""
    busy = RuntimeError, "this collector is collecting a batch"
    mistakes = rows_for(
        Subject(partial(_collector, kind), _collects),
        (in_batch(lambda it: it.next()), *busy),
        (in_batch(lambda it: it.collect(n_episode=2)), *busy),
        (in_batch(lambda it: it.reset(0, seed=1)), *busy),
        (in_batch(lambda it: it.set_seed(0)), *busy),
        (in_batch(lambda it: it.load_state_dict(it.state_dict() | {"frames": 99})), *busy),
        *([(in_batch(lambda it: it.reset()), *busy)] if kind is AsyncDataCollector else []),
    )
    ends = rows_for(
        Subject(partial(_collector, kind)),
        (in_batch(lambda it: it.shutdown()), RuntimeError, "the collector was shut down during this batch"),
        (shut_down, RuntimeError, "the collector is shut down"),
        (_fails_for_good, ZeroDivisionError, "shut down because of this exception: its vector env is closed"),
        (_used_after_it_failed, RuntimeError, "was shut down after ZeroDivisionError; make a new collector"),
    )
    rewards = rows_for(
        NOTHING,
        (
            lambda _: collected(kind, [partial(Countdown, 9), partial(PaysNan, 9)]),
            ValueError,
            "env 1 returned a reward of NaN in step 2 of its episode 1, for the action 0",
        ),
        (
            lambda _: collected(kind, [PaysItsAction], nan_policy),
            ValueError,
            "for the action [nan] (the policy returned NaN)",
        ),
        (
            lambda _: collected(
                kind, [partial(gymnasium.make, "CartPole-v1"), lambda: PaysTwo(gymnasium.make("CartPole-v1"))]
            ),
            EnvContractError,
            "env 1: step() returned a reward of shape (2,), expected ()",
        ),
    )
    return mistakes + ends + rewards


ROWS = [
    *rows_for(
        Subject(_workers, _is_untouched),
        (lambda venv: venv.step(["a", "a", Unpicklable()]), TypeError, "env 2", "lock"),
        (lambda venv: venv.reset(options={"odd": Unpicklable()}), TypeError, "lock"),
        (lambda venv: venv.reset(options={"odd": RaisesAtPickle()}), TypeError, "no pickling today"),
        (lambda venv: venv.set_env_attr("odd", Unpicklable()), TypeError, "lock"),
    ),
    *rows_for(
        Subject(_workers, _has_lost_env_1),
        *(
            (
                lambda venv, odd=odd: venv.step(["a", odd(), "a"]),
                TypeError,
                "the action for env 1 cannot be read in",
                why,
            )
            for odd, why in ((RaisesAtUnpickle, "no unpickling here"), (ExitsAtUnpickle, "out, while unpickling"))
        ),
    ),
    *rows_for(
        NOTHING,
        (
            lambda _: ShmemVectorEnv([*counters(2), holding(Unpicklable())], num_workers=2),
            TypeError,
            "env_fns[2] cannot be sent to a worker",
            "lock",
        ),
    ),
    *rows_for(
        Subject(_too_small_a_limit),
        (
            lambda venv: venv.step([0], autoreset=True),
            ValueError,
            "the new worker of envs [0] already has",
            "more than recycle_after allows; pass a larger size",
        ),
    ),
    *rows_for(
        Subject(_with_failed_env, _is_still_failed),
        (lambda venv: venv.reset([1], seed="x"), (TypeError, ValueError), "seed"),
        (lambda venv: venv.step([0, 0]), ValueError, "boom", "env 1 failed in an earlier call and was not stepped"),
    ),
    *of_collector(SyncDataCollector),
    *of_collector(AsyncDataCollector),
]
