"""EnvCreator: shared state, its processes, and interrupted updates."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from multiprocessing import forkserver
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from collector import SyncDataCollector
from tests.support.backends import FULL
from tests.support.shared_envs import (
    Chain,
    Counted,
    Counts,
    Transformed,
    add_until,
    counted,
    hold,
    normalised,
    run_all,
    step_env,
    update_often,
)
from tests.support.threads import in_a_thread
from vecenv import DummyVectorEnv, EnvCreator, SharedState, ShmemVectorEnv, WorkerDiedError
from vecenv.backends.memory import shared_state
from vecenv.testing import CountingEnv
from vecenv.transforms import NormalizeReward, TransformedEnv, VecNorm

start_methods = pytest.mark.parametrize(
    "context", ["fork", *(pytest.param(each, marks=FULL) for each in ("forkserver", "spawn"))]
)


def calls_of(creator: EnvCreator) -> int:
    return int(creator.state_dict()["0.Counted.calls"])


# Sharing.


@pytest.mark.guarantee("G13.1")
def test_envs_of_a_creator_share_their_state_on_every_backend(backend: type) -> None:
    creator = EnvCreator(counted)
    with backend([creator] * 3) as venv:
        venv.reset()
        for _ in range(4):
            venv.step([0] * 3)
        assert venv.call("calls") == [15] * 3
    assert calls_of(creator) == 15
    np.testing.assert_array_equal(creator.state_dict()["0.Counted.sums"], [7.5, 7.5])
    alone = EnvCreator(counted, share_memory=False)
    with backend([alone] * 3) as venv:
        venv.reset()
        venv.step([0, 0], [0, 1])
        assert venv.call("calls") == [2, 2, 1]
    assert alone.state_dict() == {}


@pytest.mark.guarantee("G13.4")
@start_methods
def test_envs_share_under_every_start_method_and_after_their_worker_was_killed(context: str) -> None:
    creator = EnvCreator(lambda: counted())
    with ShmemVectorEnv([creator] * 4, num_workers=2, context=context) as venv:
        venv.reset()
        assert calls_of(creator) == 4
        os.kill(venv.call("own_pid")[0], 9)
        with pytest.raises(WorkerDiedError):
            venv.step([0] * 4)
        before = calls_of(creator)
        venv.reset([0, 1])
        venv.reset([2, 3])
        assert venv.call("calls") == [before + 4] * 4
    assert calls_of(creator) == before + 4


@pytest.mark.guarantee("G13.14")
@start_methods
def test_processes_that_get_a_creator_as_an_argument_see_one_count(context: str) -> None:
    creator = EnvCreator(lambda: counted())
    mp = multiprocessing.get_context(context)
    assert run_all(mp.Process(target=step_env, args=(creator, steps)) for steps in (10, 0)) == [0, 0]
    forkserver._forkserver._stop()  # multiprocessing's own
    assert creator().calls() == 12


@pytest.mark.guarantee("G13.2")
def test_no_update_of_processes_and_threads_is_lost_though_two_processes_are_killed_in_theirs() -> None:
    """The parent has updated the state before it forks, and updates it in four threads at the same time."""
    creator, mp = EnvCreator(counted), multiprocessing.get_context("fork")
    ready, env = mp.Event(), creator()
    env.reset()
    die_at = [None, 20, None, None, 35, None, None, None]
    processes = [mp.Process(target=update_often, args=(creator, 60, at, ready)) for at in die_at]

    def count_in_threads() -> None:
        ready.set()
        threads = [threading.Thread(target=lambda: [env.counts.count() for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert run_all(processes, then=count_in_threads) == [0 if at is None else -9 for at in die_at]
    state, updates = creator.state_dict(), 6 * 60 + 20 + 35
    assert state["0.Counted.calls"] == updates + 801
    np.testing.assert_array_equal(state["0.Counted.sums"], [updates + 801 / 2] * 2)


def test_old_rows_lose_weight_whichever_process_adds_the_new_ones() -> None:
    """With `decay`, the weight approaches 1 / (1 - decay), after a load too."""
    creator, mp = EnvCreator(partial(normalised, decay=0.9)), multiprocessing.get_context("fork")
    saved = creator.state_dict()
    creator.load_state_dict(saved | {"0.VecNorm.observation_count": 1000.0})
    for _ in range(2):
        assert run_all([mp.Process(target=step_env, args=(creator, 100))]) == [0]
    assert float(creator.state_dict()["0.VecNorm.observation_count"]) == pytest.approx(10, rel=1e-3)


def test_an_update_that_an_exception_leaves_changes_nothing() -> None:
    for share in (True, False):
        state = SharedState({"a": np.arange(3.0)}, share)
        with pytest.raises(ZeroDivisionError), state.update() as arrays:
            arrays["a"] += 1 / 0
        np.testing.assert_array_equal(state.read()["a"], [0, 1, 2])


def test_readers_never_see_the_middle_of_an_update_and_each_process_sees_its_own() -> None:
    state, mp = SharedState({"a": np.zeros(2000), "b": np.zeros(())}, share=True), multiprocessing.get_context("fork")
    leave, seen = mp.Event(), [0.0]

    def update_and_read() -> None:
        for k in range(300):
            with state.update() as arrays:
                arrays["a"] += 1
                arrays["b"] += 1
            values = state.read()
            assert set(values["a"]) == {float(values["b"])}
            assert values["b"] > max(seen[-1], k)
            seen.append(float(values["b"]))
        leave.set()

    assert run_all([mp.Process(target=add_until, args=(state, leave)) for _ in range(2)], then=update_and_read) == [
        0,
        0,
    ]
    assert seen[-1] > 300


@contextmanager
def process_in_an_update(creator: EnvCreator) -> Iterator[tuple[Any, Any]]:
    """Yield a process that is in the middle of an update, and the event that lets it continue."""
    mp = multiprocessing.get_context("fork")
    entered, leave = mp.Event(), mp.Event()
    process = mp.Process(target=hold, args=(creator, entered, leave))
    process.start()
    try:
        assert entered.wait(30)
        yield process, leave
    finally:
        if process.is_alive():  # `set` waits for the sleepers, also for a killed one
            leave.set()
        process.join(30)
        process.close()


@pytest.mark.guarantee("G13.7")
def test_updates_overlap_and_both_count() -> None:
    """In one thread, and with a process that is in the middle of an update."""
    creator = EnvCreator(counted)
    env = creator()
    with process_in_an_update(creator):
        with env.counts.state.update() as arrays:
            arrays["calls"] += 1
            env.counts.count()
            assert env.calls() == 1
        assert calls_of(creator) == 2
    assert calls_of(creator) == 3


@pytest.mark.guarantee("G13.8")
def test_a_load_ends_updates_that_have_begun() -> None:
    creator = EnvCreator(counted)
    with process_in_an_update(creator):
        creator.load_state_dict(creator.state_dict() | {"0.Counted.calls": 40})
    assert calls_of(creator) == 40
    step_env(creator, 1)
    assert calls_of(creator) == 42


@pytest.mark.guarantee("G13.9")
def test_more_processes_than_slots_are_refused_and_a_slot_is_free_when_its_process_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_state, "SLOTS", 2)
    creator = EnvCreator(counted)
    with process_in_an_update(creator) as (other, _):
        env = creator()
        with pytest.raises(RuntimeError, match=r"more than 2 threads, of all processes together, .*SharedState\(calls"):
            in_a_thread(env.reset)
        other.kill()
        other.join(30)
        in_a_thread(env.reset)
        assert calls_of(creator) == 1


@pytest.mark.guarantee("G13.6")
def test_arrays_of_every_shape_and_dtype_keep_them() -> None:
    several = {"b": np.array([7], np.uint8), "": np.zeros((2, 0)), "c": np.full((3, 5), 0.1, np.float32)}
    empty = {"mean": np.zeros((0,)), "var": np.ones((0,)), "count": np.array(5.0)}
    for values, share in product((several, empty, {}), (True, False)):
        state = SharedState(values, share)
        copied = copy.copy(state)
        with state.update() as changed:
            for name, array in values.items():
                changed[name] = array + 1
        for found, more in ((copied.read(), 0), (state.read(), 1)):
            assert found.keys() == values.keys()
            for name, array in values.items():
                assert found[name].dtype == array.dtype
                np.testing.assert_array_equal(found[name], array + more)
    for wrong in (np.array([None]), np.array([True])):
        with pytest.raises(TypeError):
            SharedState({"a": wrong})


# Parts with state.


def test_parts_with_state_are_found_in_wrappers_and_transforms_outermost_first() -> None:
    def made() -> Any:
        inner = Transformed(Transformed(counted(width=3), object()), Chain(Counts(), Chain(object(), Counts(1))))
        return Counted(inner, 4)

    shapes = {key: value.shape for key, value in EnvCreator(made).state_dict().items()}
    assert shapes == {
        "0.Counted.calls": (), "0.Counted.sums": (4,), "1.Counts.calls": (), "1.Counts.sums": (2,),
        "2.Counts.calls": (), "2.Counts.sums": (1,), "3.Counted.calls": (), "3.Counted.sums": (3,),
    }  # fmt: skip


@pytest.mark.guarantee("G13.8")
def test_load_state_dict_sets_the_state_of_all_envs() -> None:
    creator = EnvCreator(counted)
    env = creator()
    step_env(lambda: env, 3)
    saved = creator.state_dict()
    creator.load_state_dict({key: np.zeros_like(value) for key, value in saved.items()})
    assert env.calls() == 0
    assert saved["0.Counted.calls"] == 4
    creator.load_state_dict(saved | {"0.Counted.calls": 5.0, "0.Counted.sums": [1, 2]})
    numbers = [{"0.Counted.calls": value} for value in (2.5, np.nan, 2**70, "4")]
    for wrong in ({"x": 1}, {"0.Counted.sums": np.zeros(3)}, {"0.Counted.sums": ["1", "2"]}, *numbers):
        with pytest.raises(ValueError, match=rf"does not fit at \['{next(iter(wrong))}'\].*int64"):
            creator.load_state_dict(saved | wrong)
    assert creator().calls() == 5


# Arguments.


def test_create_env_kwargs_come_before_keywords_and_those_before_the_call() -> None:
    given: list[dict[str, Any]] = []
    creator = EnvCreator(lambda **kwargs: given.append(kwargs) or CountingEnv(), {"a": 1}, a=2, b=2)
    creator(a=3, b=3, c=3)
    assert given[-1] == {"a": 1, "b": 2, "c": 3}
    assert creator.create_env_kwargs == {"a": 1, "b": 2}


def test_a_variant_has_arguments_of_its_own_and_the_same_state() -> None:
    creator = EnvCreator(counted, length=4)
    variant = creator.make_variant(env_id=7, length=9)
    env = variant()
    assert (env.unwrapped.env_id, env.unwrapped.length) == (7, 9)
    assert creator.create_env_kwargs == {"length": 4}
    env.reset()
    assert calls_of(creator) == calls_of(variant) == creator().calls() == 1
    creator = EnvCreator(gym.make, id="CartPole-v1")
    variant = creator.make_variant(id="Pendulum-v1")
    assert creator.meta_data.observation_space.shape == (4,)
    assert variant.meta_data.spec.id == "Pendulum-v1"
    creator.update_kwargs({"id": "Acrobot-v1"})
    assert creator.meta_data.action_space.n == 3
    with pytest.raises(ValueError, match=r"\(5,\).*\(2,\).*share_memory=False"):  # its env has a different state
        EnvCreator(counted).make_variant(width=5)()


# Calls of the factory.


def test_the_factory_is_called_once_an_env_and_once_for_the_metadata(backend: type, tmp_path: Any) -> None:
    for share_memory in (True, False):
        log = tmp_path / str(share_memory)
        creator = EnvCreator(logged, {"log": str(log)}, share_memory=share_memory)
        with backend([creator] * 3):
            assert len(log.read_text()) == 3 + share_memory
        assert creator.meta_data.metadata == CountingEnv.metadata
        assert creator.make_variant().state_dict().keys() == creator.state_dict().keys()
        assert len(log.read_text()) == 4
    made: list[Any] = []

    class Watched(CountingEnv):
        closed = False

        def close(self) -> None:
            self.closed = True

    EnvCreator(lambda: made.append(Watched()) or made[-1])
    assert [(env.closed, env.calls) for env in made] == [(True, 0)], "it is closed and not reset"


def logged(log: str) -> Any:
    with open(log, "a") as file:
        file.write("x")
    return counted()


# Copies.


def test_copies_of_a_creator_share_and_copies_of_its_state_do_not() -> None:
    creator = EnvCreator(counted)
    for same in (copy.copy(creator), copy.deepcopy(creator), EnvCreator(creator, length=3)):
        same().reset()
    assert calls_of(creator) == 3
    env = copy.deepcopy(creator())
    env.reset()
    assert (env.calls(), calls_of(creator)) == (4, 3)
    assert not copy.copy(creator().counts.state).shared


@pytest.mark.guarantee("G13.14")
def test_a_creator_is_pickled_for_processes_alone_unless_it_shares_nothing() -> None:
    with pytest.raises(TypeError, match=r"lies in memory without a name.*share_memory=False"):
        pickle.dumps(EnvCreator(counted))
    alone = EnvCreator(counted, share_memory=False, env_id=4)
    stateless = EnvCreator(lambda env_id: CountingEnv(env_id), env_id=4)
    for creator in (alone, stateless):
        copied = pickle.loads(pickle.dumps(creator))
        assert copied().unwrapped.env_id == 4
        assert repr(copied) == repr(creator)


def test_collectors_take_creators_and_pass_arguments_that_theirs_precede() -> None:
    creator = EnvCreator(counted, [{"env_id": 1}, {"env_id": 2}])
    options = {"frames_per_batch": 4, "backend": "shmem", "create_env_kwargs": {"length": 9, "env_id": 3}}
    with SyncDataCollector([creator] * 2, **options) as collector:
        collector.next()
        assert collector.env.get_env_attr("env_id") == [1, 2]
        assert collector.env.get_env_attr("length") == [9, 9], "each env has its own, and what is common"
    assert calls_of(creator) == 2 + 4
    measured = EnvCreator(counted, env_id=5)
    with SyncDataCollector(measured, frames_per_batch=4, backend="auto") as collector:
        collector.next()
        assert collector.env.get_env_attr("env_id") == [5]
    assert calls_of(measured) == 1 + 4, "envs that are made to be measured do not count"


def test_no_copy_that_is_frozen_learns() -> None:
    """Including statistics that envs do not share, such as rewards."""
    learnt = VecNorm()
    TransformedEnv(gym.make("CartPole-v1"), learnt).reset(seed=0)

    def made() -> Any:
        return TransformedEnv(gym.make("CartPole-v1"), [learnt.clone(), NormalizeReward()])

    for creator, backend in (
        (EnvCreator(made, share_memory=False).frozen_copy(), ShmemVectorEnv),
        (EnvCreator(EnvCreator(made).frozen_copy(), share_memory=False), DummyVectorEnv),
        (EnvCreator(made).frozen_copy().make_variant(), DummyVectorEnv),
    ):
        with backend([creator] * 2) as venv:
            before = venv.call("state_dict")
            venv.reset(seed=1)
            venv.step([0, 1])
            assert repr(venv.call("state_dict")) == repr(before)
            assert before[0]["0.VecNorm"]["observation_count"] == 1, "what the env was made with"
