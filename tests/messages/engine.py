"""Messages of vector envs: constructors, ids, actions, options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller as call
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from tests.messages.rows import NOTHING, Row, Subject, arguments_of, each, rows_for
from tests.support.agent_envs import Herd, Relay
from tests.support.cases import LocalWorker, Plays, Records, counting, playing
from tests.support.shared_envs import counted
from vecenv import (
    AsyncVectorEnv,
    BaseVectorEnv,
    DummyVectorEnv,
    EnvCreator,
    GymnasiumVectorEnv,
    ObservationError,
    ParallelEnv,
    ParallelVectorEnv,
    Partial,
    RunningMeanStd,
    SerialEnv,
    SharedState,
    ShmemVectorEnv,
    SubprocVectorEnv,
    ThreadVectorEnv,
    TransformedEnv,
    TransformedVectorEnv,
    VectorEnvNormObs,
    VectorEnvWrapper,
    step_mdp,
)
from vecenv.sb3 import DummyVecEnv
from vecenv.spaces import is_in, project, rand
from vecenv.testing import CountingEnv, FakeBackend, check_env
from vecenv.transforms import CatFrames, NormalizeReward, Rows

NAN = float("nan")
STATE = ("calls", "t", "episode", "seeded", "action")
SHARED = CountingEnv()
NATIVE = partial(gym.make_vec, "CartPole-v1", 2, vectorization_mode="sync")


class OtherWorker(LocalWorker):
    pass


def must_not_be_made() -> None:
    raise AssertionError("made")


def two_classes() -> BaseVectorEnv:
    kinds = iter([LocalWorker, OtherWorker])
    return BaseVectorEnv(counting(2), lambda env_fn: next(kinds)(env_fn))


def ready() -> DummyVectorEnv:
    venv = DummyVectorEnv(counting(3))
    venv.reset(seed=5)
    venv.step([1, 2, 3])
    return venv


def unchanged(venv: DummyVectorEnv) -> None:
    assert [venv.get_env_attr(key) for key in STATE] == [[2] * 3, [1] * 3, [0] * 3, [5, 6, 7], [1, 2, 3]]
    assert (venv.ready_id, venv.waiting_id, venv.failed_id) == ([0, 1, 2], [], [])
    assert venv.step([4, 5, 6])[0][:, [0, 2, 4]].tolist() == [[0, 2, 4], [1, 2, 5], [2, 2, 6]]


def strict() -> DummyVectorEnv:
    venv = DummyVectorEnv(counting(3, length=1), strict=True)
    venv.reset([0, 1])
    return venv


DISCRETE, BOX, TEXT = spaces.Discrete(9), spaces.Box(-9, 9, (2,), np.float32), spaces.Text(5)
IMAGE = spaces.Box(0, 255, (2, 3), np.uint8)
TREE = spaces.Dict({"a": BOX, "b": spaces.Tuple((BOX, TEXT))})
NESTED = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Discrete(3)])})
MODES = 'one of NEXT_STEP ("NextStep"), SAME_STEP ("SameStep"), DISABLED ("Disabled"), got'
Parallel = partial(pettingzoo.make, "parallel", "classic/rps-v2")


def with_option(kind: Any, **options: Any) -> Any:
    return kind(counting(3), **options)


def unlike() -> object:
    return DummyVectorEnv([partial(Plays, spaces.Discrete(k), [0]) for k in (2, 2, 3)], check_spaces=True)


TWO_OF_THREE: list[Callable[[], object]] = [
    partial(SerialEnv, 3, CountingEnv, create_env_kwargs=[{}] * 2),
    lambda: SerialEnv(3, CountingEnv).update_kwargs([{}] * 2),
    lambda: ShmemVectorEnv([EnvCreator(counted, [{}, {}])] * 3),
]
CONSTRUCTORS = [
    *arguments_of(
        DummyVectorEnv,
        ([[]], ValueError, "env_fns is empty; pass at least one callable"),
        ([[CountingEnv()]], TypeError, "env_fns[0] is an Env instance, not a function that makes an env; use"),
        (["CartPole-v1"], TypeError, "must be a sequence of callables, one per env", "pass ['CartPole-v1'] * n"),
        ([[CountingEnv, lambda: None]], TypeError, "env_fns[1]() returned None, expected an env"),
        ([[NATIVE]], TypeError, "env_fns[0]() returned the vector env SyncVectorEnv", "expected one env; use lambda:"),
        ([[lambda: CountingEnv]], TypeError, "the class CountingEnv, expected an env; use lambda: CountingEnv()"),
        ([[lambda: SHARED, lambda: TimeLimit(SHARED, 3)]], ValueError, "env_fns[0] and env_fns[1] returned the same"),
        ([[must_not_be_made, "CartPool-v1"]], gym.error.NameNotFound, "Did you mean: `CartPole`"),
        ([[must_not_be_made, "CartPole-v99"]], gym.error.VersionNotFound, "version `v99` for environment `CartPole`"),
        ([[CountingEnv, Herd]], TypeError, "env_fns[1]() returned", "use ParallelVectorEnv(env_fns), and flat"),
        ([[Relay]], TypeError, "an AECEnv of PettingZoo: use AECVectorEnv(env_fns), or"),
    ),
    *arguments_of(
        partial(with_option, DummyVectorEnv),
        ({"num_workers": 9}, ValueError, "num_workers must be an integer in [1, 3], got 9"),
        ({"timeout": True}, ValueError, "timeout must be a positive number of seconds or None, got True"),
        ({"on_error": "ignore"}, ValueError, 'on_error must be "raise" or "restart", got \'ignore\''),
    ),
    *arguments_of(
        partial(with_option, ShmemVectorEnv),
        ({"context": "thread"}, ValueError, "one of ('fork', 'forkserver', 'spawn') or None, got 'thread'"),
        ({"max_restarts": 0}, ValueError, "max_restarts must be a positive integer, got 0"),
        *(
            ({"recycle_after": value}, error, f"takes a worker and returns a bool, got {value!r}")
            for value, error in ((0, ValueError), ("2 GiBs", ValueError), ("-1 GiB", ValueError), (True, TypeError))
        ),
    ),
    *arguments_of(
        partial(with_option, BaseVectorEnv),
        ({}, TypeError, "pass either worker_fn"),
        ({"worker_fn": lambda env_fn: env_fn()}, TypeError, "which is not an EnvWorker: it lacks"),
        ({"backend": 5}, TypeError, "worker_fn must be callable and backend a Backend, got"),
        ({"backend": FakeBackend(), "lazy": True}, TypeError, "with lazy=True, backend must be a function"),
        ({"backend": lambda: 3}, TypeError, "backend must be a Backend or a function that makes one", "which made 3"),
    ),
    *arguments_of(
        lambda kind, name: kind([must_not_be_made] * 2, **{name: 1}),
        ([ShmemVectorEnv, "num_worker"], TypeError, "ShmemVectorEnv has no", "did you mean 'num_workers'?"),
        ([SubprocVectorEnv, "start_method"], TypeError, "SubprocVectorEnv has", "it has affinity, check_actions,"),
        ([DummyVectorEnv, "backend"], TypeError, "DummyVectorEnv has no", "it has check_actions, check_spaces, copy"),
        ([DummyVectorEnv, "step_timeout"], TypeError, "no argument 'step_timeout'; it needs workers: use ShmemVector"),
        ([ThreadVectorEnv, "recycle_after"], TypeError, "that an env leaks is only free after the end of its process"),
        ([ThreadVectorEnv, "spare_envs"], TypeError, "it needs worker processes: use ShmemVectorEnv"),
        ([AsyncVectorEnv, "seed_episode"], TypeError, "AsyncVectorEnv has no", "did you mean 'seed_episodes'?"),
        ([ParallelVectorEnv, "num_worker"], TypeError, "ParallelVectorEnv has no", "did you mean 'num_workers'?"),
    ),
    *rows_for(
        NOTHING,
        (partial(ParallelEnv, 2, CountingEnv, create_env_kwarg={}), TypeError, "ParallelEnv has no argument"),
        (each((AsyncVectorEnv, DummyVecEnv), lambda kind: kind([Parallel] * 2)), TypeError, "use ParallelVectorEnv"),
        (lambda: ParallelVectorEnv([Herd], "dummy", autoreset_mode="never"), ValueError, f"{MODES} 'never'"),
        (lambda: GymnasiumVectorEnv(ready(), autoreset_mode=1), ValueError, f"{MODES} 1"),
        (two_classes, TypeError, "workers of several classes, ['LocalWorker', 'OtherWorker']"),
        (lambda: SerialEnv(3, [CountingEnv] * 2), ValueError, "create_env_fn has 2 entries, expected one"),
        (TWO_OF_THREE, ValueError, "create_env_kwargs has 2 entries, expected one for each of 3 envs"),
        (lambda: SerialEnv(2, CountingEnv).update_kwargs([{}, 3]), TypeError, "a list of dicts, one per env; got"),
        (unlike, ValueError, "differ in their observation_space: envs [0, 1]: Discrete(2); envs [2]: Discrete(3)"),
    ),
]

# Env creators, spaces, statistics, and wrappers of vector envs.

TWO_COLUMNS = {"mean": [1.0, 2.0], "var": [1.0, 2.0], "count": 1, "skipped": 0}


def padded(value: Any) -> CatFrames:
    return CatFrames(3, 0, padding="constant", padding_value=value)


def norm_obs(*env_fns: Any, **options: Any) -> VectorEnvNormObs:
    return VectorEnvNormObs(VectorEnvWrapper(DummyVectorEnv(env_fns, **options)))


def many_creators() -> object:
    return ShmemVectorEnv([EnvCreator(counted) for _ in range(201)], num_workers=1)


def two_rewards() -> object:
    return NormalizeReward().step(Rows(None, None, np.zeros((3, 2)), ids=np.arange(3)))


def loaded(kind: Any) -> None:
    kind().load_state_dict({"mean": 0, "var": 1, "count": 1})


def single_env() -> object:
    return TransformedEnv(Plays(IMAGE, []), padded(256))


def whole_batch() -> object:
    return TransformedVectorEnv(DummyVectorEnv(playing(IMAGE, [])), padded(0.5))


PARTIAL = Partial(np.zeros(0), {}, {}, {}, {}, {})
PARTS = rows_for(
    NOTHING,
    (lambda: EnvCreator(CountingEnv()), TypeError, "create_env_fn must be a callable"),
    (lambda: EnvCreator(partial(counted, size=1)), TypeError, "unexpected keyword argument 'size'"),
    (lambda: SharedState({"a": np.array([True])}), TypeError, "'a' has the dtype bool, but"),
    (lambda: EnvCreator(partial(counted, first=-np.inf)), ValueError, "arrays of Counted must begin with finite"),
    (many_creators, ValueError, "201 EnvCreators with a state each, at most 200"),
    (lambda: EnvCreator(counted, [{}, {}])(), RuntimeError, "arguments for 2 envs"),
    (lambda: step_mdp({"obs": 1}), KeyError, "the batch has no entry 'next'"),
    (lambda: project(BOX, [1.0]), ValueError, "the value has the shape (1,), expected (2,)"),
    (lambda: project(DISCRETE, NAN), ValueError, "NaN has no nearest element in Discrete(9)"),
    ([partial(is_in, TEXT, 0), partial(rand, TEXT, 2)], TypeError, "Text(1, 5, charset=", "has no array form"),
    (lambda: NormalizeReward(gamma=1.1), ValueError, "gamma must be in [0, 1], got 1.1"),
    (lambda: NormalizeReward(epsilon=0), ValueError, "epsilon must be a finite number above 0, got 0"),
    (two_rewards, ValueError, "NormalizeReward() needs rewards that are numbers, got the shape (2,)"),
    (each((RunningMeanStd, NormalizeReward), loaded), ValueError, "expected ['count', 'mean', 'skipped', 'var'], got"),
    (lambda: NormalizeReward().load_state_dict(TWO_COLUMNS), ValueError, "its rows have the shapes (2,) and (2,)"),
    (lambda: padded("0"), ValueError, "padding_value must be a number"),
    ([single_env, whole_batch], ValueError, "CatFrames", "which uint8 cannot hold"),
    (lambda: check_env(CountingEnv, timeout=None), ValueError, "timeout must be a positive number"),
    (lambda: norm_obs(*playing(TREE, [])), ValueError, "cannot normalise obs['b'][1]: it is not an array"),
    (lambda: norm_obs(*playing(BOX, []), *playing(IMAGE, [])), ValueError, "cannot normalise obs", "in all envs"),
    (lambda: norm_obs(*counting(2, form="dict"), stack_obs=False), ValueError, "make the venv with stack_obs=True"),
    (lambda: VectorEnvNormObs([CountingEnv]), TypeError, "wraps a vector env of vecenv", "NormalizeObservation"),
    (lambda: PARTIAL.merge_into(np.zeros((2, 1))), TypeError, "take its rows by env_id"),
)

# Ids, actions, seeds and options.


def autoreset(venv: Any, value: Any) -> object:
    return venv.step([0] * 3, autoreset=value)


NOT_WHOLE = [0, 0.5, 1], [0, NAN, 1], np.array([0, 0.5, 1], object)
SEEDS = [
    (-1, call("seed", -1)),
    (-1, call("send", [0] * 3, reset=[1], seed=-1)),
    (-3, call("set_seed", -3)),
    (-2, call("step", [0] * 3, autoreset=np.array([1, -2, 3]))),
    (2**63, call("seed", 2**63 - 2)),
]
CALLS = rows_for(
    Subject(ready, unchanged),
    (call("step", [0], [2, 1]), ValueError, "got 1 actions for 2 envs [2, 1]"),
    (call("step", 1), ValueError, "got the single action", "pass one action per env"),
    (call("step", None), ValueError, "step(None) waits for steps in flight"),
    (call("recv"), RuntimeError, "no step is in flight"),
    (call("send", None), ValueError, "one action for each env, or ids to reset"),
    (each(NOT_WHOLE, lambda v, x: v.step(x)), TypeError, "envs [0, 1, 2] must be whole numbers that fit the int64"),
    (call("step", "abc"), TypeError, "got the str 'abc' for envs [0, 1, 2]"),
    (call("step", [0, 0], [0, 9]), IndexError, "env id 9 is out of range for 3 envs"),
    (each((-1, np.uint64(2**63)), lambda v, i: v.reset(i)), IndexError, "env id VALUE is out of range for 3 envs"),
    (call("step", [0, 0, 0], [0, 2, 0]), ValueError, "env id 0 is given twice"),
    (call("reset", []), ValueError, "no env ids given; pass at least one, or None for all"),
    (call("reset", True), ValueError, "must have the shape (3,), got ()"),
    (call("reset", "1"), TypeError, "env ids must be integers, got '1'"),
    (call("reset", [[0], [1, 2]]), TypeError, "env ids must be integers, got [[0], [1, 2]]"),
    (call("step", [0, 0], [0, 1], reset=[2]), ValueError, "must be among the envs"),
    (call("step", [0] * 3, reset=[0, [1]]), TypeError, "reset= must be ids or a mask"),
    (call("send", [0] * 3, seed=1), TypeError, "only resets use, but no ids to reset"),
    (call("step", [0] * 3, reset=[0, 1], options=[{}]), ValueError, "got 1 options for 2 envs [0, 1]; pass one dict"),
    (each((0, "yes", np.array(1)), autoreset), TypeError, "autoreset must be True, False, or one seed per env that"),
    (call("step", [0] * 3, autoreset=np.ones(3, bool)), ValueError, "a seed must be a non-negative integer, got True"),
    (call("step", [0] * 3, autoreset=[1, 2]), ValueError, "2 seeds in autoreset for 3"),
    (call("seed", [1, 2]), ValueError, "got 2 seeds for 3 envs [0, 1, 2]"),
    (each((b"abc", True, 1.0), lambda v, s: v.reset(seed=s)), ValueError, "a seed must be a non-negative", "got VALUE"),
    (SEEDS, ValueError, "a seed must be at least 0 and below 2**63, got VALUE"),
    (call("set_state", 1), TypeError, "a list with one state per env, got 1"),
    (call("get_env_attr", "nope", [1]), AttributeError, "CountingEnv has no attribute 'nope'", "env 1"),
    (call("step", [0], 0, env_id=0), TypeError, "two names of one argument"),
)


def with_actions(space: Any, action: Any, error: Any, *says: str) -> list[Row]:
    """Return a row: envs with this action space refuse the action, and have got no action afterwards."""

    def make() -> DummyVectorEnv:
        venv = DummyVectorEnv([partial(Records, space)] * 3)
        venv.reset()
        return venv

    def got_nothing(venv: DummyVectorEnv) -> None:
        assert venv.get_env_attr("actions") == [[]] * 3

    return rows_for(Subject(make, got_nothing), (call("step", action), error, *says))


def observes(space: Any, wrong: Any, *says: str) -> list[Row]:
    """Return a row: env 1 observes `wrong` in its first step."""

    def make() -> DummyVectorEnv:
        fine = space.sample()
        venv = DummyVectorEnv(playing(space, [fine], [fine, wrong]))
        venv.reset()
        return venv

    return rows_for(Subject(make), (call("step", [0, 0]), ObservationError, "env 1: obs", *says))


AB = spaces.Dict({"a": DISCRETE, "b": BOX})
TWO_NUMBERS = spaces.Dict({"a": DISCRETE, "b": DISCRETE})
GO_AND_SAY = spaces.Dict({"go": DISCRETE, "say": TEXT})
ARRAYS = [
    *with_actions(BOX, np.zeros((3, 2, 1)), ValueError, "envs [0, 1, 2] has the shape (3, 2, 1), expected (3, 2)"),
    *with_actions(BOX, [[1, 1], [1], [1, 1]], ValueError, "for env 1 has the shape (1,), expected (2,)"),
    *with_actions(AB, {"a": [0] * 3, "b": np.zeros((3, 3))}, ValueError, "action['b'] for envs [0, 1, 2] has the"),
    *with_actions(spaces.Tuple([DISCRETE, BOX]), [(0, [0.0])] * 3, ValueError, "action[1] for envs [0, 1, 2] has"),
    *with_actions(TWO_NUMBERS, {"a": [0] * 3, "b": [0] * 2}, ValueError, "got 2 actions for 3 envs"),
    *with_actions(spaces.Tuple([DISCRETE, TEXT]), ([0] * 3, ["a"] * 3), TypeError, "a list with one action per env"),
    *with_actions(GO_AND_SAY, {"go": [0.5] * 3, "say": ["a"] * 3}, TypeError, "action['go'] for envs [0] must be"),
    *observes(spaces.Box(0, 255, (2,), np.uint8), [300, 1], "values in [1, 300], the space has uint8 (2,)"),
    *observes(spaces.Box(0, 9, (2,), np.int64), [2.7, 1], "(2,) with values in [1.0, 2.7], the space has int64"),
    *observes(BOX, np.ones((1, 2)), "is float64 (1, 2) with values in [1.0, 1.0], the space has float32 (2,)"),
    *observes(BOX, None, "is object (), the space has float32 (2,)"),
    *observes(spaces.Box(0, 9, (2, 2)), [[1, 2], [3]], "is ragged, the space has float32 (2, 2)"),
    *observes(BOX, np.array([1e300, 1]), "with values in [1.0, 1e+300], the space has float32 (2,)"),
    *observes(NESTED, {"a": 1}, "obs has the wrong keys: missing ['b'], not in the space []"),
    *observes(NESTED, {"a": 1, "b": (1,), "c": 1}, "obs has the wrong keys: missing [], not in the space ['c']"),
    *observes(NESTED, [1, 2], "obs is a list, expected a dict with the keys ['a', 'b']"),
    *observes(NESTED, {"a": 1, "b": [1, 2]}, "obs['b'] is a list of 2, expected a tuple of 1"),
    *observes(NESTED, {"a": 1, "b": (2.5,)}, "obs['b'][0] is float64 () with values in [2.5, 2.5]"),
]
STATES = [
    *rows_for(
        Subject(strict),
        (call("step", [0] * 3), RuntimeError, "env 2 has not been reset", "call reset(2) first"),
        (lambda v: v.step([0, 0], [0, 1]) and v.step([0], 1), RuntimeError, "env 1 has not been reset"),
    ),
    *rows_for(
        Subject(lambda: BaseVectorEnv(counting(2), LocalWorker)),
        (call("step", [0, 0], autoreset=True), TypeError, "BaseVectorEnv cannot reset an env in the round of its last"),
        (call("get_state"), AttributeError, "'LocalWorker' object has no attribute 'get_state'"),
    ),
    *rows_for(
        Subject(lambda: DummyVectorEnv(playing(BOX, [np.zeros(2, np.float32)] * 2))),
        (call("get_state"), NotImplementedError, "Plays cannot save its state: define get_state", "env 0"),
        (call("set_state", [None, None]), ValueError, "2 states for 1 envs"),
    ),
]
ROWS = [*CONSTRUCTORS, *PARTS, *CALLS, *ARRAYS, *STATES]
