"""The fault matrix: each kind of fault on each backend is reported, and a reset repairs the env."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import vecenv.engine.lifetime
from tests.support.commands import CommandVectorEnv
from tests.support.coroutine_envs import CoroutineVectorEnv
from tests.support.ctrl_c import interrupting
from tests.support.faulty import BOOM, HangsOnStep, SlowClose, counters
from tests.support.ledger import CLOSED, SEEN, Column, Ledger, N, appears, column_params, gone, kill, pids, said
from tests.support.oddities import Breaks, HoldsLock
from vecenv import (
    DummyVectorEnv,
    EnvStepError,
    ObservationError,
    RayVectorEnv,
    RemoteTraceback,
    ShmemVectorEnv,
    WorkerDiedError,
    WorkerTimeoutError,
)

pytestmark = pytest.mark.usefixtures("ctrl_c")
LIMIT = 1.0


class Row:
    """A ledger of four envs, in which env 1 breaks."""

    def __init__(self, ledger: Ledger, column: Column, folder: Path) -> None:
        self.ledger, self.column, self.go = ledger, column, folder / "go"

    def breaks(self, fault: str) -> None:
        self.ledger.venv.set_env_attr("go", str(self.go), [1])
        self.ledger.venv.set_env_attr("fault", fault, [1])

    def errs(self, fault: str, kind: type[Exception], text: str, op: str = "step") -> None:
        """Check that env 1 raises an error with its id and `partial`, until its reset."""
        self.breaks(fault)
        error = self.ledger.fails(kind) if op == "step" else self.ledger.reset_fails(kind)
        assert text in said(error)
        assert f"env 1, {op}()" in said(error)
        assert 1 not in (error.partial.env_id.tolist() if error.partial else ())
        if self.column.remote:
            assert isinstance(error.__cause__, RemoteTraceback)
            assert f"in on_{op}" in str(error.__cause__) or kind in (ObservationError, TypeError)  # ours
            assert "worker pid" in said(error)
        self.ledger.goes_on([1], kind)

    def worker(self) -> Any:
        """Return the worker of env 1."""
        return next(worker for worker in self.ledger.venv.engine.backend.workers if 1 in worker.ids)

    def is_near(self) -> bool:
        """Return True if the worker of env 1 is on this node. On other nodes, its stack and the running env are
        unknown.
        """
        pool = getattr(self.ledger.venv.engine.backend, "pool", None)
        return pool is None or next(handle for handle in pool.workers if 1 in handle.ids).on_this_node

    def loses(self, worker: Any, error: Any, *texts: str) -> None:
        """Check the error of the worker that env 1 ended, and that a reset makes the failed envs again."""
        for text in (*texts, "reset("):
            assert text in str(error)
        assert (error.env_ids, error.pid) == (tuple(worker.ids), worker.pid)
        failed = self.ledger.venv.failed_id
        assert 1 in failed
        assert set(failed) <= set(worker.ids)
        self.ledger.born_again(failed)
        self.ledger.goes_on(failed, type(error))
        assert self.ledger.venv.stats()["restarts"] >= 1
        if self.column.remote:
            assert gone(worker.pid)
            assert self.worker().pid != worker.pid


def raises_in_step(row: Row) -> None:
    row.errs("raise in step", ValueError, BOOM)


def raises_in_reset(row: Row) -> None:
    row.errs("raise in reset", ValueError, BOOM, "reset")


def raises_what_cannot_travel(row: Row) -> None:
    row.errs("raise what cannot travel", EnvStepError if row.column.remote else HoldsLock, "held")


def observes_what_does_not_fit(row: Row) -> None:
    row.errs("observe what does not fit", ObservationError, "env 1: obs is float64 (4,)")


def has_an_info_that_cannot_travel(row: Row) -> None:
    if row.column.remote:
        row.errs("info that cannot travel", TypeError, "the info or observation of env 1 cannot be sent")
        return
    row.breaks("info that cannot travel")
    assert row.ledger.round() == []
    assert "odd" in row.ledger.rows[1]


def dies(row: Row) -> None:
    worker, running = row.worker(), "running env 1" if row.is_near() else "running its envs"
    row.breaks("die")
    begin = time.monotonic()
    error = row.ledger.round()[0]
    assert time.monotonic() - begin < SEEN
    row.loses(worker, error, row.column.cause("SIGKILL"), f"pid {worker.pid}", running)


def dies_while_idle(row: Row) -> None:
    """The next use of the worker's envs raises, but no other use."""
    worker = row.worker()
    kill(worker.pid)
    assert row.ledger.round([i for i in range(N) if i not in worker.ids]) == []
    begin = time.monotonic()
    try:
        (error,) = row.ledger.round([1])
    except WorkerDiedError as refused:  # known before anything was sent
        error = refused
    assert time.monotonic() - begin < SEEN
    row.loses(worker, error, row.column.cause("SIGKILL"), f"pid {worker.pid}")


