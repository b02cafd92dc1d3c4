"""Messages of faults: values that cannot travel, envs that have failed, and collectors that collect or have failed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller as call
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from collector import AsyncDataCollector, SyncDataCollector
from tests.messages.rows import NOTHING, Row, Subject, rows_for
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


def collected(kind: Any, *fns: Callable[[], Any]) -> None:
    with kind(DummyVectorEnv(fns), zeros, frames_per_batch=40) as collector:
        collector.rollout()


def _collector(kind: Any) -> Any:
    return kind(DummyVectorEnv(countdowns(3, 4)), zeros, frames_per_batch=20)


def _collects(collector: Any) -> None:
    assert collector.frames == 0
    assert collector.collect(n_episode=4).lens.tolist() == [3, 3, 4, 4]


def in_batch(use: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call that collects a batch, in which a hook makes the call `use`."""
    return lambda collector: collector.collect(n_step=20, on_step=lambda step: use(collector))


def _used_after_shut_down(collector: Any) -> Any:
    """Shut the collector down in a batch, and use it again."""
    try:
        in_batch(call("shutdown"))(collector)
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


def _loads(collector: Any) -> None:
    collector.load_state_dict(collector.state_dict() | {"frames": 99})


CART_POLE = partial(gymnasium.make, "CartPole-v1")
PAYS_NAN = partial(PaysNan, 9)


def pays_two() -> Any:
    return PaysTwo(CART_POLE())


OTHER_CALLS: list[Any] = [
    call("next"),
    call("collect", n_episode=2),
    call("reset", 0, seed=1),
    call("set_seed", 0),
    _loads,
]


def of_collector(kind: Any) -> list[Row]:
    """Return the rows of a class of collectors."""
    made = partial(_collector, kind)
    return [
        *rows_for(
            Subject(made, _collects),
            ([in_batch(use) for use in OTHER_CALLS], RuntimeError, "this collector is collecting a batch"),
        ),
        *rows_for(
            Subject(made),
            (in_batch(call("shutdown")), RuntimeError, "the collector was shut down during this batch"),
            (_used_after_shut_down, RuntimeError, "the collector is shut down; make a new"),
            (_fails_for_good, ZeroDivisionError, "shut down because of this exception: its vector env is closed"),
            (_used_after_it_failed, RuntimeError, "was shut down after ZeroDivisionError; make a new collector"),
        ),
        *rows_for(
            NOTHING,
            (
                lambda: collected(kind, PAYS_NAN),
                ValueError,
                "env 0 returned a reward of NaN in step 2 of its episode 0",
            ),
            (lambda: collected(kind, CART_POLE, pays_two), EnvContractError, "env 1: step() returned a reward of"),
        ),
    ]


def _sends(what: Any) -> Callable[[Any], Any]:
    return call("step", ["a", what, "a"])


SET_ODD = call("set_env_attr", "odd", Unpicklable())
CANNOT_BE_SENT = "the action or argument for env 0 cannot be sent to its worker: "
CANNOT_BE_READ = "the action for env 1 cannot be read in"
NO_LOCK = "cannot pickle '_thread.lock'"
ROWS = [
    *rows_for(
        Subject(_workers, _is_untouched),
        (call("step", ["a", "a", Unpicklable()]), TypeError, "for env 2 cannot be sent to its worker", NO_LOCK),
        ([call("reset", options={"odd": Unpicklable()}), SET_ODD], TypeError, CANNOT_BE_SENT + NO_LOCK),
        (call("reset", options={"odd": RaisesAtPickle()}), TypeError, CANNOT_BE_SENT + "no pickling today"),
    ),
    *rows_for(
        Subject(_workers, _has_lost_env_1),
        (_sends(RaisesAtUnpickle()), TypeError, CANNOT_BE_READ, "no unpickling here"),
        (_sends(ExitsAtUnpickle()), TypeError, CANNOT_BE_READ, "out, while unpickling"),
    ),
    *rows_for(
        Subject(_too_small_a_limit),
        (call("step", [0], autoreset=True), ValueError, "the new worker of envs [0] already has", "pass a larger size"),
    ),
    *rows_for(
        Subject(_with_failed_env, _is_still_failed),
        (call("step", [0, 0]), ValueError, "boom", "env 1 failed in an earlier call and was not stepped"),
    ),
    *of_collector(SyncDataCollector),
    *of_collector(AsyncDataCollector),
]
