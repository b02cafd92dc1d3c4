"""Messages of the facades for gymnasium and Stable-Baselines3, and of `make_vec`."""

from __future__ import annotations

import copy
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

from tests.messages.rows import NOTHING, Subject, rows_for
from tests.support.cases import counting, playing
from tests.support.mani_skill_double import ManiSkillDouble
from vecenv import (
    AsyncVectorEnv,
    ClosedError,
    DummyVectorEnv,
    EnvContractError,
    GymnasiumVectorEnv,
    NotStartedError,
    SerialEnv,
    SyncVectorEnv,
    from_gymnasium,
    make_vec,
)
from vecenv.sb3 import DummyVecEnv, SB3VecEnv, SubprocVecEnv
from vecenv.testing import CountingEnv

NEVER = [lambda: 1 / 0] * 2
"""Env functions that raise ZeroDivisionError: the arguments are refused before an env is made."""


class Opened:
    """Context manager that closes a facade."""

    def __init__(self, envs: Any) -> None:
        self.envs = envs

    def __enter__(self) -> Any:
        return self.envs

    def __exit__(self, *_: Any) -> None:
        self.envs.close()


def made(make: Any, do: str = "", *arguments: Any, **options: Any) -> Any:
    """Return a function that makes three envs, resets them, and calls the method `do`."""

    def make_and_do() -> Any:
        envs = make(counting(3, length=3), **options)
        envs.reset()
        if do:
            getattr(envs, do)(*arguments)
        return Opened(envs)

    return make_and_do


def as_before(envs: Any) -> None:
    """Check that no env was reset or stepped, and that the answers of the next step are its own."""
    assert envs.step(np.array([7, 8, 9]))[0][:, 1:].tolist() == [[0, 1, -1, 7], [0, 1, -1, 8], [0, 1, -1, 9]]


def can_be_awaited(envs: Any) -> None:
    assert envs.step_wait()[0][:, 4].tolist() == [7, 8, 9]


GYMNASIUM, SB3 = Subject(made(SyncVectorEnv), as_before), Subject(made(DummyVecEnv), as_before)
STEPPING = Subject(made(SyncVectorEnv, "step_async", [7, 8, 9]), can_be_awaited)
CALLING = Subject(made(SyncVectorEnv, "call_async", "render"), lambda envs: envs.call_wait())
RESETTING = Subject(made(SyncVectorEnv, "reset_async"), lambda envs: envs.reset_wait())
CLOSED = Subject(made(SyncVectorEnv, "close"), lambda envs: envs.close())
SB3_STEPPING = Subject(made(DummyVecEnv, "step_async", np.array([7, 8, 9])), can_be_awaited)
SB3_CLOSED = Subject(made(DummyVecEnv, "close"))


def over(envs: Any) -> Any:
    """Step until the episodes are over, and once more."""
    for _ in range(4):
        envs.step(np.zeros(3, int))


def masked(mask: Any) -> Any:
    return lambda envs: envs.reset(options={"reset_mask": mask})


def around(facade: Any, envs: Any) -> Any:
    """Return a call that makes a facade around these envs, and closes them."""

    def call(_: None) -> None:
        with envs() as venv:
            facade(venv)

    return call


def stepped_by_sb3(venv: Any) -> None:
    envs = SB3VecEnv(venv)
    envs.reset()
    envs.step(np.zeros(len(venv), int))


def unlike(*found: spaces.Space[Any], **options: Any) -> Any:
    """Return a call that makes a vector env of envs with different observation spaces."""
    makes = [make for space in found for make in playing(space, [space.sample()])]
    return lambda _: SyncVectorEnv(makes, **options)


