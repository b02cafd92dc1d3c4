"""What cannot travel between processes, what is large, and what changes after its return: reported, or harmless."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
from cases import Records
from gymnasium import spaces

from tests import oddities
from tests.backends import BACKENDS, and_ray
from tests.faulty import Counter, NoSpace, ReusesItsArrays, counters
from tests.ledger import Column, Ledger, N, block_of, columns, said
from tests.oddities import OddAttribute, OddInfo, OddObservation
from vecenv import DummyVectorEnv, EnvStepError, WorkerDiedError

backend = and_ray(BACKENDS)

# Why each cannot travel from a worker to the parent.
CANNOT_LEAVE: dict[str, tuple[Any, str]] = {
    "unpicklable": (oddities.Unpicklable, "lock"),
    "raises at pickle": (oddities.RaisesAtPickle, "no pickling today"),
    "exits at pickle": (oddities.ExitsAtPickle, "out, while pickling"),
    "raises at unpickle": (oddities.RaisesAtUnpickle, "no unpickling here"),
    "exits at unpickle": (oddities.ExitsAtUnpickle, "out, while unpickling"),
    "nested too deep": (oddities.nested, "recursion"),
}


@columns("blocks", "async")
def test_an_info_that_cannot_travel_fails_its_env_alone(column: Column) -> None:
    with column.open(counters(N, env1=partial(OddInfo, make=dict), env3=partial(OddInfo, make=dict))) as ledger:
        ledger.begin()
        for make, why in CANNOT_LEAVE.values():
            ledger.venv.set_env_attr("make", make, [1])
            if not column.remote:
                assert ledger.round() == []
                assert "odd" in ledger.rows[1]
                ledger.reset()
                assert ledger.round() == []
                continue
            error = ledger.fails(TypeError)
            assert "env 1" in said(error)
            assert why in str(error)
            ledger.goes_on([1], TypeError)
            ledger.reset()
            assert ledger.round() == []


def test_an_info_that_cannot_be_sent_beside_one_that_cannot_be_read(remote_backend: type) -> None:
    kinds = (oddities.Unpicklable, oddities.RaisesAtUnpickle)
    with remote_backend([partial(OddInfo, i, make) for i, make in enumerate(kinds)], num_workers=1) as venv:
        venv.reset()
        venv.step([0, 0])
        with pytest.raises(TypeError, match=r"cannot be sent: .*lock"):
            venv.step([0, 0])


# Why each cannot be copied, which is what an observation of objects needs where the env lives in this process.
CANNOT_BE_COPIED: dict[str, type[Exception]] = {
    "unpicklable": TypeError,
    "raises at pickle": RuntimeError,
    "exits at pickle": EnvStepError,
    "nested too deep": RecursionError,
}


@columns("blocks", "single")
def test_an_observation_that_cannot_travel_or_be_copied_fails_its_env_alone(column: Column) -> None:
    env_fns = [partial(OddObservation, i, dict) if i == 1 else partial(NoSpace, i) for i in range(N)]
    with column.open(env_fns) as ledger:
        ledger.begin()
        for name, (make, why) in CANNOT_LEAVE.items():
            ledger.venv.set_env_attr("make", make, [1])
            if kind := TypeError if column.remote else CANNOT_BE_COPIED.get(name):
                error = ledger.fails(kind)
                assert "env 1" in said(error)
                assert why in str(error)
                ledger.goes_on([1], kind)
            else:
                assert ledger.round() == []
            ledger.reset()
            assert ledger.round() == []


@columns("blocks", "async", dummy=False)
def test_an_info_that_ends_its_process_is_the_death_of_a_worker(column: Column) -> None:
    with column.open(counters(N, env1=partial(OddInfo, make=oddities.DiesAtPickle))) as ledger:
        ledger.begin()
        block = block_of(ledger.venv, 1)
        assert column.cause("exited with code 3") in str(ledger.round()[0])
        ledger.born_again(block)
        ledger.goes_on(block, WorkerDiedError)


@columns("blocks", dummy=False)
def test_an_attribute_that_cannot_travel_is_reported_and_nothing_is_lost(column: Column) -> None:
    with column.open(counters(N, env0=partial(OddAttribute, make=int), env1=partial(OddAttribute, make=int))) as ledger:
        ledger.begin()
        for make, why in CANNOT_LEAVE.values():
            ledger.venv.set_env_attr("make", make, [1])
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
        self.last = action
        return super().observe(action if isinstance(action, int) else action["number"])


def unsendable() -> list[tuple[Any, str]]:
    return [
        (make(), why) for make, why in map(CANNOT_LEAVE.get, ("unpicklable", "raises at pickle", "nested too deep"))
    ]


@columns("blocks", "async", dummy=False)
def test_actions_options_and_values_that_cannot_travel_are_refused_before_anything_is_sent(column: Column) -> None:
    with column.open([partial(ObjectAction, i) for i in range(N)]) as ledger:
        ledger.reset()
        venv = ledger.venv
        for odd, why in unsendable():
            with pytest.raises(TypeError, match="env 2") as caught:
                venv.step([{"number": 5}, {"number": 5}, {"number": 5, "odd": odd}, {"number": 5}])
            assert why in str(caught.value)
            for call in (partial(venv.reset, options={"odd": odd}), partial(venv.set_env_attr, "odd", odd)):
                with pytest.raises(TypeError, match=why):
                    call()
        check_untouched(ledger)


@columns(only=DummyVectorEnv)
def test_an_action_or_option_that_cannot_be_copied_reaches_the_env_as_it_is(column: Column) -> None:
    with column.open([partial(ObjectAction, i) for i in range(N)]) as ledger:
        for odd, _ in unsendable():
            ledger.reset(options={"odd": odd})
            ledger.venv.send([{"number": 5, "odd": odd}] * N)
            ledger.t, ledger.sent = [1] * N, dict.fromkeys(range(N), 5)
            while ledger.venv.waiting_id:
                ledger.check(*ledger.venv.recv())
            assert all(action["odd"] is odd for action in ledger.venv.get_env_attr("last"))


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
        assert "the action for env 1 cannot be read in the worker" in str(errors[0])
        assert why in str(errors[0])
        assert "env 1, step()" in said(errors[0])
        ledger._lose()
        assert venv.failed_id == [1]
        ledger.reset([1])
        assert venv.get_env_attr("t") == [1, 0, 1, 1]
        if not venv.is_async:  # also where the env would have been reset
            with pytest.raises(TypeError, match="the action for env 0 cannot be read in the worker") as caught:
                venv.step([{"number": 5, "odd": make()}] + [{"number": 5}] * 3, autoreset=True)
            assert caught.value.partial.env_id.tolist() == [1, 2, 3]


@columns("blocks", dummy=False)
def test_an_action_that_ends_the_worker_is_its_death(column: Column) -> None:
    with column.open([partial(ObjectAction, i) for i in range(N)]) as ledger:
        ledger.reset()
        with pytest.raises(WorkerDiedError, match=column.cause("exited with code 3")) as caught:
            ledger.venv.step([{"number": 5, "odd": oddities.DiesAtUnpickle()}] + [{"number": 5}] * 3)
        assert caught.value.partial.env_id.tolist() == [2, 3]
        assert caught.value.partial.obs.tolist() == [[2, 1, 1, 5], [3, 1, 1, 5]]


# env_fns.


@columns("blocks", dummy=False)
def test_an_env_fn_that_cannot_travel_is_refused_before_anything_starts(column: Column) -> None:
    before = psutil.Process().children(recursive=True)
    for odd, why in unsendable()[:2]:
        with pytest.raises(TypeError, match=r"env_fns\[2\] cannot be sent to a worker") as caught:
            column.backend([*counters(2), lambda odd=odd: Counter(odd), *counters(1)], **column.options)
        assert why in str(caught.value)
    assert psutil.Process().children(recursive=True) == before


@columns("blocks", dummy=False)
@pytest.mark.parametrize(
    ("make", "kind", "why"),
    [
        (oddities.RaisesAtUnpickle, RuntimeError, "no unpickling here"),
        (oddities.ExitsAtUnpickle, EnvStepError, "out, while unpickling"),
        (oddities.DiesAtUnpickle, WorkerDiedError, "exited with code 3"),
    ],
)
def test_an_env_fn_that_cannot_be_read_in_the_worker_is_named(column: Column, make: Any, kind: Any, why: str) -> None:
    odd = make()
    with pytest.raises(kind, match=column.cause(why) if kind is WorkerDiedError else why) as caught:
        column.backend([*counters(2), lambda: Counter(odd), *counters(1)], **column.options)
    assert "env 2" in said(caught.value) or getattr(caught.value, "env_ids", ()) == (2, 3)


class OddParts(Counter):
    """What it reports of itself cannot travel."""

    def __init__(self, id: int, part: str, make: Any) -> None:
        super().__init__(id)
        setattr(self, part, {"odd": make()})


@columns("single", dummy=False)
@pytest.mark.parametrize("name", ["unpicklable", "exits at unpickle"])
def test_metadata_that_cannot_travel_is_reported_with_its_env(column: Column, name: str) -> None:
    make, why = CANNOT_LEAVE[name]
    with pytest.raises(TypeError, match=why) as caught:
        column.backend(counters(N, env1=partial(OddParts, part="metadata", make=make)), **column.options)
    assert "env 1" in said(caught.value)


# Large and many.


@columns("blocks")
def test_large_infos_arrive(column: Column) -> None:
    with column.open(counters(N, env1=partial(OddInfo, make=dict))) as ledger:
        ledger.begin()
        for make in (partial(bytes, 100 << 20), partial(dict.fromkeys, range(10_000), 1.5)):
            ledger.venv.set_env_attr("make", make, [1])
            ledger.reset([1])
            assert (ledger.round(), ledger.round()) == ([], [])
            assert ledger.rows[1]["odd"] == make()


class HugeObservation(Counter):
    """One leaf of 600 MB; the two ones in it stand where t says."""

    observation_space = spaces.MultiBinary(600_000_000)

    def observe(self, action: Any) -> Any:
        obs = np.zeros(600_000_000, np.int8)
        obs[[self.t, -1 - self.t]] = 1
        return obs


@pytest.mark.slow
def test_an_observation_of_600_megabytes_arrives(backend: type) -> None:
    with backend([partial(HugeObservation, 0)]) as venv:
        for t, (obs, *_) in enumerate([venv.reset(), venv.step([0]), venv.step([0])]):
            assert np.flatnonzero(obs[0]).tolist() == [t, 600_000_000 - 1 - t]


# Who owns what.


@columns()
def test_an_env_that_goes_on_writing_into_what_it_returned_changes_nothing(column: Column) -> None:
    """Nor does a caller, into what was returned or what an attribute was."""
    with column.open([partial(ReusesItsArrays, i) for i in range(N)]) as ledger:
        ledger.begin()
        obs, info = ledger.venv.reset()
        arrays, kept = ledger.venv.get_env_attr("array"), obs.copy()
        ledger.venv.call("spoil")
        assert obs.tolist() == kept.tolist()
        ledger.catch_up()
        assert ledger.round() == []
        assert obs.tolist() == kept.tolist()
        obs[...] = -9
        for row in info:
            row.clear()
        for mine in arrays if column.remote else ():
            mine[...] = -9
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


@columns("blocks", "single")
def test_arrays_within_an_info_are_the_callers_own(column: Column) -> None:
    with column.open([partial(InfosOfOneArray, i) for i in range(N)]) as ledger:
        ledger.venv.reset()
        first = ledger.venv.step([0] * N)[-1]
        ledger.venv.step([0] * N)
        for i, row in enumerate(first):
            found = row["listed"][0], row["tuple"][0], row["named"].array
            assert [array.tolist() for array in found] == [[i, 1]] * 3
            assert type(row["named"]) is Named


class Named(NamedTuple):
    array: np.ndarray


class InfosOfOneArray(Counter):
    """Its infos hold one array, that of its class, which is written into with each step."""

    array = np.zeros(2, np.int64)

    def info(self) -> dict[str, Any]:
        self.array[...] = self.id, self.t
        return {"listed": [self.array], "tuple": (self.array,), "named": Named(self.array)}


def test_actions_are_the_envs_to_keep_and_the_callers_to_change(backend: type) -> None:
    with backend([partial(Records, spaces.Box(-9, 9, (2,), np.float32))] * 2) as venv:
        venv.reset()
        actions = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
        venv.send(actions)
        actions[...] = -9
        venv.recv()
        venv.step(np.array([[5.0, 6.0], [7.0, 8.0]], np.float32))
        assert np.array(venv.get_env_attr("actions")).tolist() == [[[1, 2], [5, 6]], [[3, 4], [7, 8]]]
