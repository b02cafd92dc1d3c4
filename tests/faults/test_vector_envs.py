"""The table of faults on each backend: the error and its text, the other envs, and what makes the env usable again."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import children
from tests.support.backends import RAY
from tests.support.commands import CommandVectorEnv
from tests.support.coroutine_envs import CoroutineVectorEnv
from tests.support.fault_rows import Row, cases, rows_of
from tests.support.faults import EXCEPTIONS, RECEIVED, Faulty
from tests.support.faulty import ENDS
from tests.support.ledger import CLOSED, SEEN, Column, Ledger, N, gone, kill, pids, said, wait_until
from tests.support.local_ray import FAR, NEAR
from tests.support.oddities import Unpicklable
from vecenv import (
    DummyVectorEnv,
    RayVectorEnv,
    RemoteTraceback,
    ShmemVectorEnv,
    SubprocVectorEnv,
    ThreadVectorEnv,
    WorkerDiedError,
)

WORKER = [0, 1]
"""Ids of the envs in the worker, or thread, of env 1."""
BLOCKS = {"num_workers": 2}
COLUMNS = {
    "dummy": Column(DummyVectorEnv, "sync", {}),
    "thread": Column(ThreadVectorEnv, "blocks", BLOCKS),
    "shmem": Column(ShmemVectorEnv, "blocks", BLOCKS),
    "subproc": Column(SubprocVectorEnv, "blocks", BLOCKS),
    "async": Column(SubprocVectorEnv, "async", {"wait_num": 1}),
    "command": Column(CommandVectorEnv, "blocks", BLOCKS),
    "coroutines": Column(CoroutineVectorEnv, "blocks", BLOCKS),
    "ray": Column(RayVectorEnv, "blocks near", BLOCKS | NEAR),
}
IN_TURN = ("step", "reset", "options", "call", "idle")
"""Places of the rows that share one vector env on Ray, because an actor starts slowly."""
ON_ANOTHER_NODE = {
    "while running env 1": "while running its envs",
    "env 1 has been busy for more than step_timeout=1.0 s": "has been busy for more than step_timeout=1.0 s",
    "hold_interpreter_lock": "not read from another machine",
}
"""Texts of errors that come from an actor on another node, of which vecenv knows less."""
ALONE = ("raise", "wrong dtype", "unpicklable error", "SIGKILL", "hang in Python")
"""Faults of each kind of error, for backends that share the code of others."""
STEP_TIMEOUT, START_TIMEOUT = 1.0, 1.0


def tier_of(row: Row, kind: str) -> str | None:
    if kind == "ray":
        return None if row.place in IN_TURN else "ray"
    if kind in ("async", "command", "coroutines"):
        if row.on == ["coroutines"]:
            return "quick"
        if row.place == "step" and row.fault in ALONE:
            return "quick" if kind == "coroutines" else "full"
        return None if kind == "async" and row.place not in IN_TURN else "slow"
    is_hang = row.fault.startswith("hang")
    # Subproc loses a worker as with shared memory.
    is_further = row.place != "step" or is_hang if kind == "subproc" else is_hang and row.place != "step"
    return "full" if is_further or (row.fault in ENDS and row.fault not in ("SIGKILL", "SIGSEGV")) else "quick"


class Case:
    """A vector env of four envs, two per worker, in which env 1 has the fault of the row."""

    def __init__(self, row: Row, column: Column, ledger: Ledger) -> None:
        self.row, self.column, self.ledger, self.venv = row, column, ledger, ledger.venv
        self.worker = [1] if column.is_async else WORKER
        self.pid, self.restarts = pids(self.venv)[1], self.venv.stats()["restarts"]

    def check_text(self, error: BaseException) -> None:
        for text in self.row.texts(pid=self.pid, worker=self.worker):
            if self.column.backend is RayVectorEnv and ("SIG" in text or "exited" in text):
                text = "ActorDiedError"  # Ray does not know the cause
            if self.column.options.get("resources") == FAR["resources"]:
                text = ON_ANOTHER_NODE.get(text, text)
            assert text in said(error)
        if self.column.remote and self.row.mend != "restart" and not self.row.fault.startswith("unpickle"):
            assert isinstance(error.__cause__, RemoteTraceback)
            assert "worker pid" in said(error)
            assert len(said(error)) < 200_000
        if self.row.fault in EXCEPTIONS:
            assert "in spring" in str(error.__cause__) or not self.column.remote
            assert self.row.error == "EnvStepError" or str(EXCEPTIONS[self.row.fault]()) in str(error)

    def meet(self) -> list[Any]:
        """Make the call in which the fault happens. Return its errors."""
        if self.row.place == "step":
            return self.ledger.round()
        if self.row.place == "reset":
            return [self.ledger.reset_fails(Exception)]
        if self.row.place == "options":
            error = self.ledger.reset_fails(TypeError, [1], options={"odd": RECEIVED[self.row.fault]()})
            self.ledger.episode[1] -= 1  # the reset did not begin
            return [error]
        if self.row.place == "idle":
            return self.meet_idle()
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the class is checked below
            self.use()
        return [caught.value]

    def use(self) -> Any:
        uses = {
            "call": lambda: self.venv.call("method"),
            "get_env_attr": lambda: self.venv.get_env_attr("prop"),
            "set_env_attr": lambda: self.venv.set_env_attr("prop", 5, [1]),
            "render": self.venv.render,
            "seed": lambda: self.venv.seed(3),
        }
        return uses[self.row.place]()

    def meet_idle(self) -> list[Any]:
        """Kill the idle worker. No use of other envs raises, and each use of its envs raises until a reset."""
        assert self.venv.alive() == [True] * N
        kill(self.pid)
        wait_until(lambda: self.venv.alive() == [i not in self.worker for i in range(N)], SEEN)
        assert self.ledger.round([2, 3]) == []
        for _ in range(2):
            with pytest.raises(WorkerDiedError) as caught:
                self.venv.call("method", id=[1])
        assert self.ledger.round([2, 3]) == []
        return [caught.value]

    def check(self) -> None:
        self.venv.set_env_attr("trap", f"{self.row.place}: {self.row.fault}", [1])
        if not self.row.error:
            self.check_object_arrives()
            return
        begin = time.monotonic()
        error = self.meet()[0]
        assert time.monotonic() - begin < SEEN or self.row.fault.startswith("hang")
        self.row.check_class(error)
        self.check_text(error)
        failed = self.venv.failed_id
        if self.row.place == "seed":  # it resets the envs that have been seeded
            for i in set(range(N)) - set(failed):
                self.ledger.episode[i], self.ledger.t[i] = (self.venv.get_env_attr(n, [i])[0] for n in ("episode", "t"))
        if self.row.mend == "nothing":
            assert failed == []
        elif self.row.mend == "reset":
            assert failed == [1]
            self.ledger.goes_on([1], type(error))
        else:
            assert 1 in failed
            assert set(failed) <= set(self.worker)
            assert (error.env_ids, error.pid) == (tuple(self.worker), self.pid if self.column.remote else None)
            self.ledger.born_again(failed)
            if failed == WORKER:  # the other env of the new worker needs a reset, too
                self.ledger.reset([1])
                assert self.venv.failed_id == [0]
            self.ledger.goes_on(self.venv.failed_id or [1], type(error))
            assert self.venv.stats()["restarts"] == self.restarts + 1
        if self.column.remote:
            assert (pids(self.venv)[1] != self.pid) == gone(self.pid, 10 * (self.row.mend == "restart"))
        assert self.ledger.round() == []
        if self.row.place in ("call", "get_env_attr"):
            assert self.use() == [0, 1, 2, 3]

    def check_object_arrives(self) -> None:
        if self.row.place == "call":
            found = self.venv.call("method")[1]
        elif self.row.place == "options":
            self.ledger.reset([1], options={"odd": RECEIVED[self.row.fault]()})
            found = self.venv.get_env_attr("options", [1])[0]["odd"]
        elif self.row.place == "step":
            assert self.ledger.round() == []
            found = self.ledger.rows[1]["odd"]
        else:
            self.ledger.reset()
            found = self.ledger.rows[1]["odd"]
        assert isinstance(found, Unpicklable)


def env_fns(go: str = "", trap: str = "") -> list[Any]:
    return [partial(Faulty, i, go, trap if i == 1 else "") for i in range(N)]


def env_fn_of(env_fn: Any, odd: Any) -> Any:
    """Make an env. `odd`: an object that the env_fn holds."""
    return env_fn()


@pytest.mark.guarantee("G8.2")
@cases("Vector envs", tier_of)
@pytest.mark.filterwarnings("ignore:.*died before:RuntimeWarning")
def test_faults(rows: list[Row], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One vector env meets all faults at a place in turn, so each fault must be without consequences."""
    column = COLUMNS[kind]
    if rows[0].place in ("construct", "close"):
        for k, row in enumerate(rows):
            print(row)  # for the report of a failure
            go = tmp_path / f"go {k}"
            if row.place == "construct":
                check_construct(row, column, env_fns(str(go), f"construct: {row.fault}"), go)
            else:
                check_close(row, column, env_fns(str(go)), go, monkeypatch)
    else:
        check_in_turn(rows, column, tmp_path / "go")


