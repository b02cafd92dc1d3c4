"""Values that cannot be pickled, are large, or change after their return."""

from __future__ import annotations

from functools import partial
from typing import Any

import psutil
import pytest
from gymnasium import spaces

from tests.support import oddities
from tests.support.backends import BACKENDS, and_ray
from tests.support.faulty import Counter, NoSpace, counters
from tests.support.ledger import Column, Ledger, N, columns, said
from tests.support.oddities import OddInfo, OddObservation
from vecenv import DummyVectorEnv, EnvStepError, WorkerDiedError

backend = and_ray(BACKENDS)

# Reasons why a worker cannot pickle a value.
CANNOT_LEAVE: dict[str, tuple[Any, str]] = {
    "unpicklable": (oddities.Unpicklable, "lock"),
    "raises at pickle": (oddities.RaisesAtPickle, "no pickling today"),
    "exits at pickle": (oddities.ExitsAtPickle, "out, while pickling"),
    "raises at unpickle": (oddities.RaisesAtUnpickle, "no unpickling here"),
    "exits at unpickle": (oddities.ExitsAtUnpickle, "out, while unpickling"),
}


# Reasons why a value cannot be copied, as observations of objects are in this process.
CANNOT_BE_COPIED: dict[str, type[Exception]] = {
    "unpicklable": TypeError,
    "raises at pickle": RuntimeError,
    "exits at pickle": EnvStepError,
}


@columns("blocks", "async", command=False)
def test_an_observation_that_cannot_travel_or_be_copied_fails_its_env_alone(column: Column) -> None:
    with column.open([partial(OddObservation, i, dict) if i == 1 else partial(NoSpace, i) for i in range(N)]) as ledger:
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


def test_an_info_that_cannot_be_sent_beside_one_that_cannot_be_read(remote_backend: type) -> None:
    kinds = (oddities.Unpicklable, oddities.RaisesAtUnpickle)
    with remote_backend([partial(OddInfo, i, make) for i, make in enumerate(kinds)], num_workers=1) as venv:
        venv.reset()
        venv.step([0, 0])
        with pytest.raises(TypeError, match=r"cannot be sent: .*lock"):
            venv.step([0, 0])


class ObjectAction(Counter):
    """Env with objects as actions, which observes their `number`."""

    action_space = spaces.Text(100)

    def observe(self, action: Any) -> Any:
        self.last = action
        return super().observe(action if isinstance(action, int) else action["number"])


def unsendable() -> list[tuple[Any, str]]:
    return [(make(), why) for make, why in map(CANNOT_LEAVE.get, ("unpicklable", "raises at pickle"))]


@columns("blocks", "async", dummy=False, quick=True, command=False)
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
    """Check that the first step after the reset is the first step of each env."""
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


@columns("blocks", "async", dummy=False, command=False)
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
        if not venv.is_async:  # even if the env would have been reset
            with pytest.raises(TypeError, match="the action for env 0 cannot be read in the worker") as caught:
                venv.step([{"number": 5, "odd": make()}] + [{"number": 5}] * 3, autoreset=True)
            assert caught.value.partial.env_id.tolist() == [1, 2, 3]


@columns("blocks", dummy=False, command=False)
def test_an_action_that_ends_the_worker_is_its_death(column: Column) -> None:
    with column.open([partial(ObjectAction, i) for i in range(N)]) as ledger:
        ledger.reset()
        with pytest.raises(WorkerDiedError, match=column.cause("exited with code 3")) as caught:
            ledger.venv.step([{"number": 5, "odd": oddities.DiesAtUnpickle()}] + [{"number": 5}] * 3)
        assert caught.value.partial.env_id.tolist() == [2, 3]
        assert caught.value.partial.obs.tolist() == [[2, 1, 1, 5], [3, 1, 1, 5]]


# env_fns.


@columns("blocks", dummy=False, quick=True, command=False)
def test_an_env_fn_that_cannot_travel_is_refused_before_anything_starts(column: Column) -> None:
    before = psutil.Process().children(recursive=True)
    for odd, why in unsendable()[:2]:
        with pytest.raises(TypeError, match=r"env_fns\[2\] cannot be sent to a worker") as caught:
            column.backend([*counters(2), lambda odd=odd: Counter(odd), *counters(1)], **column.options)
        assert why in str(caught.value)
    assert psutil.Process().children(recursive=True) == before


class OddMetadata(Counter):
    """Env whose spec and metadata cannot be pickled."""

    def __init__(self, id: int, make: Any) -> None:
        super().__init__(id)
        self.metadata = {"odd": make()}


def holding(odd: Any) -> Any:
    return lambda: Counter(odd)


@columns("blocks", dummy=False, command=False)
@pytest.mark.parametrize(
    ("env_fn", "kind", "why"),
    [
        (holding(oddities.RaisesAtUnpickle()), RuntimeError, "no unpickling here"),
        (holding(oddities.ExitsAtUnpickle()), EnvStepError, "out, while unpickling"),
        (holding(oddities.DiesAtUnpickle()), WorkerDiedError, "exited with code 3"),
        (partial(OddMetadata, 2, oddities.Unpicklable), TypeError, "lock"),
        (partial(OddMetadata, 2, oddities.ExitsAtUnpickle), TypeError, "out, while unpickling"),
    ],
    ids=["raises", "exits", "dies", "metadata with a lock", "metadata that exits"],
)
def test_an_env_fn_that_cannot_be_read_or_whose_report_cannot_travel_is_named(
    column: Column, env_fn: Any, kind: Any, why: str
) -> None:
    with pytest.raises(kind, match=column.cause(why) if kind is WorkerDiedError else why) as caught:
        column.backend([*counters(2), env_fn, *counters(1)], **column.options)
    assert "env 2" in said(caught.value) or getattr(caught.value, "env_ids", ()) == (2, 3)


# Large and many.


@columns("blocks", command=False)
def test_large_infos_arrive(column: Column) -> None:
    with column.open(counters(N, env1=partial(OddInfo, make=dict))) as ledger:
        ledger.begin()
        for make in (partial(bytes, 100 << 20), partial(dict.fromkeys, range(10_000), 1.5)):
            ledger.venv.set_env_attr("make", make, [1])
            ledger.reset([1])
            assert (ledger.round(), ledger.round()) == ([], [])
            assert ledger.rows[1]["odd"] == make()