def hangs(row: Row) -> None:
    worker, stack = row.worker(), "hold_interpreter_lock" if row.column.remote else "in on_step"
    stack = "asyncio.to_thread(self.env.step" if row.column is COROUTINES else stack
    near = row.is_near()
    row.breaks("hang in C" if row.column.remote else "hang")
    begin = time.monotonic()
    error = row.ledger.round()[-1]
    assert time.monotonic() - begin >= LIMIT
    assert time.monotonic() - begin < LIMIT + 2.5 or not near
    row.go.touch()  # a thread cannot be killed
    where = stack if near else "not read from another machine"
    hung = "env 1" if near or len(worker.ids) == 1 else f"one of the envs {list(worker.ids)}"
    row.loses(worker, error, f"{hung} has been busy for more than step_timeout={LIMIT} s", where)
    assert isinstance(error, WorkerTimeoutError)


def is_interrupted(row: Row) -> None:
    ledger = row.ledger
    with interrupting(ledger.venv.engine.backend, "wait", first=True):
        ledger.venv.step([7] * N)
    assert (ledger.venv.waiting_id, ledger.venv.failed_id) == ([], list(range(N)))
    ledger.venv.reset()
    ledger.catch_up()
    assert ledger.round() == []


COROUTINES = Column(CoroutineVectorEnv, "coroutines", {})
FAULTS = [raises_in_step, raises_in_reset, raises_what_cannot_travel, observes_what_does_not_fit]
FAULTS += [has_an_info_that_cannot_travel, is_interrupted, hangs, dies_while_idle, dies]


def fits(fault: Any, column: Column) -> bool:
    """Return False for hangs on Dummy, deaths of threads, and infos that cross to a command's parent as text."""
    if fault is has_an_info_that_cannot_travel and column.backend is CommandVectorEnv:
        return False
    return column.remote or not (
        fault in (dies, dies_while_idle) or (fault is hangs and column.backend is DummyVectorEnv)
    )


@pytest.mark.parametrize(
    ("column", "fault"),
    [
        pytest.param(column, fault, id=f"{column.title}-{fault.__name__}", marks=marks)
        for (column,), marks, _ in [*column_params(quick=True, ray=False), pytest.param(COROUTINES)]
        for fault in FAULTS
        if fits(fault, column)
    ],
)
def test_a_fault_is_reported_and_after_a_reset_all_goes_on(column: Column, fault: Any, tmp_path: Path) -> None:
    with column.open(counters(N, env1=Breaks), **({"step_timeout": LIMIT} if fault is hangs else {})) as ledger:
        ledger.begin()
        fault(Row(ledger, column, tmp_path))


@pytest.mark.parametrize("column", column_params(quick=True, only=RayVectorEnv))
def test_each_fault_in_turn_on_ray(column: Column, tmp_path: Path) -> None:
    """One vector env for all faults, because an actor takes a second to start."""
    with column.open(counters(N, env1=Breaks), step_timeout=LIMIT) as ledger:
        ledger.begin()
        for fault in FAULTS:
            print(fault.__name__)
            fault(Row(ledger, column, tmp_path))


@pytest.mark.parametrize("backend", [ShmemVectorEnv])
def test_close_is_bounded_though_an_env_hangs_in_its_step_another_in_close_and_a_worker_is_stopped(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert vecenv.engine.lifetime.CLOSE_TIMEOUT == 5
    monkeypatch.setattr(vecenv.engine.lifetime, "CLOSE_TIMEOUT", 0.3)
    seen = tmp_path / "seen"
    venv = backend(
        counters(N, env1=partial(HangsOnStep, at=1, gil=True, seen=str(seen)), env2=SlowClose), num_workers=N
    )
    venv.reset()
    workers = pids(venv)
    venv.send([0, 0], [0, 1])
    appears(seen)
    os.kill(workers[3], signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match="did not close in time and was killed") as warned:
        venv.close()
    assert time.monotonic() - begin < CLOSED
    assert [str(w.message).split(" (pid")[0] for w in warned] == [f"the worker of envs [{i}]" for i in (1, 2, 3)]
    assert all(gone(pid) for pid in workers)
    venv.close()
