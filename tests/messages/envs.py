"""Messages of `from_gymnasium`, the classes of vecenv/envs, and wrappers of single envs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from collector import AsyncDataCollector, EpisodeSeeds, SyncDataCollector
from tests.messages.rows import NOTHING, Subject, rows_for
from tests.support.simulators import Alone, N, Odd, Simulator, Wrong, actions, cartpoles, counting, native
from vecenv import EnvContractError, GymnasiumVectorEnv, ObservationError, from_gymnasium


def ready(make: Callable[[], Any], action: Any, **options: Any) -> Subject:
    """Return a subject whose vector env has been reset, and makes a step after each refused call."""

    def made() -> Any:
        venv = make()
        venv.reset(**options)
        return venv

    return Subject(made, lambda venv: venv.step(action))


# from_gymnasium.

CARTPOLES = ready(lambda: from_gymnasium(cartpoles()), [0, 1, 0], seed=0)
DISABLED = ready(lambda: native("Disabled"), [0] * N)


def texts() -> Odd:
    envs = Odd(None)
    envs.single_observation_space = spaces.Text(3)
    return envs


def ended() -> Any:
    venv = native("NextStep")
    venv.reset()
    for _ in range(3):
        venv.step([0] * N)
    return venv


def second_step(envs: Any, **options: Any) -> None:
    with from_gymnasium(envs, **options) as venv:
        venv.reset()
        for t in range(2):
            venv.step(actions(t) if envs.num_envs == N else [0, 1], autoreset=True)


def wrong(name: str, value: Any, *says: str, error: type[Exception] = EnvContractError) -> tuple[Any, ...]:
    return lambda _: second_step(Wrong(name, value)), error, "Wrong", *says


def tensors() -> Any:
    import torch

    return from_gymnasium(Simulator(torch), tensors=True)


def collected(make: Callable[[], Any], collector: Any = SyncDataCollector, **options: Any) -> Callable[[Any], object]:
    def call(_: Any) -> None:
        with closing(make()) as envs:
            collector(envs, frames_per_batch=8, **options)

    return call


def facade(mode: str) -> Callable[[Any], object]:
    def call(_: Any) -> None:
        with from_gymnasium(cartpoles()) as venv:
            GymnasiumVectorEnv(venv, autoreset_mode=mode)

    return call


SEEDS = EpisodeSeeds(0, numbers=range(3))
VECTOR_ENVS = [
    *rows_for(
        NOTHING,
        (lambda _: from_gymnasium(Alone(0)), TypeError, "takes a gymnasium.vector.VectorEnv"),
        (lambda _: from_gymnasium(Odd(None, mode=None)), ValueError, "have no autoreset_mode: pass autoreset_mode="),
        (lambda _: from_gymnasium(texts()), TypeError, "must be arrays of a fixed shape"),
        (lambda _: second_step(Odd(np.ones((2, 3)))), ObservationError, "obs is float64 (2, 3)", "has float32 (2,)"),
        (
            lambda _: second_step(Odd(np.ones((2, 2)), over=True)),
            EnvContractError,
            "env 0: Odd ended an episode in SAME_STEP mode, but its infos have no final_obs",
        ),
        (
            lambda _: second_step(Simulator(np), tensors=True),
            ObservationError,
            "obs is a ndarray, but tensors=True needs tensors",
        ),
        (lambda _: GymnasiumVectorEnv(tensors()), ValueError, "without tensors=True"),
        (facade("Disabled"), ValueError, "autoreset_mode Disabled needs: make"),
        (facade("SameStep"), ValueError, "autoreset_mode SameStep needs: make"),
        wrong("reward", np.zeros(5), "reward=array([0", "shape (5,)", "step 2, expected the shape (4,)"),
        wrong("reward", 0.0, "reward=0.0 with the shape ()", "step 2, expected the shape (4,)"),
        wrong("reward", np.array(list("abcd")), "reward=", "dtype <U1 in step 2, expected numbers"),
        wrong("terminated", np.zeros((N, 2), bool), "terminated=", "shape (4, 2)", "expected the shape (4,)"),
        wrong("truncated", np.arange(N), "truncated=array([0, 1, 2, 3])", "expected bools"),
        wrong("infos", {"speed": np.zeros(3, np.float32)}, "infos['speed'] has the shape (3,)", "expected 4 rows"),
        wrong("infos", {"lap": np.zeros(3, np.int64)}, "infos['lap'] has the shape (3,) and a mask"),
        wrong("infos", {"speed": np.zeros(N)}, "infos['speed']", "float64, expected 4 rows of float32, as in step 1"),
        wrong("infos", {"_lap": np.ones(3, bool)}, "infos['lap'] has a mask of shape (3,), expected (4,)"),
        wrong("infos", [{}], "infos of type list in step 2, expected a dict of columns"),
        wrong("infos", {"final_obs": np.zeros((1, 3))}, "a final_obs", "row for each env", error=ObservationError),
        (collected(cartpoles), ValueError, "use AsyncDataCollector"),
        (
            collected(lambda: native("Disabled", resets_by_id=False)),
            ValueError,
            "make it with autoreset_mode SAME_STEP; or pass from_gymnasium(envs, resets_by_id=True) if its reset",
        ),
        *(
            (
                collected(partial(native, mode), episode_seeds=SEEDS),
                ValueError,
                "steps or seeds all envs together, but episode_seeds",
            )
            for mode in ("NextStep", "SameStep", "Disabled")
        ),
        (
            collected(lambda: SyncVectorEnv(counting(), autoreset_mode="SameStep"), AsyncDataCollector),
            ValueError,
            "use SyncDataCollector, or autoreset_mode NEXT_STEP",
        ),
        (
            collected(cartpoles, AsyncDataCollector, max_frames_per_traj=2),
            ValueError,
            "in the middle of an episode, as max_frames_per_traj demands",
        ),
        (
            collected(lambda: native("SameStep", resets_by_id=False), max_frames_per_traj=2),
            ValueError,
            "in the middle of an episode",
        ),
    ),
    *rows_for(
        CARTPOLES,
        (lambda venv: venv.step([0, 1], [0, 2]), ValueError, "steps its 3 envs together", "actions for [0, 2] only"),
        (
            lambda venv: venv.reset(1),
            ValueError,
            "is not known to reset only some envs",
            "got reset([1]): pass no ids, or let the next step reset the envs whose episode is over",
        ),
        (lambda venv: venv.seed([1, None, 2]), ValueError, "is not known to reset only some envs"),
        (
            lambda venv: venv.step([0, 1, 0], reset=[1]),
            ValueError,
            "whose episode ended in the previous step: [], got reset=[1]",
        ),
        (lambda venv: venv.step([0] * 3, autoreset=True), TypeError, "cannot reset an env in the round of its last"),
        (
            lambda venv: venv.step(["left", 1, 0]),
            ValueError,
            "the action for env 0 is 'left', which does not fit Discrete(2)",
        ),
        (lambda venv: venv.reset(speed=1), TypeError, "takes only seed and options, got ['speed']"),
        (lambda venv: venv.set_env_attr("gravity", 3), AttributeError, "it has no set_attr"),
        (lambda venv: venv.get_state(), NotImplementedError, "has no get_state of single envs"),
    ),
    *rows_for(
        Subject(lambda: native("Disabled"), lambda venv: venv.reset()),
        (lambda venv: venv.reset([1]), RuntimeError, "first reset of SyncVectorEnv must be of all envs"),
    ),
    *rows_for(
        DISABLED,
        (
            lambda venv: venv.step([1] * N, reset=[1]),
            ValueError,
            "cannot reset some of them instead: call reset([1]), then step",
        ),
    ),
    *rows_for(
        ready(lambda: native("Disabled", resets_by_id=False), [0] * N),
        (lambda venv: venv.reset([0]), ValueError, "got reset([0]): pass no ids; if it does, pass resets_by_id"),
    ),
    *rows_for(
        Subject(ended, lambda venv: venv.step([0] * N, reset=[0])),
        (
            lambda venv: venv.send([0] * N, reset=[0], seed=7),
            ValueError,
            "cannot reset with seed or options, got them for envs [0]",
        ),
    ),
    *rows_for(
        ready(lambda: native("SameStep"), [0] * N),
        (
            lambda venv: venv.step([0] * N, autoreset=[5, -1, 6, 7]),
            TypeError,
            "cannot seed an env in the round of its last step (autoreset=[5, -1, 6",
        ),
    ),
]
ROWS = [*VECTOR_ENVS]