def check_in_turn(rows: list[Row], column: Column, go: Path) -> None:
    options = {"step_timeout": STEP_TIMEOUT} if any("hang" in row.fault for row in rows) else {}
    with column.open(env_fns(str(go)), **options) as ledger:
        ledger.begin()
        try:
            for row in rows:
                print(row)  # for the report of a failure
                Case(row, column, ledger).check()
        finally:
            go.touch()


def check_construct(row: Row, column: Column, fns: list[Any], go: Path) -> None:
    before = children()
    if row.fault in RECEIVED:
        fns[1] = partial(env_fn_of, fns[1], RECEIVED[row.fault]())
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - the class is checked below
        column.backend(fns, **column.options, **({"start_timeout": START_TIMEOUT} if "hang" in row.fault else {}))
    go.touch()
    row.check(caught.value, worker=WORKER)
    assert children() == before  # though the error is still alive


def check_close(row: Row, column: Column, fns: list[Any], go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "hang" in row.fault:
        monkeypatch.setattr("vecenv.engine.lifetime.CLOSE_TIMEOUT", 1.0)
    venv = column.backend(fns, **column.options)
    Ledger(venv).begin()
    pid = pids(venv)[1]
    venv.set_env_attr("trap", f"close: {row.fault}", [1])
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning) as warned:
        venv.close()
    go.touch()
    assert time.monotonic() - begin < CLOSED
    (text,) = [str(each.message) for each in warned]
    assert [part for part in row.texts(worker=WORKER, pid=pid) if part not in text] == []
    assert warned[0].filename == __file__
    venv.close()
    assert not column.remote or gone(pid)


@pytest.mark.parametrize("place", [pytest.param(NEAR, id="near", marks=RAY), pytest.param(FAR, id="far", marks=RAY)])
@pytest.mark.timeout(600)
def test_all_faults_in_turn_on_ray(place: dict[str, Any], tmp_path: Path) -> None:
    rows = [row for row in rows_of("Vector envs") if "ray" in row.on and row.place in IN_TURN]
    check_in_turn(rows, Column(RayVectorEnv, "blocks", BLOCKS | place), tmp_path / "go")
