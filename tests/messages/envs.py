"""Messages of `from_gymnasium`, the classes of vecenv/envs, and wrappers of single envs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from collector import AsyncDataCollector, EpisodeSeeds, SyncDataCollector
from tests.messages.rows import NOTHING, Subject, rows_for
from tests.support.cases import Records
from tests.support.pool_double import PoolDouble
from tests.support.simulators import Alone, N, Odd, Simulator, Wrong, actions, cartpoles, counting, native
from vecenv import (
    AtariVectorEnv,
    ContinuousToDiscrete,
    EnvContractError,
    EnvPoolVectorEnv,
    GymEnv,
    GymnasiumVectorEnv,
    MultiDiscreteToDiscrete,
    MultiThreadedEnv,
    MultiThreadedEnvWrapper,
    ObservationError,
    VectorEnvWrapper,
    from_gymnasium,
    make_vec,
)
from vecenv.testing import CountingEnv


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


same_step = partial(SyncVectorEnv, counting(), autoreset_mode="SameStep")
without_masks = partial(native, "SameStep", resets_by_id=False)
disabled = partial(native, "Disabled", resets_by_id=False)


def facade(make: Callable[[], Any], mode: str, wrap: Any = lambda venv: venv) -> Callable[[Any], object]:
    def call(_: Any) -> None:
        with from_gymnasium(make()) as venv:
            GymnasiumVectorEnv(wrap(venv), autoreset_mode=mode)

    return call


SEEDS = EpisodeSeeds(0, numbers=range(3))
VECTOR_ENVS = [
    *rows_for(
        NOTHING,
        (lambda _: from_gymnasium(Alone(0)), TypeError, "takes a gymnasium.vector.VectorEnv"),
        (lambda _: from_gymnasium(Odd(None, mode=None)), ValueError, "have no autoreset_mode: pass autoreset_mode="),
        (lambda _: from_gymnasium(texts()), TypeError, "must be arrays of a fixed shape"),
        (lambda _: second_step(Odd(np.ones((2, 3)))), ObservationError, "obs is float64 (2, 3)", "has float32 (2,)"),
        (lambda _: second_step(Odd(np.ones((2, 2)), over=True)), EnvContractError, "env 0: Odd ended an episode in"),
        (lambda _: second_step(Simulator(np), tensors=True), ObservationError, "obs is a ndarray, but tensors=True"),
        (lambda _: GymnasiumVectorEnv(tensors()), ValueError, "without tensors=True"),
        (facade(cartpoles, "Disabled"), ValueError, "autoreset_mode Disabled needs: make"),
        (facade(cartpoles, "SameStep"), ValueError, "autoreset_mode SameStep needs: make"),
        (facade(same_step, "NextStep"), ValueError, "cannot reset them as autoreset_mode", "NextStep"),
        (facade(same_step, "NextStep", VectorEnvWrapper), ValueError, "cannot reset them as", "NextStep"),
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
            collected(disabled),
            ValueError,
            "make it with autoreset_mode SAME_STEP; or pass",
            "resets_by_id=True) if its",
        ),
        *(
            (collected(partial(native, mode), episode_seeds=SEEDS), ValueError, "steps or seeds all envs together")
            for mode in ("NextStep", "SameStep", "Disabled")
        ),
        (collected(same_step, AsyncDataCollector), ValueError, "use SyncDataCollector, or autoreset_mode NEXT_STEP"),
        (collected(cartpoles, AsyncDataCollector, max_frames_per_traj=2), ValueError, "in the middle of an episode"),
        (collected(without_masks, max_frames_per_traj=2), ValueError, "in the middle of an episode"),
    ),
    *rows_for(
        CARTPOLES,
        (lambda venv: venv.step([0, 1], [0, 2]), ValueError, "steps its 3 envs together", "actions for [0, 2] only"),
        (lambda venv: venv.reset(1), ValueError, "is not known to reset only some envs", "got reset([1]): pass no"),
        (lambda venv: venv.seed([1, None, 2]), ValueError, "is not known to reset only some envs"),
        (lambda venv: venv.step([0, 1, 0], reset=[1]), ValueError, "whose episode ended in the previous step: []"),
        (lambda venv: venv.step([0] * 3, autoreset=True), TypeError, "cannot reset an env in the round of its last"),
        (lambda venv: venv.step(["left", 1, 0]), ValueError, "the action for env 0 is 'left', which does not fit"),
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
        (lambda venv: venv.step([1] * N, reset=[1]), ValueError, "cannot reset some of them instead: call"),
    ),
    *rows_for(
        ready(disabled, [0] * N),
        (lambda venv: venv.reset([0]), ValueError, "got reset([0]): pass no ids; if it does, pass resets_by_id"),
    ),
    *rows_for(
        Subject(ended, lambda venv: venv.step([0] * N, reset=[0])),
        (lambda venv: venv.step([0] * N), RuntimeError, "env 0 has not been reset, or its episode is over"),
        (lambda venv: venv.send([0] * N, reset=[0], seed=7), ValueError, "cannot reset with seed or options, got"),
    ),
    *rows_for(
        ready(lambda: native("SameStep"), [0] * N),
        (lambda venv: venv.step([0] * N, autoreset=[5, -1, 6, 7]), TypeError, "cannot seed an env in the round of"),
    ),
]

# EnvPool, by its double.


def pools(n: int = 3, **config: Any) -> EnvPoolVectorEnv:
    return EnvPoolVectorEnv(PoolDouble.make(n, **config))


def wrapper(**arguments: Any) -> Callable[[Any], object]:
    return lambda _: MultiThreadedEnvWrapper(PoolDouble.make(2), **arguments)


def threaded(**arguments: Any) -> Callable[[Any], object]:
    return lambda _: MultiThreadedEnv(**{"num_workers": 2, "env_name": "CartPole-v1", **arguments})


WITHOUT_EFFECT = (
    ({"frame_skip": 4}, "create_env_kwargs"),
    ({"device": "cuda:0"}, "collector"),
    ({"categorical_action_encoding": False}, "one-hot"),
    ({"disable_env_checker": False}, "check_vector_env"),
    ({"allow_done_after_reset": True}, "after a reset"),
)


def moved_nothing(venv: EnvPoolVectorEnv) -> None:
    assert [info["elapsed_step"] for info in venv.step([0, 0, 0])[4]] == [1, 1, 1]


def reset_pools() -> EnvPoolVectorEnv:
    venv = pools()
    venv.reset(options=None)
    return venv


ENVPOOL = [
    *rows_for(
        Subject(reset_pools, moved_nothing),
        (lambda venv: venv.step([0, 10**6, 0]), ValueError, "for env 1 is 1000000, which is not in Discrete"),
        (lambda venv: venv.step([0, 0, -1], [2, 0, 1]), ValueError, "the action for env 1 is -1"),
        (lambda venv: venv.step([0.5, 0, 0]), TypeError, "must be whole numbers"),
        (lambda venv: venv.step([0, 0]), ValueError, "got 2 actions for 3 envs"),
        (lambda venv: venv.step([[0, 1]] * 3, [2, 0, 1]), ValueError, "has the shape (3, 2), expected (3,)"),
        (lambda venv: venv.step([0], [9]), IndexError, "env id 9 is out of range"),
        (lambda venv: venv.reset([9]), IndexError, "env id 9 is out of range"),
        (lambda venv: venv.step([0, 0], [0, 0]), ValueError, "env id 0 is given twice"),
        (lambda venv: venv.step([0, 0, 0], autoreset=True), TypeError, "autoreset=True"),
        (lambda venv: venv.reset(options={"x": 1}), TypeError, "takes only seed"),
        (lambda venv: venv.reset(length=3), TypeError, "takes only seed"),
        (lambda venv: venv.reset([0], seed=1), ValueError, "of all its 3 envs at once"),
        (lambda venv: venv.reset(seed=[1, None, 2]), ValueError, "of all its 3 envs at once"),
        (lambda venv: venv.seed([1, None, 2]), ValueError, "seeds all its envs together"),
        (lambda venv: venv.get_env_attr("x"), AttributeError, "C++"),
        (lambda venv: venv.set_env_attr("x", 1), AttributeError, "C++"),
        (lambda venv: venv.call("x"), AttributeError, "C++"),
        (lambda venv: venv.render(), RuntimeError, "render_mode"),
        (lambda venv: venv.render(width=3), TypeError, "width"),
    ),
    *rows_for(
        NOTHING,
        (collected(lambda: pools(2), episode_seeds=SEEDS), ValueError, "steps or seeds all envs together"),
        *((make(**given), ValueError, says) for given, says in WITHOUT_EFFECT for make in (wrapper, threaded)),
        (lambda _: EnvPoolVectorEnv("CartPole-v1"), TypeError, "expected a pool"),
        (lambda _: EnvPoolVectorEnv(PoolDouble), TypeError, "expected a pool"),
        (lambda _: pools(2, max_num_players=4), ValueError, "up to 4 players"),
        (lambda _: EnvPoolVectorEnv.make("CartPole-v1", 0), ValueError, "num_envs must be", "at least 1, got 0"),
        (lambda _: EnvPoolVectorEnv.make(None, 1), TypeError, "the task must be the id of an EnvPool task"),
        (lambda _: MultiThreadedEnvWrapper(), TypeError, "needs env"),
        (wrapper(speed=3), TypeError, "unexpected argument 'speed'"),
        (lambda _: MultiThreadedEnvWrapper(PoolDouble.make(2, batch_size=1)), ValueError, "asynchronous, 1 of 2"),
        (lambda _: MultiThreadedEnv(2), TypeError, "env_name"),
        (threaded(create_env_kwargs={"batch_size": 1}), ValueError, "create_env_kwargs must not have ['batch_size']"),
        (threaded(create_env_kwargs=[("seed", 1)]), TypeError, "create_env_kwargs must be a dict"),
        (threaded(num_workers="2"), TypeError, "num_workers must be an integer of at least 1, got '2'"),
    ),
]

# Single envs.


class Blind(CountingEnv):
    def render(self) -> Any:
        return None


UNKNOWN, FRAME_SKIP = gym.error.NameNotFound, "frame_skip must be an integer of at least 1"
REGISTERS_NONE = "The module 'numbers' was imported, and registers"
PLANE = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 3], np.float32))


def discrete(space: Any, counts: Any) -> Callable[[Any], object]:
    return lambda _: ContinuousToDiscrete(Records(space), counts)


def combined(space: Any) -> Callable[[Any], object]:
    return lambda _: MultiDiscreteToDiscrete(Records(space))


SINGLE_ENVS = [
    *rows_for(
        NOTHING,
        (lambda _: GymEnv(3), TypeError, "id of an env or an env, got 3"),
        (lambda _: GymEnv("CartPole-v1", env=CountingEnv()), TypeError, "env_name and env were both passed"),
        (lambda _: GymEnv(CountingEnv(), g=2.0), TypeError, "['g'] are arguments for gymnasium.make"),
        (lambda _: GymEnv("NoSuch-v0", frame_skip=2), UNKNOWN, "NoSuch"),
        (lambda _: GymEnv("numbers:Wlak"), UNKNOWN, "`Wlak`", REGISTERS_NONE),
        (lambda _: make_vec("numbers:Wlak"), UNKNOWN, "`Wlak`", REGISTERS_NONE),
        (lambda _: GymEnv("no_such_module:NoSuch-v0"), ModuleNotFoundError, "no_such_module"),
        (lambda _: GymEnv("Pendulum-v1", frame_skip=0), ValueError, FRAME_SKIP),
        (lambda _: GymEnv("Pendulum-v1", frame_skip=2.0), TypeError, FRAME_SKIP),
        (lambda _: GymEnv(GymEnv(CountingEnv(), frame_skip=4), frame_skip=2), ValueError, "skips frames already: 4"),
        (lambda _: GymEnv(gym.make("CartPole-v1"), from_pixels=True), ValueError, 'render_mode="rgb_array", got None'),
        (lambda _: GymEnv("FrozenLake-v1", from_pixels=True, render_mode="ansi"), ValueError, "got 'ansi'"),
        (lambda _: GymEnv(Blind(), from_pixels=True), ValueError, "returned None"),
        (lambda _: GymEnv(CountingEnv(), from_pixels=True, render_kwargs={"w": 1}), TypeError, "'w'", "constructor"),
        (lambda _: ContinuousToDiscrete(gym.make("CartPole-v1"), 2), TypeError, "Box action space, got Discrete(2)"),
        (discrete(spaces.Box(-1, 1, (2, 2)), 2), ValueError, "one dimension"),
        (discrete(spaces.Box(0, 9, (2,), np.int64), 2), ValueError, "of floats"),
        (discrete(spaces.Box(-np.inf, np.inf, (2,)), 2), ValueError, "finite bounds"),
        *((discrete(PLANE, n), ValueError, "action_per_dim") for n in (0, [2], [2, 2, 2], [2, 0], [2, 1.5])),
        (lambda _: MultiDiscreteToDiscrete(gym.make("CartPole-v1")), TypeError, "MultiDiscrete action space, got"),
        (combined(spaces.MultiDiscrete([[3, 3], [3, 3]])), ValueError, "one dimension"),
        (combined(spaces.MultiDiscrete([10] * 19)), ValueError, "combinations"),
    ),
]

# ALE, which has no wheel for free-threaded Python.


def atari(game: Any = "pong", **options: Any) -> Callable[[Any], object]:
    return lambda _: AtariVectorEnv(**{"game": game, "num_envs": 2, **options})


COUNTS = ("num_envs", "batch_size", "stack_num", "img_height", "img_width", "frameskip")
ATARI = rows_for(
    NOTHING,
    (atari(autoreset_mode="Disabled"), ValueError, "ShmemVectorEnv"),
    (atari("chess"), ValueError, "no game 'chess'"),
    (atari(None), TypeError, "game must be the name"),
    (atari(autoreset_mode="SameStep", life_loss_info=True), ValueError, "final_obs after a lost life is not the"),
    *((atari(**{name: -1}), ValueError, f"{name} must be") for name in COUNTS),
    *((atari(**{name: 0}), ValueError, f"{name} must be") for name in COUNTS if name != "batch_size"),
    *((atari(**{name: 1.5}), TypeError, f"{name} must be") for name in COUNTS),
    (atari(batch_size=3), ValueError, "batch_size must be"),
)
ROWS = [*VECTOR_ENVS, *ENVPOOL, *SINGLE_ENVS, *(ATARI if find_spec("ale_py") else ())]