LOW, HIGH, LONG = (spaces.Box(0, high, shape) for high, shape in ((1, (2,)), (2, (2,)), (1, (3,))))
PLAYS = {
    "observation": [*counting(1), *playing(LOW, [np.zeros(2, np.float32)])],
    "action": [CountingEnv, *playing(CountingEnv().observation_space, [np.zeros(5, int)])],
}
FACADES = SB3VecEnv, partial(GymnasiumVectorEnv, autoreset_mode="SameStep")
ASYNC = partial(DummyVectorEnv, counting(2), wait_num=1)
NATIVE = lambda: from_gymnasium(gym.make_vec("CartPole-v1", 2, "vector_entry_point"))  # noqa: E731
TENSORS = lambda: from_gymnasium(ManiSkillDouble(), tensors=True)  # noqa: E731
UNSTACKED = partial(DummyVectorEnv, counting(2, form="dict"), stack_obs=False)
VECTOR_REWARDS = partial(DummyVectorEnv, playing(spaces.Discrete(2), [0], rewards=[np.zeros(2)]))
DIFFERENT = "'different' or custom space) however the sub-environments observation spaces do not share a common"
CALLS = [methodcaller("reset"), methodcaller("step", [0] * 3), methodcaller("render")]
CALLS += [methodcaller("call", "t"), methodcaller("set_attr", "t", 3)]
SB3_CALLS = [("get_attr", "t"), ("set_attr", "t", 1), ("has_attr", "t"), ("env_method", "render"), ("get_images",)]
SB3_CALLS += [("env_is_wrapped", gym.Wrapper), ("step_async", np.zeros(3, int))]
PENDING = "waiting for a pending call to `step` to complete"
SECONDS = "timeout must be a number of seconds or None"


