"""Messages of the facades for gymnasium and Stable-Baselines3, and of `make_vec`."""

from __future__ import annotations

import copy
from functools import partial
from operator import attrgetter
from operator import methodcaller as call
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

from tests.messages.rows import NOTHING, Subject, arguments_of, each, rows_for
from tests.support.cases import counting, playing
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

    def make() -> None:
        with envs() as venv:
            facade(venv)

    return make


def stepped_by_sb3(venv: Any) -> None:
    envs = SB3VecEnv(venv)
    envs.reset()
    envs.step(np.zeros(len(venv), int))


def unlike(*found: spaces.Space[Any], **options: Any) -> Any:
    """Return a call that makes a vector env of envs with different observation spaces."""
    makes = [make for space in found for make in playing(space, [space.sample()])]
    return lambda: SyncVectorEnv(makes, **options)


def wait(envs: Any, name: str) -> object:
    return getattr(envs, f"{name}_wait")()


def wait_for(envs: Any, timeout: Any) -> object:
    return envs.step_wait(timeout=timeout)


def reset(envs: Any, seed: Any) -> object:
    return envs.reset(seed=seed)


THREE = spaces.Discrete(3)
LOW, HIGH, LONG = (spaces.Box(0, high, shape) for high, shape in ((1, (2,)), (2, (2,)), (1, (3,))))
PLAYS = {
    "observation": [*counting(1), *playing(LOW, [np.zeros(2, np.float32)])],
    "action": [CountingEnv, *playing(CountingEnv().observation_space, [np.zeros(5, int)])],
}
FACADES = SB3VecEnv, partial(GymnasiumVectorEnv, autoreset_mode="SameStep")
ASYNC = partial(DummyVectorEnv, counting(2), wait_num=1)
NATIVE = lambda: from_gymnasium(gym.make_vec("CartPole-v1", 2, "vector_entry_point"))  # noqa: E731
UNSTACKED = partial(DummyVectorEnv, counting(2, form="dict"), stack_obs=False)
VECTOR_REWARDS = partial(DummyVectorEnv, playing(spaces.Discrete(2), [0], rewards=[np.zeros(2)]))
DIFFERENT = "'different' or custom space) however the sub-environments observation spaces do not share a common"
CALLS = [call("reset"), call("step", [0] * 3), call("render")]
CALLS += [call("call", "t"), call("set_attr", "t", 3)]
SB3_CALLS = [call("get_attr", "t"), call("set_attr", "t", 1), call("has_attr", "t")]
SB3_CALLS += [call("env_method", "render"), call("get_images")]
SB3_CALLS += [call("env_is_wrapped", gym.Wrapper), call("step_async", np.zeros(3, int))]


