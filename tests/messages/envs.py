"""Messages of `from_gymnasium`, the classes of vecenv/envs, and wrappers of single envs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from operator import methodcaller as call
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from collector import AsyncDataCollector, EpisodeSeeds, SyncDataCollector
from tests.messages.rows import NOTHING, Subject, arguments_of, each, rows_for
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
    """Return a vector env whose episodes are over."""
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
    return partial(second_step, Wrong(name, value)), error, "Wrong", *says


def tensors() -> Any:
    import torch

    return from_gymnasium(Simulator(torch), tensors=True)


def collected(make: Callable[[], Any], collector: Any = SyncDataCollector, **options: Any) -> Callable[[], object]:
    def collect() -> None:
        with closing(make()) as envs:
            collector(envs, frames_per_batch=8, **options)

    return collect


same_step = partial(SyncVectorEnv, counting(), autoreset_mode="SameStep")
without_masks = partial(native, "SameStep", resets_by_id=False)
disabled = partial(native, "Disabled", resets_by_id=False)


def facade(make: Callable[[], Any], mode: str, wrap: Any = lambda venv: venv) -> Callable[[], object]:
    def wrapped() -> None:
        with from_gymnasium(make()) as venv:
            GymnasiumVectorEnv(wrap(venv), autoreset_mode=mode)

    return wrapped


def seeded(mode: str) -> None:
    collected(partial(native, mode), episode_seeds=SEEDS)()


SEEDS = EpisodeSeeds(0, numbers=range(3))
WRAPPED = facade(same_step, "NextStep", VectorEnvWrapper)
VECTOR_ENVS = [
    *rows_for(
        NOTHING,
        (lambda: from_gymnasium(Alone(0)), TypeError, "takes a gymnasium.vector.VectorEnv"),
        (lambda: from_gymnasium(Odd(None, mode=None)), ValueError, "have no autoreset_mode: pass autoreset_mode="),
        (lambda: from_gymnasium(texts()), TypeError, "must be arrays of a fixed shape"),
        (lambda: second_step(Odd(np.ones((2, 3)))), ObservationError, "obs is float64 (2, 3)", "has float32 (2,)"),
        (lambda: second_step(Odd(np.ones((2, 2)), over=True)), EnvContractError, "env 0: Odd ended an episode in"),
        (lambda: second_step(Simulator(np), tensors=True), ObservationError, "obs is a ndarray, but tensors=True"),
        (lambda: GymnasiumVectorEnv(tensors()), ValueError, "without tensors=True"),
        (facade(cartpoles, "Disabled"), ValueError, "autoreset_mode Disabled needs: make"),
        ([facade(same_step, "NextStep"), WRAPPED], ValueError, "cannot reset them as autoreset_mode", "NextStep"),
        wrong("reward", np.zeros(5), "reward=array([0", "shape (5,)", "step 2, expected the shape (4,)"),
        wrong("reward", np.array(list("abcd")), "reward=", "dtype <U1 in step 2, expected numbers"),
        wrong("terminated", np.zeros((N, 2), bool), "terminated=", "shape (4, 2)", "expected the shape (4,)"),
        wrong("truncated", np.arange(N), "truncated=array([0, 1, 2, 3])", "expected bools"),
        wrong("infos", {"lap": np.zeros(3, np.int64)}, "infos['lap'] has the shape (3,) and a mask"),
        wrong("infos", {"speed": np.zeros(N)}, "infos['speed']", "float64, expected 4 rows of float32, as in step 1"),
        wrong("infos", {"_lap": np.ones(3, bool)}, "infos['lap'] has a mask of shape (3,), expected (4,)"),
        wrong("infos", [{}], "infos of type list in step 2, expected a dict of columns"),
        wrong("infos", {"final_obs": np.zeros((1, 3))}, "a final_obs", "row for each env", error=ObservationError),
        (collected(cartpoles), ValueError, "use AsyncDataCollector"),
        (collected(disabled), ValueError, "make it with autoreset_mode SAME_STEP; or pass", "resets_by_id=True) if"),
        (each(("NextStep", "SameStep", "Disabled"), seeded), ValueError, "steps or seeds all envs together"),
        (collected(same_step, AsyncDataCollector), ValueError, "use SyncDataCollector, or autoreset_mode NEXT_STEP"),
        (collected(without_masks, max_frames_per_traj=2), ValueError, "in the middle of an episode"),
    ),
    *rows_for(
        CARTPOLES,
        (call("step", [0, 1], [0, 2]), ValueError, "steps its 3 envs together", "actions for [0, 2] only"),
        (call("reset", 1), ValueError, "is not known to reset only some envs", "got reset([1]): pass no"),
        (call("seed", [1, None, 2]), ValueError, "is not known to reset only some envs"),
        (call("step", [0, 1, 0], reset=[1]), ValueError, "whose episode ended in the previous step: []"),
        (call("step", [0] * 3, autoreset=True), TypeError, "cannot reset an env in the round of its last"),
        (call("step", ["left", 1, 0]), ValueError, "the action for env 0 is 'left', which does not fit"),
        (call("reset", speed=1), TypeError, "takes only seed and options, got ['speed']"),
        (call("set_env_attr", "gravity", 3), AttributeError, "it has no set_attr"),
        (call("get_state"), NotImplementedError, "has no get_state of single envs"),
    ),
    *rows_for(
        Subject(lambda: native("Disabled"), lambda venv: venv.reset()),
        (call("reset", [1]), RuntimeError, "first reset of SyncVectorEnv must be of all envs"),
    ),
    *rows_for(DISABLED, (call("step", [1] * N, reset=[1]), ValueError, "cannot reset some of them instead: call")),
    *rows_for(
        ready(disabled, [0] * N),
        (call("reset", [0]), ValueError, "got reset([0]): pass no ids; if it does, pass resets_by_id"),
    ),
    *rows_for(
        Subject(ended, lambda venv: venv.step([0] * N, reset=[0])),
        (call("step", [0] * N), RuntimeError, "env 0 has not been reset, or its episode is over"),
        (call("send", [0] * N, reset=[0], seed=7), ValueError, "cannot reset with seed or options, got"),
    ),
    *rows_for(
        ready(lambda: native("SameStep"), [0] * N),
        (call("step", [0] * N, autoreset=[5, -1, 6, 7]), TypeError, "cannot seed an env in the round of"),
    ),
]

# EnvPool, by its double.


def pools(n: int = 3, **config: Any) -> EnvPoolVectorEnv:
    return EnvPoolVectorEnv(PoolDouble.make(n, **config))


POOLS: tuple[Any, Any] = (
    lambda **arguments: MultiThreadedEnvWrapper(PoolDouble.make(2), **arguments),
    lambda **arguments: MultiThreadedEnv(**{"num_workers": 2, "env_name": "CartPole-v1", **arguments}),
)
ATTRIBUTES = [call("get_env_attr", "x"), call("set_env_attr", "x", 1), call("call", "x")]
WITHOUT_EFFECT = (
    ({"frame_skip": 4}, "cannot do frame_skip=4: some tasks of EnvPool repeat actions"),
    ({"device": "cuda:0"}, "cannot do device='cuda:0': results are numpy arrays"),
    ({"categorical_action_encoding": False}, "encode them as one-hot vectors in the policy"),
    ({"disable_env_checker": False}, "check_vector_env"),
    ({"allow_done_after_reset": True}, "no env of EnvPool is done after a reset"),
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
        (call("step", [0, 10**6, 0]), ValueError, "for env 1 is 1000000, which is not in Discrete"),
        (call("step", [0, 0, -1], [2, 0, 1]), ValueError, "the action for env 1 is -1"),
        (call("step", [[0, 1]] * 3, [2, 0, 1]), ValueError, "has the shape (3, 2), expected (3,)"),
        (call("step", [0, 0, 0], autoreset=True), TypeError, "EnvPoolVectorEnv cannot reset an env in the round of"),
        ([call("reset", options={"x": 1}), call("reset", length=3)], TypeError, "the reset of EnvPool takes only seed"),
        ([call("reset", [0], seed=1), call("reset", seed=[1, None, 2])], ValueError, "of all its 3 envs at once"),
        (call("seed", [1, None, 2]), ValueError, "seeds all its envs together"),
        (ATTRIBUTES, AttributeError, "the envs of EnvPool are C++, and have no attribute 'x'"),
        (call("render", width=3), TypeError, "render() got an unexpected keyword argument 'width'"),
        (call("render"), RuntimeError, "render_mode must be set to 'rgb_array' or 'human'"),
    ),
    *rows_for(
        NOTHING,
        *(([partial(make, **given) for make in POOLS], ValueError, says) for given, says in WITHOUT_EFFECT),
        (each(("CartPole-v1", PoolDouble), EnvPoolVectorEnv), TypeError, "expected a pool of envpool.make"),
        (lambda: pools(2, max_num_players=4), ValueError, "the envs of this pool have up to 4 players"),
        (lambda: EnvPoolVectorEnv.make(None, 1), TypeError, "the task must be the id of an EnvPool task"),
        (lambda: MultiThreadedEnvWrapper(), TypeError, "MultiThreadedEnvWrapper needs env, a pool of envpool.make"),
        (partial(POOLS[0], speed=3), TypeError, "unexpected argument 'speed'"),
        (lambda: MultiThreadedEnvWrapper(PoolDouble.make(2, batch_size=1)), ValueError, "asynchronous, 1 of 2"),
    ),
    *arguments_of(
        POOLS[1],
        ({"create_env_kwargs": {"batch_size": 1}}, ValueError, "create_env_kwargs must not have ['batch_size']"),
        ({"create_env_kwargs": [("seed", 1)]}, TypeError, "create_env_kwargs must be a dict"),
    ),
]

# Single envs.


class Blind(CountingEnv):
    def render(self) -> Any:
        return None


UNKNOWN = gym.error.NameNotFound
REGISTERS_NONE = "The module 'numbers' was imported, and registers"
NOT_FLAT_FLOATS = spaces.Box(-1, 1, (2, 2)), spaces.Box(0, 9, (2,), np.int64)
PLANE = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 3], np.float32))


def discrete(space: Any, counts: Any = 2) -> object:
    return ContinuousToDiscrete(Records(space), counts)


def combined(*counts: Any) -> object:
    return MultiDiscreteToDiscrete(Records(spaces.MultiDiscrete(counts)))


SINGLE_ENVS = [
    *rows_for(
        NOTHING,
        (lambda: GymEnv(3), TypeError, "id of an env or an env, got 3"),
        (lambda: GymEnv("CartPole-v1", env=CountingEnv()), TypeError, "env_name and env were both passed"),
        (lambda: GymEnv(CountingEnv(), g=2.0), TypeError, "['g'] are arguments for gymnasium.make"),
        (lambda: GymEnv("NoSuch-v0", frame_skip=2), UNKNOWN, "Environment `NoSuch` doesn't exist"),
        ([lambda: GymEnv("numbers:Wlak"), lambda: make_vec("numbers:Wlak")], UNKNOWN, "`Wlak`", REGISTERS_NONE),
        (lambda: GymEnv("no_such_module:NoSuch-v0"), ModuleNotFoundError, "No module named 'no_such_module'"),
        (lambda: GymEnv(GymEnv(CountingEnv(), frame_skip=4), frame_skip=2), ValueError, "skips frames already: 4"),
        (lambda: GymEnv("FrozenLake-v1", from_pixels=True, render_mode="ansi"), ValueError, "an env", "got 'ansi'"),
        (lambda: GymEnv(Blind(), from_pixels=True), ValueError, "<Blind instance> returned None"),
        (lambda: GymEnv(CountingEnv(), from_pixels=True, render_kwargs={"w": 1}), TypeError, "render_kwargs={'w': 1}"),
        (lambda: ContinuousToDiscrete(gym.make("CartPole-v1"), 2), TypeError, "Box action space, got Discrete(2)"),
        (each(NOT_FLAT_FLOATS, discrete), ValueError, "needs an action space of floats with one dimension, got VALUE"),
        (lambda: discrete(spaces.Box(-np.inf, np.inf, (2,))), ValueError, "needs an action space with finite bounds"),
        (each((0, [2, 0], [2, 1.5]), partial(discrete, PLANE)), ValueError, "action_per_dim must be positive integers"),
        (each(([2], [2, 2, 2]), partial(discrete, PLANE)), ValueError, "entries, the action space 2 dimensions"),
        (lambda: MultiDiscreteToDiscrete(gym.make("CartPole-v1")), TypeError, "MultiDiscrete action space, got"),
        (lambda: combined([3, 3], [3, 3]), ValueError, "MultiDiscreteToDiscrete needs an action space with one dim"),
        (lambda: combined(*[10] * 19), ValueError, "has 10000000000000000000 combinations"),
    )
]

# ALE, which has no wheel for free-threaded Python.


def atari(**options: Any) -> object:
    return AtariVectorEnv(**{"game": "pong", "num_envs": 2, **options})


COUNTS = ("num_envs", "batch_size", "stack_num", "img_height", "img_width", "frameskip")
ATARI = [
    *rows_for(NOTHING, (each(COUNTS, lambda name: atari(**{name: -1})), ValueError, "VALUE must be an integer")),
    *arguments_of(
        atari,
        ({"autoreset_mode": "Disabled"}, ValueError, "autoreset_mode must be NEXT_STEP or SAME_STEP", "ShmemVectorEnv"),
        ({"game": "chess"}, ValueError, "ale-py has no game 'chess'"),
        ({"game": None}, TypeError, "game must be the name"),
        ({"autoreset_mode": "SameStep", "life_loss_info": True}, ValueError, "final_obs after a lost life is not the"),
        ({"batch_size": 3}, ValueError, "batch_size must be an integer in [1, 2], got 3"),
    ),
]
ROWS = [*VECTOR_ENVS, *ENVPOOL, *SINGLE_ENVS, *(ATARI if find_spec("ale_py") else ())]
