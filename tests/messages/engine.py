"""Messages of vector envs: constructors, ids, actions, options."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
from gymnasium import spaces

from tests.messages.rows import NOTHING, Subject, rows_for
from tests.support.agent_envs import Herd, Relay
from tests.support.cases import LocalWorker, Plays, Records, counting, playing
from tests.support.shared_envs import counted
from vecenv import (
    AECVectorEnv,
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
    SyncVectorEnv,
    ThreadVectorEnv,
    TransformedEnv,
    TransformedVectorEnv,
    VectorEnvNormObs,
    VectorEnvWrapper,
    step_mdp,
)
from vecenv.sb3 import DummyVecEnv, SubprocVecEnv
from vecenv.spaces import is_in, project, rand
from vecenv.testing import CountingEnv, FakeBackend, check_env
from vecenv.transforms import CatFrames, NormalizeReward, Rows

NAN = float("nan")
STATE = ("calls", "t", "episode", "seeded", "action")
SHARED = CountingEnv()


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


def with_actions(space: Any) -> Subject:
    """A vector env with this action space, whose envs have got no action afterwards."""

    def make() -> DummyVectorEnv:
        venv = DummyVectorEnv([partial(Records, space)] * 3)
        venv.reset()
        return venv

    def got_nothing(venv: DummyVectorEnv) -> None:
        assert venv.get_env_attr("actions") == [[]] * 3

    return Subject(make, got_nothing)


def two_steps(space: Any, wrong: Any) -> DummyVectorEnv:
    """A vector env whose env 1 observes `wrong` in its first step."""
    fine = space.sample()
    venv = DummyVectorEnv(playing(space, [fine], [fine, wrong]))
    venv.reset()
    return venv


def strict() -> DummyVectorEnv:
    venv = DummyVectorEnv(counting(3, length=1), strict=True)
    venv.reset([0, 1])
    return venv


DISCRETE, BOX = spaces.Discrete(9), spaces.Box(-9, 9, (2,), np.float32)
IMAGE = spaces.Box(0, 255, (2, 3), np.uint8)
TREE = spaces.Dict({"a": BOX, "b": spaces.Tuple((BOX, spaces.Text(5)))})
NESTED = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Discrete(3)])})
TWO_COLUMNS = {"mean": [1.0, 2.0], "var": [1.0, 2.0], "count": 1, "skipped": 0}
READY = Subject(ready, unchanged)
Parallel = partial(pettingzoo.make, "parallel", "classic/rps-v2")
NO_SUCH_ARGUMENT: tuple[tuple[Any, dict[str, Any], str], ...] = (
    (ShmemVectorEnv, {"num_worker": 2}, "did you mean 'num_workers'?"),
    (SubprocVectorEnv, {"start_method": "fork"}, "it has affinity, check_actions, check_spaces, context, copy"),
    (ThreadVectorEnv, {"steptimeout": 1}, "did you mean 'step_timeout'?"),
    (DummyVectorEnv, {"backend": "shmem"}, "it has check_actions, check_spaces, copy, env_fns, lazy"),
    (DummyVectorEnv, {"step_timeout": 1}, "it needs workers: use ShmemVectorEnv"),
    (DummyVectorEnv, {"recycle_after": 9}, "use ShmemVectorEnv"),
    (ThreadVectorEnv, {"recycle_after": 9}, "memory that an env leaks is only free after the end of its process"),
    (ThreadVectorEnv, {"spare_envs": 1}, "it needs worker processes: use ShmemVectorEnv"),
    (AsyncVectorEnv, {"seed_episode": True}, "did you mean 'seed_episodes'?"),
    (SyncVectorEnv, {"num_worker": 1}, "did you mean 'num_workers'?"),
    (SubprocVecEnv, {"num_worker": 1}, "did you mean 'num_workers'?"),
    (DummyVecEnv, {"onerror": 1}, "did you mean 'on_error'?"),
    (ParallelVectorEnv, {"num_worker": 1}, "did you mean 'num_workers'?"),
    (AECVectorEnv, {"auto_reset": 1}, "did you mean 'autoreset_mode'?"),
)
MODES = 'one of NEXT_STEP ("NextStep"), SAME_STEP ("SameStep"), DISABLED ("Disabled"), got '
BAD_OPTIONS: tuple[tuple[Any, dict[str, Any], type[Exception], str], ...] = (
    *((DummyVectorEnv, {"num_workers": value}, error, f"num_workers must be an integer in [1, 3], got {value!r}")
      for value, error in ((0, ValueError), (9, ValueError), (1.5, TypeError), (True, TypeError))),
    (DummyVectorEnv, {"wait_num": "2"}, TypeError, "wait_num must be an integer in [1, 3], got '2'"),
    *((kind, {name: value}, ValueError, f"{name} must be a positive number of seconds or None, got {value!r}")
      for kind, name, value in (
        (DummyVectorEnv, "timeout", -1), (DummyVectorEnv, "timeout", NAN), (DummyVectorEnv, "timeout", True),
        (ShmemVectorEnv, "start_timeout", 0), (ThreadVectorEnv, "step_timeout", "1"))),
    *((ShmemVectorEnv, {"recycle_after": value}, error, "or a function that takes a worker and returns a bool")
      for value, error in ((0, ValueError), ("2 GiBs", ValueError), ("-1 GiB", ValueError), (1.5, TypeError),
                           (True, TypeError))),
    *((ShmemVectorEnv, {"spare_envs": value}, error, "spare_envs must be an integer of at least 0, got ")
      for value, error in ((-1, ValueError), (1.5, TypeError), (None, TypeError))),
    (DummyVectorEnv, {"on_error": "ignore"}, ValueError, "on_error must be \"raise\" or \"restart\", got 'ignore'"),
    (ShmemVectorEnv, {"max_restarts": 0}, ValueError, "max_restarts must be a positive integer, got 0"),
    (ShmemVectorEnv, {"context": "thread"}, ValueError, "one of ('fork', 'forkserver', 'spawn') or None, got 'thread'"),
    (BaseVectorEnv, {}, TypeError, "pass either worker_fn"),
    (BaseVectorEnv, {"worker_fn": lambda env_fn: env_fn()}, TypeError, "which is not an EnvWorker: it lacks"),
    (BaseVectorEnv, {"backend": 5}, TypeError, "worker_fn must be callable and backend a Backend, got"),
    (BaseVectorEnv, {"backend": FakeBackend(), "lazy": True}, TypeError, "with lazy=True, backend must be a function"),
    (BaseVectorEnv, {"backend": lambda: 3}, TypeError, "which made 3"),
    (DummyVectorEnv, {"wait_num": 4, "lazy": True}, ValueError, "wait_num must be an integer in [1, 3], got 4"),
    (AsyncVectorEnv, {"autoreset_mode": "never"}, ValueError, MODES + "'never'"),
)  # fmt: skip
ROWS = [
    *rows_for(
        NOTHING,
        *(
            (lambda _, fns=fns: DummyVectorEnv(fns), error, *says)
            for fns, error, *says in (
                ([], ValueError, "env_fns is empty", "pass at least one callable"),
                ([CountingEnv()], TypeError, "env_fns[0] is an Env instance, not a function that makes an env; use"),
                ([CountingEnv, 5], TypeError, "env_fns[1] is of type int, not a function that makes an env"),
                (CountingEnv, TypeError, "env_fns must be a sequence of callables"),
                ("CartPole-v1", TypeError, "for n equal envs pass ['CartPole-v1'] * n"),
                ([CountingEnv, lambda: None], TypeError, "env_fns[1]() returned None", "expected an env"),
                ([CountingEnv, lambda: gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")], TypeError,
                 "env_fns[1]() returned the vector env SyncVectorEnv", "expected one env; use lambda:"),
                ([CountingEnv, lambda: CountingEnv], TypeError,
                 "env_fns[1]() returned the class CountingEnv, expected an env; use lambda: CountingEnv()"),
                ([lambda: SHARED] * 2, ValueError,
                 "env_fns[0] and env_fns[1] returned the same env object; each must make a new one"),
                ([lambda: SHARED, lambda: gymnasium.wrappers.TimeLimit(SHARED, 3)], ValueError, "same env object"),
                ([must_not_be_made, "CartPool-v1"], gymnasium.error.NameNotFound, "Did you mean: `CartPole`"),
                ([must_not_be_made, "CartPole-v99"], gymnasium.error.VersionNotFound, "v99"),
                ([CountingEnv, Herd], TypeError, "env_fns[1]() returned", "use ParallelVectorEnv(env_fns), and flat"),
                ([Relay], TypeError, "an AECEnv of PettingZoo: use AECVectorEnv(env_fns), or"),
            )
        ),
        *(
            (lambda _, kind=kind, options=options: kind(counting(3), **options), error, text)
            for kind, options, error, text in BAD_OPTIONS
        ),
        *(
            (
                lambda _, kind=kind, options=options: kind([must_not_be_made] * 2, **options),
                TypeError,
                f"{kind.__name__} has no argument {next(iter(options))!r}; ",
                text,
            )
            for kind, options, text in NO_SUCH_ARGUMENT
        ),
        *(
            (lambda _, kind=kind: kind(2, CountingEnv, create_env_kwarg={}), TypeError,
             f"{kind.__name__} has no argument 'create_env_kwarg'; did you mean")
            for kind in (ParallelEnv, SerialEnv)
        ),
        *(
            (lambda _, kind=kind: kind([Parallel] * 2), TypeError, "use ParallelVectorEnv")
            for kind in (AsyncVectorEnv, DummyVecEnv)
        ),
        (lambda _: ParallelVectorEnv([Herd], "dummy", autoreset_mode="never"), ValueError, MODES + "'never'"),
        (lambda _: GymnasiumVectorEnv(ready(), autoreset_mode=1), ValueError, MODES + "1"),
        (lambda _: two_classes(), TypeError, "workers of several classes, ['LocalWorker', 'OtherWorker']"),
        (lambda _: SerialEnv(3, [CountingEnv] * 2), ValueError, "create_env_fn has 2 entries, expected one"),
        (lambda _: SerialEnv(3, CountingEnv, create_env_kwargs=[{}] * 2), ValueError,
         "create_env_kwargs has 2 entries, expected one for each of 3 envs"),
        (lambda _: SerialEnv(3, CountingEnv).update_kwargs([{}] * 2), ValueError, "create_env_kwargs has 2 entries"),
        (lambda _: SerialEnv(2, CountingEnv).update_kwargs([{}, 3]), TypeError, "a list of dicts, one per env"),
        (lambda _: DummyVectorEnv([partial(Plays, spaces.Discrete(k), [0]) for k in (2, 2, 3)], check_spaces=True),
         ValueError, "differ in their observation_space: envs [0, 1]: Discrete(2); envs [2]: Discrete(3)"),
        *(
            (lambda _, make=make: make(), error, *says)
            for make, error, *says in (
                (lambda: EnvCreator(CountingEnv()), TypeError, "create_env_fn must be a callable"),
                (lambda: EnvCreator(lambda: None), TypeError, "expected an env"),
                (lambda: EnvCreator(counted, 3), TypeError, "create_env_kwargs must be a dict"),
                (lambda: EnvCreator(counted, [1]), TypeError, "create_env_kwargs must be a dict"),
                (lambda: EnvCreator(partial(counted, size=1)), TypeError, "unexpected keyword argument 'size'"),
                (lambda: SharedState({"a": np.array([None])}), TypeError, "'a' has the dtype object, but"),
                (lambda: SharedState({"a": np.array([True])}), TypeError, "'a' has the dtype bool"),
                (lambda: EnvCreator(partial(counted, first=-np.inf)), ValueError,
                 "arrays of Counted must begin with finite"),
                (lambda: ShmemVectorEnv([EnvCreator(counted) for _ in range(201)], num_workers=1), ValueError,
                 "201 EnvCreators with a state each, at most 200"),
                (lambda: ShmemVectorEnv([EnvCreator(counted, [{}, {}])] * 3), ValueError,
                 "2 entries, expected one for each of 3 envs"),
                (lambda: EnvCreator(counted, [{}, {}]).update_kwargs([{}] * 3), ValueError, "3 entries, expected one"),
                (lambda: EnvCreator(counted, [{}, {}])(), RuntimeError, "arguments for 2 envs"),
                (lambda: step_mdp({"obs": 1}), KeyError, "no entry 'next'"),
                (lambda: project(BOX, [1.0]), ValueError, "the value has the shape (1,), expected (2,)"),
                (lambda: project(DISCRETE, NAN), ValueError, "NaN"),
                *((partial(function, spaces.Text(3)), TypeError, "no array form")
                  for function in (partial(is_in, value=0), partial(project, value=0), partial(rand, n=2))),
                (lambda: NormalizeReward(gamma=1.1), ValueError, "gamma must be in [0, 1], got 1.1"),
                (lambda: NormalizeReward(epsilon=0), ValueError, "must be"),
                (lambda: NormalizeReward().step(Rows(None, None, np.zeros((3, 2)), ids=np.arange(3))), ValueError,
                 "rewards that are numbers, got the shape (2,)"),
                *((lambda owner=owner: owner.load_state_dict({"mean": 0, "var": 1, "count": 1}), ValueError,
                   "expected ['count', 'mean', 'skipped', 'var'], got [")
                  for owner in (RunningMeanStd(), NormalizeReward())),
                (lambda: NormalizeReward().load_state_dict(TWO_COLUMNS), ValueError,
                 "its rows have the shapes (2,) and (2,)"),
                (lambda: RunningMeanStd().load_state_dict({**TWO_COLUMNS, "mean": 1.0}), ValueError,
                 "its rows have the shapes () and (2,)"),
                (lambda: CatFrames(3, 0, padding="constant", padding_value="0"), ValueError,
                 "padding_value must be a number"),
                (lambda: TransformedEnv(Plays(IMAGE, []), CatFrames(3, 0, padding="constant", padding_value=256)),
                 ValueError, "CatFrames", "which uint8 cannot hold"),
                (lambda: TransformedVectorEnv(DummyVectorEnv(playing(IMAGE, [])),
                                              CatFrames(3, 0, padding="constant", padding_value=0.5)),
                 ValueError, "CatFrames", "which uint8 cannot hold"),
                (lambda: check_env(CountingEnv, seed=-1), ValueError, "a seed must be at least 0"),
                (lambda: check_env(CountingEnv, steps=0), ValueError, "steps must be an integer of at least 1, got 0"),
                (lambda: check_env(CountingEnv, timeout=None), ValueError, "timeout must be a positive number"),
                (lambda: VectorEnvNormObs(DummyVectorEnv(playing(spaces.Text(5), ["a"]))), ValueError,
                 "cannot normalise obs:"),
                (lambda: VectorEnvNormObs(DummyVectorEnv(playing(TREE, []))), ValueError,
                 "cannot normalise obs['b'][1]:"),
                (lambda: VectorEnvNormObs(DummyVectorEnv([*playing(BOX, []), *playing(IMAGE, [])])), ValueError,
                 "in all envs"),
                (lambda: VectorEnvNormObs(VectorEnvWrapper(DummyVectorEnv(counting(2, form="dict"), stack_obs=False))),
                 ValueError, "stack_obs=True"),
                (lambda: VectorEnvNormObs([CountingEnv]), TypeError, "wraps a vector env of vecenv",
                 "NormalizeObservation"),
            )
        ),
        (lambda _: Partial(np.zeros(0), {}, {}, {}, {}, {}).merge_into(np.zeros((2, 1))), TypeError,
         "take its rows by env_id"),
    ),
    *rows_for(
        READY,
        (lambda v: v.step([0, 1]), ValueError, "got 2 actions for 3 envs [0, 1, 2]"),
        (lambda v: v.step([0], [2, 1]), ValueError, "got 1 actions for 2 envs [2, 1]"),
        (lambda v: v.step(1), ValueError, "got the single action", "pass one action per env"),
        (lambda v: v.step(None), ValueError, "step(None) waits for steps in flight"),
        (lambda v: v.recv(), RuntimeError, "no step is in flight"),
        (lambda v: v.send(None), ValueError, "one action for each env, or ids to reset"),
        (lambda v: v.step([0, 0.5, 1]), TypeError, "must be whole numbers"),
        (lambda v: v.step([0, NAN, 1]), TypeError, "must be whole numbers"),
        (lambda v: v.step(np.array([0, 0.5, 1], object)), TypeError, "must be whole numbers"),
        (lambda v: v.step("abc"), TypeError, "got the str 'abc'"),
        (lambda v: v.step({0, 1, 2}), TypeError, "got the set"),
        (lambda v: v.step([0, 0], [0, 9]), IndexError, "env id 9 is out of range for 3 envs"),
        (lambda v: v.reset(-1), IndexError, "env id -1 is out of range for 3 envs"),
        (lambda v: v.reset(np.uint64(2**63)), IndexError, f"env id {2**63} is out of range"),
        (lambda v: v.step([0, 0, 0], [0, 2, 0]), ValueError, "env id 0 is given twice"),
        (lambda v: v.reset([]), ValueError, "no env ids given; pass at least one, or None for all"),
        (lambda v: v.reset(True), ValueError, "must have the shape (3,), got ()"),
        (lambda v: v.reset("1"), TypeError, "env ids must be integers, got '1'"),
        (lambda v: v.reset([[0], [1, 2]]), TypeError, "env ids must be integers"),
        (lambda v: v.step([0, 0], [0, 1], reset=[2]), ValueError, "must be among the envs"),
        (lambda v: v.step([0] * 3, reset=[0, [1]]), TypeError, "reset= must be ids or a mask"),
        (lambda v: v.send([0] * 3, seed=1), TypeError, "only resets use, but no ids to reset"),
        (lambda v: v.step(None, options={}), ValueError, "or ids to reset"),
        (lambda v: v.step([0] * 3, reset=[0, 1], options=[{}]), ValueError, "got 1 options"),
        (lambda v: v.reset([1, 2], options=[{}]), ValueError, "got 1 options for 2 envs [1, 2]; pass one dict per env"),
        (lambda v: v.send([0] * 3, reset=[1], seed=-1), ValueError, "at least 0"),
        (lambda v: v.step([0] * 3, autoreset=0), TypeError, "must be True, False, or one seed per env"),
        (lambda v: v.step([0] * 3, autoreset="yes"), TypeError, "got 'yes'"),
        (lambda v: v.step([0] * 3, autoreset=np.array(1)), TypeError, "one seed per env"),
        (lambda v: v.step([0] * 3, autoreset=np.ones(3, bool)), ValueError, "integer, got True"),
        (lambda v: v.step([0] * 3, autoreset=[7.9, 1, 2]), ValueError, "got 7.9"),
        (lambda v: v.step([0] * 3, autoreset=np.array([1, -2, 3])), ValueError, "at least 0"),
        (lambda v: v.step([0] * 3, autoreset=[1, 2]), ValueError, "2 seeds in autoreset for 3"),
        (lambda v: v.step([0] * 3, autoreset=np.zeros((3, 1), int)), ValueError, "got [0]"),
        (lambda v: v.reset(seed=bytearray(b"abc")), ValueError, "integer, got bytearray"),
        (lambda v: v.reset(seed=True), ValueError, "a seed must be a non-negative integer, got True"),
        (lambda v: v.seed([1, 2]), ValueError, "got 2 seeds for 3 envs [0, 1, 2]"),
        (lambda v: v.seed(-1), ValueError, "a seed must be at least 0"),
        (lambda v: v.seed(1.0), ValueError, "a seed must be a non-negative integer, got 1.0"),
        (lambda v: v.seed(2**63 - 2), ValueError, "below 2**63"),
        (lambda v: v.set_seed(-3), ValueError, "at least 0"),
        (lambda v: v.set_state(1), TypeError, "a list with one state per env, got 1"),
        (lambda v: v.get_env_attr("nope", [1]), AttributeError, "CountingEnv has no attribute 'nope'", "env 1"),
        (lambda v: v.get_env_attr("t", [3]), IndexError, "env id 3"),
        (lambda v: v.step([0], 0, env_id=0), TypeError, "two names of one argument"),
    ),
    *(
        row
        for space, action, error, text in (
            (spaces.MultiDiscrete([3, 4]), [1] * 3, ValueError, "envs [0, 1, 2] has the shape (3,), expected (3, 2)"),
            (BOX, np.zeros((3, 2, 1), np.float32), ValueError, "shape (3, 2, 1), expected (3, 2): one row per env"),
            (BOX, [[1, 1], [1], [1, 1]], ValueError, "for env 1 has the shape (1,), expected (2,)"),
            (spaces.Dict({"a": DISCRETE, "b": BOX}), {"a": [0] * 3, "b": np.zeros((3, 3))}, ValueError,
             "action['b'] for envs [0, 1, 2] has the shape (3, 3), expected (3, 2)"),
            (spaces.Tuple([DISCRETE, BOX]), [(0, [0.0])] * 3, ValueError, "action[1] for envs"),
            (spaces.Dict({"a": DISCRETE, "b": DISCRETE}), {"a": [0] * 3, "b": [0] * 2}, ValueError,
             "got 2 actions for 3 envs"),
            (spaces.Tuple([DISCRETE, spaces.Text(5)]), ([0] * 3, ["a"] * 3), TypeError,
             "pass a list with one action per env"),
            (spaces.Dict({"x": BOX, "say": spaces.Text(5)}), {"x": np.zeros((3, 3)), "say": ["a"] * 3}, ValueError,
             "has the shape"),
            (spaces.Dict({"go": DISCRETE, "say": spaces.Text(5)}), {"go": [0.5] * 3, "say": ["a"] * 3}, TypeError,
             "whole numbers"),
        )
        for row in rows_for(with_actions(space), (lambda v, action=action: v.step(action), error, text))
    ),
    *rows_for(
        Subject(strict),
        (lambda v: v.step([0] * 3), RuntimeError, "env 2 has not been reset", "call reset(2) first"),
        (lambda v: v.step([0, 0], [0, 1]) and v.step([0], 1), RuntimeError, "env 1 has not been reset"),
    ),
    *rows_for(
        Subject(lambda: BaseVectorEnv(counting(2), LocalWorker)),
        (lambda v: v.step([0, 0], autoreset=True), TypeError,
         "BaseVectorEnv cannot reset an env in the round of its last step"),
        (lambda v: v.get_state(), AttributeError, "get_state"),
    ),
    *rows_for(
        Subject(lambda: DummyVectorEnv(playing(BOX, [np.zeros(2, np.float32)] * 2))),
        (lambda v: v.get_state(), NotImplementedError, "Plays cannot save its state: define get_state", "env 0"),
        (lambda v: v.set_state([None, None]), ValueError, "2 states for 1 envs"),
    ),
    *(
        row
        for space, wrong, *says in (
            (spaces.Box(0, 255, (2,), np.uint8), [300, 1], "values in [1, 300], the space has uint8 (2,)"),
            (spaces.Box(0, 9, (2,), np.int64), [2.7, 1], "(2,) with values in [1.0, 2.7], the space has int64"),
            (BOX, np.ones((1, 2)), "is float64 (1, 2) with values in [1.0, 1.0], the space has float32 (2,)"),
            (BOX, None, "is object (), the space has float32 (2,)"),
            (spaces.Box(0, 9, (2, 2)), [[1, 2], [3]], "is ragged, the space has float32 (2, 2)"),
            (BOX, np.array([1e300, 1]), "with values in [1.0, 1e+300], the space has float32 (2,)"),
            (spaces.Box(0, 9, (), np.float16), 70000, "values in [70000, 70000], the space has float16 ()"),
            (NESTED, {"a": 1}, "obs has the wrong keys: missing ['b'], not in the space []"),
            (NESTED, {"a": 1, "b": (1,), "c": 1}, "obs has the wrong keys: missing [], not in the space ['c']"),
            (NESTED, [1, 2], "obs is a list, expected a dict with the keys ['a', 'b']"),
            (NESTED, {"a": 1, "b": [1, 2]}, "obs['b'] is a list of 2, expected a tuple of 1"),
            (NESTED, {"a": 1, "b": np.array(1)}, "obs['b'] is a ndarray, expected a tuple of 1"),
            (NESTED, {"a": 1, "b": (2.5,)}, "obs['b'][0] is float64 () with values in [2.5, 2.5]"),
        )
        for row in rows_for(
            Subject(partial(two_steps, space, wrong)), (lambda v: v.step([0, 0]), ObservationError, "env 1: obs", *says)
        )
    ),
]  # fmt: skip