GYMNASIUM_ARGUMENTS = arguments_of(
    partial(AsyncVectorEnv, NEVER),
    ({"worker": print}, ValueError, "your own EnvWorker"),
    ({"max_concurrency": 0}, ValueError, "`max_concurrency` must be a positive or None, got 0"),
    ({"max_concurrency": 2.0}, ValueError, "must be an integer or None, got <class 'float'>"),
    ({"max_concurrency": 1, "num_workers": 2}, ValueError, "max_concurrency=1"),
    ({"wait_num": 1}, TypeError, "AsyncVectorEnv has no argument 'wait_num': all envs step together"),
    ({"timeout": 1.0}, TypeError, "step_wait(timeout)"),
    ({"observation_mode": "alike"}, ValueError, "Invalid `observation_mode`, expected: 'same' or"),
    ({"observation_mode": (1, 2)}, TypeError, "to be Spaces, got <class 'int'> and <class 'int'>"),
    ({"final_info_format": "tuple"}, ValueError, "final_info_format must be"),
    ({"final_info_format": "list"}, ValueError, "pass autoreset_mode=AutoresetMode.SAME_STEP with it"),
)
SB3_ARGUMENTS = arguments_of(
    partial(DummyVecEnv, NEVER),
    ({"wait_num": 1}, TypeError, "DummyVecEnv has no argument 'wait_num': all envs step together"),
    ({"timeout": 1.0}, TypeError, "step_timeout limits a step of an env, step_wait(timeout) limits a wait"),
    ({"stack_obs": False}, TypeError, "observations are always stacked here"),
    ({"worker_fn": print}, TypeError, "to GymnasiumVectorEnv(venv) or SB3VecEnv(venv)"),
    ({"context": "fork"}, TypeError, "pass start_method to SubprocVecEnv"),
)
MAKE_VEC_ARGUMENTS = arguments_of(
    partial(make_vec, "CartPole-v1", 2),
    ({"wrappers": ["TimeAwareObservation"]}, TypeError, "wrappers must be a sequence of functions"),
    ({"venv_kwargs": {}, "vector_kwargs": {"num_workers": 1}}, TypeError, "are two names of one argument: pass only"),
    ({"vectorization_mode": "async"}, TypeError, "no argument 'vectorization_mode': pass backend= with one of"),
)
ROWS = [
    *rows_for(
        GYMNASIUM,
        (each(([1, 2], np.arange(4)), reset), ValueError, "must match num_envs=3"),
        (each((1.5, "1", True), reset), ValueError, "a seed must be a non-negative integer, got "),
        (call("reset", options=[1]), TypeError, "takes one dict of options for all envs, or None; got"),
        (masked([True, False, True]), TypeError, "must be a numpy array"),
        (masked(np.array([True])), ValueError, "must have shape `(3,)`, got (1,)"),
        (masked(np.array([1, 0, 1])), TypeError, "must have `dtype=np.bool_`, got int64"),
        (masked(np.zeros(3, bool)), ValueError, "at least one True value"),
        ([call("step", [5] * 2), call("step", np.full(2, 5))], ValueError, "got 2 actions for 3 envs"),
        (each((1, np.array(1)), lambda envs, action: envs.step(action)), TypeError, "pass one action per env"),
        (call("set_attr", "t", (1, 2)), ValueError, "Got `2` values for 3 environments"),
        (call("call", "typo"), AttributeError, "has no attribute 'typo'", "env 0, call()"),
        (copy.deepcopy, TypeError, "cannot be pickled or copied; make another one from the same"),
        (each(("step", "reset", "call"), wait), NoAsyncCallError, "`VALUE_wait` without any prior call to"),
    ),
    *rows_for(
        STEPPING,
        ([*CALLS, attrgetter("np_random_seed")], AlreadyPendingCallError, "for a pending call to `step` to complete"),
        (each(("1", float("nan"), True, [1]), wait_for), ValueError, "timeout must be a number of seconds or None"),
    ),
    *rows_for(CALLING, (call("step", [0] * 3), AlreadyPendingCallError, "pending call to `call`")),
    *rows_for(RESETTING, (call("step", [0] * 3), AlreadyPendingCallError, "pending call to `reset`")),
    *rows_for(CLOSED, ([*CALLS, call("step_wait")], ClosedEnvironmentError, "after a call to `close()`")),
    *rows_for(
        Subject(made(SyncVectorEnv, autoreset_mode="Disabled")),
        (over, ResetNeeded, "envs [0, 1, 2] are over", "reset(options={'reset_mask':"),
    ),
    *rows_for(
        Subject(made(lambda fns: GymnasiumVectorEnv(DummyVectorEnv(fns))), as_before),
        (each(("reset", "step", "close"), lambda envs, name: envs.call(name)), ValueError, "use `VALUE` directly"),
    ),
    *rows_for(
        SB3,
        (each(("x", [{}, {}, None]), lambda envs, o: envs.set_options(o)), TypeError, "takes one dict, or a list of"),
        (call("set_options", [{}] * 2), ValueError, "got 2 options for 3 envs"),
        (each((3, -4), lambda envs, i: envs.get_attr("t", [0, i])), IndexError, "env index VALUE is out of range"),
        (call("step_wait"), RuntimeError, "no step is pending"),
    ),
    *rows_for(SB3_STEPPING, (SB3_CALLS, RuntimeError, "a step is pending: call step_wait() first")),
    *rows_for(SB3_CLOSED, (CALLS[:2], ClosedError, "Methods of DummyVectorEnv cannot be called after close")),
    *GYMNASIUM_ARGUMENTS,
    *SB3_ARGUMENTS,
    *MAKE_VEC_ARGUMENTS,
    *rows_for(
        NOTHING,
        (partial(SubprocVecEnv, NEVER, "illegal_method"), ValueError, "cannot find context for 'illegal_method'"),
        (lambda: SB3VecEnv(counting(2)), TypeError, "SB3VecEnv takes a vector env", "got list"),
        ([around(facade, ASYNC) for facade in FACADES], ValueError, "without wait_num"),
        (around(SB3VecEnv, UNSTACKED), ValueError, "make the vector env with stack_obs=True"),
        (around(GymnasiumVectorEnv, UNSTACKED), ValueError, "make the venv without stack_obs=False"),
        (lambda: DummyVecEnv(PLAYS["observation"]), ValueError, "the observation_space is", "in env 1"),
        (lambda: SubprocVecEnv(PLAYS["action"]), ValueError, "the action_space is", "in env 1"),
        (around(stepped_by_sb3, VECTOR_REWARDS), EnvContractError, "SB3 needs rewards that are numbers", "shape (2,)"),
        (lambda: SB3VecEnv(gym.vector.SyncVectorEnv(counting(2))), ValueError, "=AutoresetMode.SAME_STEP"),
        (around(SB3VecEnv, NATIVE), ValueError, "cannot reset them as autoreset_mode SameStep needs"),
        (lambda: GymnasiumVectorEnv(CountingEnv()), TypeError, "a vector env of vecenv is needed", "got <"),
        (lambda: GymnasiumVectorEnv(SerialEnv(2, CountingEnv)), NotStartedError, "call start() or reset() first"),
        (unlike(LOW, HIGH), RuntimeError, "observation spaces are not equivalent: env 1", "'different'"),
        (unlike(LOW, LONG), RuntimeError, "observation_mode='same') however"),
        (unlike(LOW, LONG, observation_mode="different"), (AssertionError, ValueError), "Env 1 has Box(0.0, 1.0, (3,)"),
        (unlike(LOW, THREE, observation_mode="different"), (AssertionError, TypeError), "Env 1 has Discrete(3)"),
        (unlike(spaces.Text(3), spaces.Text(4), observation_mode="different"), RuntimeError, DIFFERENT, "env 1 has"),
        (unlike(LOW, LOW, observation_mode=(spaces.Box(0, 1, (2, 3)), LONG)), RuntimeError, DIFFERENT, "env 0 has"),
        (lambda: SyncVectorEnv(PLAYS["action"]), RuntimeError, "have an action space different from", "Env 1 has"),
        (lambda: make_vec("CartPole-v1", 2, backend="ship"), ValueError, "backend must be one of", "got 'ship'"),
        (lambda: make_vec(None, 2), TypeError, "id must be the id of a registered env or a spec, got None"),
        (lambda: make_vec(CountingEnv, 2), TypeError, "AsyncVectorEnv([env_fn] * num_envs)"),
    ),
]
