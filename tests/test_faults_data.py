"""What an env returns that cannot travel, does not fit its space, or changes later: told, or made harmless."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces

from tests import faulty
from tests.faulty import (
    Counter,
    NoSpace,
    OddAttribute,
    OddInfo,
    OddObservation,
    ReturnsOnStep,
    ReusesItsArrays,
    counters,
)
from tests.ledger import Column, Ledger, N, block_of, columns, said
from vecenv import (
    DummyVectorEnv,
    EnvContractError,
    EnvStepError,
    ObservationError,
    ShmemVectorEnv,
    SubprocVectorEnv,
    WorkerDiedError,
)

# Why each cannot travel from a worker to the parent.
CANNOT_LEAVE: dict[str, tuple[Any, str]] = {
    "unpicklable": (faulty.Unpicklable, "lock"),
    "raises at pickle": (faulty.RaisesAtPickle, "no pickling today"),
    "exits at pickle": (faulty.ExitsAtPickle, "out, while pickling"),
    "raises at unpickle": (faulty.RaisesAtUnpickle, "no unpickling here"),
    "exits at unpickle": (faulty.ExitsAtUnpickle, "out, while unpickling"),
    "nested too deep": (faulty.nested, "recursion"),
}
leaving = pytest.mark.parametrize("name", CANNOT_LEAVE)


@columns("blocks", "async")
@leaving
def test_an_info_that_cannot_travel_fails_its_env_alone(column: Column, name: str) -> None:
    make, why = CANNOT_LEAVE[name]
    with column.open(counters(N, env1=partial(OddInfo, make=make), env3=partial(OddInfo, make=dict))) as ledger:
        ledger.begin()
        if not column.remote:
            assert ledger.round() == []
            return
        error = ledger.fails(TypeError)
        assert "env 1" in said(error)
        assert why in str(error)
        ledger.goes_on([1], TypeError)


@columns("blocks", "single")
@leaving
def test_an_observation_that_cannot_travel_fails_its_env_alone(column: Column, name: str) -> None:
    make, why = CANNOT_LEAVE[name]
    if not column.remote and name != "unpicklable":
        return  # see the next test
    env_fns: list[Any] = [
        partial(NoSpace, 0),
        partial(OddObservation, 1, make),
        partial(NoSpace, 2),
        partial(NoSpace, 3),
    ]
    with column.open(env_fns) as ledger:
        ledger.begin()
        error = ledger.fails(TypeError)
        assert "env 1" in said(error)
        assert why in str(error)
        ledger.goes_on([1], TypeError)


@columns("blocks", "async", dummy=False)
def test_an_info_that_ends_its_process_is_the_death_of_a_worker(column: Column) -> None:
    with column.open(counters(N, env1=partial(OddInfo, make=faulty.DiesAtPickle))) as ledger:
        ledger.begin()
        block = block_of(ledger.venv, 1)
        assert "exited with code 3" in str(ledger.round()[0])
        ledger.born_again(block)
        ledger.goes_on(block, WorkerDiedError)


@columns("blocks", "single", dummy=False)
@leaving
def test_an_attribute_that_cannot_travel_is_told_and_nothing_is_lost(column: Column, name: str) -> None:
    make, why = CANNOT_LEAVE[name]
    odd = partial(OddAttribute, make=make)
    with column.open(counters(N, env0=partial(OddAttribute, make=int), env1=odd)) as ledger:
        ledger.begin()
        with pytest.raises(TypeError, match=why) as caught:
            ledger.venv.get_env_attr("odd", [0, 1])
        assert "env 1" in said(caught.value)
        assert ledger.venv.failed_id == []
        assert ledger.venv.get_env_attr("odd", [0]) == [0]
        assert ledger.round() == []


class ObjectAction(Counter):
    """Its actions are objects; the observation shows their `number`."""

    action_space = spaces.Text(100)

    def observe(self, action: Any) -> Any:
        return super().observe(action if isinstance(action, int) else action["number"])


@columns("blocks", "async", dummy=False)
@pytest.mark.parametrize("name", ["unpicklable", "raises at pickle", "nested too deep"])
def test_an_action_that_cannot_travel_is_refused_before_anything_is_sent(column: Column, name: str) -> None:
    make, why = CANNOT_LEAVE[name]
    with column.open([partial(ObjectAction, i) for i in range(N)]) as ledger:
        ledger.reset()
        with pytest.raises(TypeError, match="env 2") as caught:
            ledger.venv.step([{"number": 5}, {"number": 5}, {"number": 5, "odd": make()}, {"number": 5}])
        assert why in str(caught.value)
        check_untouched(ledger)


@columns("blocks", "async", dummy=False)
@pytest.mark.parametrize("name", ["unpicklable", "raises at pickle"])
def test_reset_options_and_attributes_that_cannot_travel_are_refused(column: Column, name: str) -> None:
    make, why = CANNOT_LEAVE[name]
    with column.open([partial(ObjectAction, i) for i in range(N)]) as ledger:
        ledger.reset()
        with pytest.raises(TypeError, match=why):
            ledger.venv.reset(options={"odd": make()})
        with pytest.raises(TypeError, match=why):
            ledger.venv.set_env_attr("odd", make())
        check_untouched(ledger)


def check_untouched(ledger: Ledger) -> None:
    """The first step after the reset is the first step of every env."""
    venv = ledger.venv
    assert (venv.waiting_id, venv.failed_id) == ([], [])
    assert venv.get_env_attr("t") == [0] * N
    assert venv.get_env_attr("episode") == [1] * N
    rows: dict[int, list[int]] = {}
    venv.send([{"number": 7}] * N)
    while venv.waiting_id:
        obs, *_, info = venv.recv()
        rows |= {row["env_id"]: obs[k].tolist() for k, row in enumerate(info)}
    assert rows == {i: [i, 1, 1, 7] for i in range(N)}


@columns("blocks", "async", dummy=False)
@pytest.mark.parametrize("name", ["raises at unpickle", "exits at unpickle"])
def test_an_action_that_cannot_be_read_in_the_worker_fails_its_env_alone(column: Column, name: str) -> None:
    make, why = CANNOT_LEAVE[name]
    with column.open([partial(ObjectAction, i) for i in range(N)]) as ledger:
        ledger.reset()
        venv = ledger.venv
        venv.send([{"number": 5}, {"number": 5, "odd": make()}, {"number": 5}, {"number": 5}])
        for i in range(N):
            ledger.t[i], ledger.sent[i] = int(i != 1), 5
        errors = []
        while venv.waiting_id:
            try:
                ledger.check(*venv.recv())
            except TypeError as error:
                errors.append(error)
                ledger._take(error)
        assert why in str(errors[0])
        assert "env 1" in said(errors[0])
        ledger._lose()
        assert venv.failed_id == [1]
        ledger.reset([1])
        assert venv.get_env_attr("t") == [1, 0, 1, 1]


@columns("blocks", dummy=False)
def test_an_action_that_ends_the_worker_is_its_death(column: Column) -> None:
    with column.open([partial(ObjectAction, i) for i in range(N)]) as ledger:
        ledger.reset()
        with pytest.raises(WorkerDiedError, match="exited with code 3") as caught:
            ledger.venv.step([{"number": 5, "odd": faulty.DiesAtUnpickle()}] + [{"number": 5}] * 3)
        assert caught.value.partial.env_id.tolist() == [2, 3]
        assert caught.value.partial.obs.tolist() == [[2, 1, 1, 5], [3, 1, 1, 5]]


# env_fns.


@columns("blocks", dummy=False)
@pytest.mark.parametrize("name", ["unpicklable", "raises at pickle"])
def test_an_env_fn_that_cannot_travel_is_refused_before_anything_starts(column: Column, name: str) -> None:
    make, why = CANNOT_LEAVE[name]
    odd = make()
    before = psutil.Process().children(recursive=True)
    with pytest.raises(TypeError, match=r"env_fns\[2\] cannot be sent to a worker") as caught:
        column.backend([*counters(2), lambda: Counter(odd), *counters(1)], **column.options)
    assert why in str(caught.value)
    assert psutil.Process().children(recursive=True) == before


@columns("blocks", dummy=False)
@pytest.mark.parametrize(
    ("make", "kind", "why"),
    [
        (faulty.RaisesAtUnpickle, RuntimeError, "no unpickling here"),
        (faulty.ExitsAtUnpickle, EnvStepError, "out, while unpickling"),
        (faulty.DiesAtUnpickle, WorkerDiedError, "exited with code 3"),
    ],
)
def test_an_env_fn_that_cannot_be_read_in_the_worker_is_named(column: Column, make: Any, kind: Any, why: str) -> None:
    odd = make()
    with pytest.raises(kind, match=why) as caught:
        column.backend([*counters(2), lambda: Counter(odd), *counters(1)], **column.options)
    assert "env 2" in said(caught.value) or getattr(caught.value, "env_ids", ()) == (2, 3)


class OddParts(Counter):
    """What it reports of itself cannot travel."""

    def __init__(self, id: int, part: str, make: Any) -> None:
        super().__init__(id)
        setattr(self, part, {"odd": make()})


@columns("single", dummy=False)
@pytest.mark.parametrize("name", ["unpicklable", "raises at unpickle", "exits at unpickle"])
def test_metadata_that_cannot_travel_is_told_with_its_env(column: Column, name: str) -> None:
    make, why = CANNOT_LEAVE[name]
    with pytest.raises(TypeError, match=why) as caught:
        column.backend(counters(N, env1=partial(OddParts, part="metadata", make=make)), **column.options)
    assert "env 1" in said(caught.value)


# Large and many.


@columns("blocks")
@pytest.mark.parametrize(
    "make", [partial(bytes, 100 << 20), lambda: dict.fromkeys(range(10_000), 1.5)], ids=["100 MB", "10000 entries"]
)
def test_a_large_info_arrives(column: Column, make: Callable[[], Any]) -> None:
    if column.is_async:
        return
    with column.open(counters(N, env1=partial(OddInfo, make=make))) as ledger:
        ledger.begin()
        assert ledger.round() == []
        assert ledger.rows[1]["odd"] == make()
        assert ledger.round() == []


# What does not fit the space, or is not the gymnasium API.


def array(*values: Any, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype)


FLOATS = spaces.Box(-np.inf, np.inf, (3,), np.float32), array(1, 2, 3)
BYTES = spaces.Box(0, 255, (3,), np.uint8), array(1, 2, 3, dtype=np.uint8)
NUMBER = spaces.Discrete(300), np.int64(4)
PAIR = spaces.Tuple([spaces.Discrete(9), FLOATS[0]]), (np.int64(1), FLOATS[1])
NAMED = spaces.Dict(a=spaces.Discrete(9), b=FLOATS[0]), {"a": np.int64(1), "b": FLOATS[1]}
DEEP = spaces.Dict(c=NAMED[0], d=PAIR[0]), {"c": NAMED[1], "d": PAIR[1]}

WRONG: dict[str, tuple[Any, Any, str]] = {
    "too large for uint8": (BYTES, np.array([300, 1, 2]), "int64 (3,) with values in [1, 300]"),
    "floats for uint8": (BYTES, np.array([300.0, -1.0, 2.7]), "float64 (3,) with values in [-1.0, 300.0]"),
    "NaN for uint8": (BYTES, np.array([np.nan, 1, 2]), "float64 (3,)"),
    "fraction for Discrete": (NUMBER, 2.7, "float64 ()"),
    "complex for float": (FLOATS, np.array([1j, 0, 0]), "complex128 (3,)"),
    "(1,) for (3,)": (FLOATS, array(1), "float32 (1,)"),
    "(3, 1) for (3,)": (FLOATS, np.ones((3, 1), np.float32), "float32 (3, 1)"),
    "() for (3,)": (FLOATS, 1.0, "float64 ()"),
    "ragged": (FLOATS, [[1], [2, 3]], "ragged"),
    "text": (FLOATS, "abc", "str"),
    "None": (FLOATS, None, "object"),
    "missing key": (NAMED, {"a": np.int64(1)}, "missing ['b']"),
    "extra key": (NAMED, {**NAMED[1], "x": 1}, "not in the space ['x']"),
    "array for dict": (NAMED, array(1, 2, 3), "a ndarray, expected a dict"),
    "list for tuple": (PAIR, [np.int64(1), FLOATS[1]], "a list, expected a tuple of 2"),
    "short tuple": (PAIR, (np.int64(1),), "a tuple of 1, expected a tuple of 2"),
    "deep inside": (DEEP, {"c": {"a": 1, "b": array(1, 2)}, "d": PAIR[1]}, "obs['c']['b'] is float32 (2,)"),
    "deep key": (DEEP, {"c": {"a": 1}, "d": PAIR[1]}, "obs['c'] has the wrong keys"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_observation_that_does_not_fit_the_space_is_the_same_error_everywhere(name: str) -> None:
    (space, good), bad, told = WRONG[name]
    texts = {}
    for backend, options in (
        (DummyVectorEnv, {}),
        (SubprocVectorEnv, {"num_workers": 2}),
        (ShmemVectorEnv, {"num_workers": 2}),
    ):
        change = lambda result: (bad, *result[1:])  # noqa: E731
        env_fns = [
            partial(ReturnsOnStep, 0, space, good),
            partial(ReturnsOnStep, 1, space, good, change),
            partial(ReturnsOnStep, 2, space, good),
        ]
        with backend(env_fns, **options) as venv:
            texts[backend] = check_refused(venv, ObservationError)
    assert len(set(texts.values())) == 1
    text = texts[DummyVectorEnv]
    assert text.startswith("env 1: obs")
    assert told in text


def check_refused(venv: Any, kind: type[EnvContractError]) -> str:
    """Step 2 of env 1 is refused; the results of its neighbours, and all that follows, are right. Returns the text."""
    actions = np.zeros(3, np.int64)
    venv.reset()
    assert venv.step(actions)[1].tolist() == [1.0, 1.001, 1.002]
    with pytest.raises(kind) as caught:
        venv.step(actions)
    assert (caught.value.env_id, caught.value.op) == (1, "step")
    partial_rows = caught.value.partial
    assert (partial_rows.env_id.tolist(), partial_rows.rew.tolist()) == ([0, 2], [2.0, 2.002])
    venv.reset([1])
    assert venv.step(actions)[1].tolist() == [3.0, 1.001, 3.002]
    return str(caught.value)


ACCEPTED: dict[str, tuple[Any, Any, Any]] = {
    "NaN and inf are floats": (FLOATS, array(np.nan, np.inf, 1), array(np.nan, np.inf, 1)),
    "float64 for float32": (FLOATS, np.array([0.5, 1, 2]), array(0.5, 1, 2)),
    "integers for float32": (FLOATS, [1, 2, 3], array(1, 2, 3)),
    "values that fit uint8": (BYTES, np.array([255, 0, 2]), array(255, 0, 2, dtype=np.uint8)),
    "whole floats for uint8": (BYTES, np.array([255.0, 0.0, 2.0]), array(255, 0, 2, dtype=np.uint8)),
    "(1,) for ()": (NUMBER, np.array([7]), np.int64(7)),
    "bool for Discrete": (NUMBER, True, np.int64(1)),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_observation_that_can_be_cast_without_loss_is_the_same_everywhere(backend: type, name: str) -> None:
    (space, good), given, wanted = ACCEPTED[name]
    options = {} if backend is DummyVectorEnv else {"num_workers": 1}
    change = lambda result: (given, *result[1:])  # noqa: E731
    with backend(
        [partial(ReturnsOnStep, 0, space, good), partial(ReturnsOnStep, 1, space, good, change)], **options
    ) as venv:
        venv.reset()
        venv.step([0, 0])
        obs = venv.step([0, 0])[0]
    assert obs.dtype == space.dtype
    np.testing.assert_array_equal(obs, np.stack([good, wanted]))


BROKEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "4 values": (lambda result: (result[0], result[1], False, {}), "step() returned 4 values, expected 5"),
    "6 values": (lambda result: (*result, {}), "step() returned 6 values, expected 5"),
    "None": (lambda _: None, "step() returned a NoneType, expected 5"),
    "only the observation": (lambda result: result[0], "step() returned a ndarray, expected 5"),
    "info is None": (lambda result: (*result[:4], None), "an info of type NoneType, expected a dict"),
    "info is a list": (lambda result: (*result[:4], [1]), "an info of type list, expected a dict"),
    "reward is None": (lambda result: (result[0], None, *result[2:]), "the reward None"),
    "reward is text": (lambda result: (result[0], "much", *result[2:]), "the reward 'much'"),
    "terminated is text": (lambda result: (*result[:2], "no", *result[3:]), "terminated='no' of type str"),
    "truncated is None": (lambda result: (*result[:3], None, result[4]), "truncated=None of type NoneType"),
    "terminated is 2": (lambda result: (*result[:2], 2, *result[3:]), "terminated=2 of type int"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_result_that_is_not_the_gymnasium_api_is_the_same_error_everywhere(name: str) -> None:
    change, told = BROKEN[name]
    texts = set()
    for backend in (DummyVectorEnv, SubprocVectorEnv, ShmemVectorEnv):
        env_fns = [partial(ReturnsOnStep, i, *FLOATS, change if i == 1 else None) for i in range(3)]
        with backend(env_fns) as venv:
            texts.add(check_refused(venv, EnvContractError))
    assert len(texts) == 1
    assert texts.pop().startswith(f"env 1: step() returned {told.removeprefix('step() returned ')}")


class OldReset(Counter):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


def test_an_old_reset_is_told_everywhere(backend: type) -> None:
    with backend(counters(3, env1=OldReset)) as venv:
        with pytest.raises(EnvContractError, match=r"env 1: reset\(\) returned .*expected 2: \(obs, info\)") as caught:
            venv.reset()
        assert caught.value.partial.env_id.tolist() == [0, 2]


# Who owns what.


@columns()
def test_an_env_that_goes_on_writing_into_what_it_returned_changes_nothing(column: Column) -> None:
    with column.open([partial(ReusesItsArrays, i) for i in range(N)]) as ledger:
        ledger.begin()
        obs, info = ledger.venv.reset()
        kept = obs.copy()
        ledger.venv.call("spoil")
        assert obs.tolist() == kept.tolist()
        ledger.episode, ledger.t = ledger.venv.get_env_attr("episode"), [0] * N
        assert ledger.round() == []
        assert obs.tolist() == kept.tolist()


@columns("blocks", "async")
def test_a_caller_that_writes_into_what_was_returned_changes_nothing(column: Column) -> None:
    with column.open([partial(ReusesItsArrays, i) for i in range(N)]) as ledger:
        ledger.begin()
        for _ in range(3):
            obs, info = ledger.venv.reset()
            arrays = ledger.venv.get_env_attr("array")
            obs[...] = -9
            for row in info:
                row.clear()
            for mine in arrays if column.remote else ():
                mine[...] = -9
            for i in range(N):
                ledger.episode[i], ledger.t[i] = ledger.venv.get_env_attr("episode", [i])[0], 0
            assert ledger.round() == []


@columns("blocks", "single")
def test_an_observation_of_objects_is_the_callers_own(column: Column) -> None:
    with column.open([partial(KeepsItsObservation, i) for i in range(N)]) as ledger:
        obs, _ = ledger.venv.reset()
        assert [row["numbers"].tolist() for row in obs] == [[i, 1, 0, -1] for i in range(N)]
        ledger.venv.call("spoil")
        assert [row["numbers"].tolist() for row in obs] == [[i, 1, 0, -1] for i in range(N)]
        obs[0]["numbers"][...] = -9
        assert ledger.venv.get_env_attr("kept", [0])[0]["numbers"].tolist() == [-7] * 4


class KeepsItsObservation(NoSpace):
    def observe(self, action: Any) -> Any:
        self.kept = super().observe(action)
        return self.kept

    def spoil(self) -> None:
        self.kept["numbers"][...] = -7


@columns("blocks", "async")
def test_the_dict_that_an_env_returned_as_info_is_never_written_to(column: Column) -> None:
    with column.open([partial(KeepsItsInfo, i) for i in range(N)]) as ledger:
        ledger.begin()
        assert ledger.round() == []
        assert ledger.venv.get_env_attr("kept") == [{"mine": i} for i in range(N)]
        assert ledger.rows[1] == {"mine": 1, "env_id": 1}


class KeepsItsInfo(Counter):
    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.kept = {"mine": id}

    def info(self) -> dict[str, Any]:
        return self.kept


def test_actions_are_the_envs_to_keep_and_the_callers_to_change(backend: type) -> None:
    with backend([partial(KeepsItsActions, i) for i in range(2)]) as venv:
        venv.reset()
        actions = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
        venv.send(actions)
        actions[...] = -9
        venv.recv()
        venv.step(np.array([[5.0, 6.0], [7.0, 8.0]], np.float32))
        assert venv.get_env_attr("kept") == [[[1, 2], [5, 6]], [[3, 4], [7, 8]]]


class KeepsItsActions(gymnasium.Env):
    observation_space = spaces.Discrete(1)
    action_space = spaces.Box(-9, 9, (2,), np.float32)

    def __init__(self, id: int) -> None:
        self.actions: list[np.ndarray] = []

    def reset(self, **_: Any) -> tuple[int, dict]:
        return 0, {}

    def step(self, action: np.ndarray) -> tuple[int, float, bool, bool, dict]:
        self.actions.append(action)
        return 0, 0.0, False, False, {}

    @property
    def kept(self) -> list[Any]:
        return [action.tolist() for action in self.actions]