ROWS = [
    *rows_for(
        GYMNASIUM,
        *((lambda envs, s=s: envs.reset(seed=s), ValueError, "must match num_envs=3") for s in ([1, 2], np.arange(4))),
        (lambda envs: envs.reset(seed=[1, 2, -3]), ValueError, "a seed must be at least 0 and below 2**63, got -3"),
        *(
            (lambda envs, s=s: envs.reset(seed=s), ValueError, "a seed must be a non-negative integer, got")
            for s in (1.5, "1", [1, 2, 3.5], True)
        ),
        (lambda envs: envs.reset(options=[1]), TypeError, "takes one dict of options for all envs, or None; got"),
        (masked([True, False, True]), TypeError, "must be a numpy array"),
        (masked(np.array([True])), ValueError, "must have shape `(3,)`, got (1,)"),
        (masked(np.array([1, 0, 1])), TypeError, "must have `dtype=np.bool_`, got int64"),
        (masked(np.zeros(3, bool)), ValueError, "at least one True value"),
        *((lambda envs, n=n: envs.step([5] * n), ValueError, f"got {n} actions for 3 envs") for n in (2, 4)),
        *((lambda envs, n=n: envs.step(np.full(n, 5)), ValueError, f"got {n} actions for 3 envs") for n in (2, 4)),
        *((lambda envs, a=a: envs.step(a), TypeError, "one action per env") for a in (1, np.int64(1), np.array(1))),
        (lambda envs: envs.set_attr("t", (1, 2)), ValueError, "Got `2` values for 3 environments"),
        (lambda envs: envs.call("typo"), AttributeError, "has no attribute 'typo'"),
        (lambda envs: envs.call("echo"), (TypeError, AttributeError), "echo"),
        (lambda envs: copy.deepcopy(envs), TypeError, "cannot be pickled or copied; make another one from the same"),
        *(
            (methodcaller(f"{name}_wait"), NoAsyncCallError, f"`{name}_wait` without any prior call to `{name}_async`")
            for name in ("step", "reset", "call")
        ),
    ),
    *rows_for(
        STEPPING,
        *((call, AlreadyPendingCallError, PENDING) for call in (*CALLS, attrgetter("np_random_seed"))),
        (lambda envs: envs.reset_wait(), NoAsyncCallError, "`reset_wait` without"),
        *((lambda envs, t=t: envs.step_wait(timeout=t), ValueError, SECONDS) for t in ("1", float("nan"), True, [1])),
        (lambda envs: envs.close(timeout="1"), ValueError, SECONDS),
    ),
    *rows_for(CALLING, (lambda envs: envs.step([0] * 3), AlreadyPendingCallError, "pending call to `call`")),
    *rows_for(
        RESETTING,
        (lambda envs: envs.step([0] * 3), AlreadyPendingCallError, "pending call to `reset`"),
        (lambda envs: envs.reset_wait(timeout="1"), ValueError, SECONDS),
    ),
    *rows_for(
        CLOSED,
        *((call, ClosedEnvironmentError, "after a call to `close()`") for call in (*CALLS, methodcaller("step_wait"))),
    ),
    *rows_for(
        Subject(made(SyncVectorEnv, autoreset_mode="Disabled")),
        (over, ResetNeeded, "envs [0, 1, 2] are over", "reset(options={'reset_mask':"),
    ),
    *rows_for(
        Subject(made(lambda fns: GymnasiumVectorEnv(DummyVectorEnv(fns))), as_before),
        *((lambda envs, n=n: envs.call(n), ValueError, f"use `{n}` directly") for n in ("reset", "step", "close")),
    ),
    *rows_for(
        SB3,
        *((lambda envs, s=s: envs.seed(s), ValueError, "seed must be") for s in (-1, 0.5, "1", True)),
        *((methodcaller("set_options", o), TypeError, "takes one dict, or a list of") for o in ("x", [{}, {}, None])),
        (lambda envs: envs.set_options([{}] * 2), ValueError, "got 2 options for 3 envs"),
        *((lambda envs, i=i: envs.get_attr("t", i), IndexError, "out of range for 3 envs") for i in (3, -4, [0, 3])),
        (lambda envs: envs.step_wait(), RuntimeError, "no step is pending"),
    ),
    *rows_for(
        SB3_STEPPING,
        *((methodcaller(*call), RuntimeError, "a step is pending") for call in SB3_CALLS),
    ),
    *rows_for(
        SB3_CLOSED,
        *((call, ClosedError, "cannot be called after close") for call in CALLS[:2]),
    ),
    *rows_for(
        NOTHING,
        *(
            (lambda _, options=options: AsyncVectorEnv(NEVER, **options), error, text)
            for options, error, text in [
                ({"worker": print}, ValueError, "your own EnvWorker"),
                ({"max_concurrency": 0}, ValueError, "`max_concurrency` must be a positive or None, got 0"),
                ({"max_concurrency": 2.0}, ValueError, "must be an integer or None, got <class 'float'>"),
                ({"max_concurrency": 1, "num_workers": 2}, ValueError, "max_concurrency=1"),
                ({"wait_num": 1}, TypeError, "all envs step together"),
                ({"timeout": 1.0}, TypeError, "step_wait(timeout)"),
                ({"observation_mode": "alike"}, ValueError, "Invalid `observation_mode`, expected: 'same' or"),
                ({"observation_mode": (1, 2)}, TypeError, "to be Spaces, got <class 'int'> and <class 'int'>"),
                ({"autoreset_mode": "never"}, ValueError, "autoreset_mode must be one of"),
                ({"final_info_format": "tuple"}, ValueError, "final_info_format"),
                ({"final_info_format": "list"}, ValueError, "SAME_STEP"),
                ({"random_initial_steps": -1}, ValueError, "random_initial_steps"),
                ({"context": "thread"}, ValueError, "None, got 'thread'"),
                ({"unknown": 1}, TypeError, "has no argument 'unknown'"),
            ]
        ),
        *(
            (lambda _, cls=cls, options=options: cls(NEVER, **options), TypeError, text)
            for cls in (DummyVecEnv, SubprocVecEnv)
            for options, text in [
                ({"wait_num": 1}, "all envs step together"),
                ({"timeout": 1.0}, "step_timeout"),
                ({"stack_obs": False}, "always stacked"),
                ({"worker_fn": print}, "SB3VecEnv(venv)"),
                ({"backend": None}, "SB3VecEnv(venv)"),
                ({"context": "fork"}, "start_method"),
                ({"unknown": 1}, "has no argument 'unknown'"),
            ]
        ),
        (lambda _: SubprocVecEnv(NEVER, "illegal_method"), ValueError, "cannot find context for 'illegal_method'"),
        (lambda _: DummyVecEnv([]), ValueError, "env_fns is empty"),
        (lambda _: DummyVecEnv([partial(gym.Wrapper, CountingEnv())] * 2), ValueError, "same env object"),
        (lambda _: SB3VecEnv(counting(2)), TypeError, "got list"),
        *((around(facade, ASYNC), ValueError, "without wait_num") for facade in FACADES),
        *((around(facade, UNSTACKED), ValueError, "stack_obs=") for facade in FACADES),
        (lambda _: DummyVecEnv(PLAYS["observation"]), ValueError, "the observation_space is", "in env 1"),
        (lambda _: SubprocVecEnv(PLAYS["action"]), ValueError, "the action_space is", "in env 1"),
        (around(stepped_by_sb3, VECTOR_REWARDS), EnvContractError, "SB3 needs rewards that are numbers", "shape (2,)"),
        (lambda _: SB3VecEnv(gym.vector.SyncVectorEnv(counting(2))), ValueError, "=AutoresetMode.SAME_STEP"),
        (around(SB3VecEnv, NATIVE), ValueError, "cannot reset them as autoreset_mode SameStep needs"),
        *((around(facade, TENSORS), ValueError, "make it without tensors=True") for facade in FACADES),
        (lambda _: GymnasiumVectorEnv(CountingEnv()), TypeError, "a vector env of vecenv is needed", "got <"),
        (lambda _: GymnasiumVectorEnv(SerialEnv(2, CountingEnv)), NotStartedError, "call start() or reset() first"),
        (unlike(LOW, HIGH), RuntimeError, "observation spaces are not equivalent: env 1", "'different'"),
        (unlike(LOW, LONG), RuntimeError, "observation_mode='same') however"),
        (unlike(LOW, LONG, observation_mode="different"), (AssertionError, ValueError), "Env 1"),
        (unlike(LOW, spaces.Discrete(3), observation_mode="different"), (AssertionError, TypeError), "Env 1"),
        (unlike(spaces.Text(3), spaces.Text(4), observation_mode="different"), RuntimeError, DIFFERENT, "env 1 has"),
        (unlike(LOW, LOW, observation_mode=(spaces.Box(0, 1, (2, 3)), LONG)), RuntimeError, DIFFERENT, "env 0 has"),
        (lambda _: SyncVectorEnv(PLAYS["action"]), RuntimeError, "have an action space different from", "Env 1 has"),
        (lambda _: make_vec("Nothing-v0", 2), gym.error.Error, "Nothing"),
        (lambda _: make_vec("CartPole-v1", 2, backend="ship"), ValueError, "backend must be one of", "got 'ship'"),
        (lambda _: make_vec("CartPole-v1", 0), ValueError, "num_envs must be an integer of at least 1, got 0"),
        *(
            (lambda _, given=given: make_vec(**{"id": "CartPole-v1", "num_envs": 2, **given}), TypeError, text)
            for given, text in [
                ({"id": None}, "id must be the id of a registered env or a spec, got None"),
                ({"id": CountingEnv}, "AsyncVectorEnv([env_fn] * num_envs)"),
                ({"num_envs": "2"}, "num_envs must be an integer of at least 1, got '2'"),
                ({"wrappers": gym.wrappers.TimeAwareObservation}, "wrappers must be a sequence of functions"),
                ({"wrappers": ["TimeAwareObservation"]}, "wrappers must be a sequence of functions"),
                ({"vector_kwargs": [1]}, "vector_kwargs must be a dict of arguments, got [1]"),
                ({"venv_kwargs": [1]}, "venv_kwargs must be a dict of arguments, got [1]"),
                ({"venv_kwargs": {"wait_num": 1}}, "has no argument 'wait_num'"),
                ({"venv_kwargs": {}, "vector_kwargs": {"num_workers": 1}}, "are two names of one argument: pass only"),
                ({"vectorization_mode": "async"}, "no argument 'vectorization_mode': pass backend= with one of"),
            ]
        ),
    ),
]
