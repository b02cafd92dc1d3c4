"""Envs that are too slow or hang, in an order that the table of faults (tests/faults) does not have."""

from __future__ import annotations

import os
import signal
import time
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.backends import PROCESS_BACKENDS, and_ray
from tests.support.faults import Faulty
from tests.support.faulty import HangsOnStep, LargeAction, TakesLong, counters
from tests.support.ledger import CLOSED, Column, N, appears, block_of, column_params, columns, gone, pids
from vecenv import ShmemVectorEnv, ThreadVectorEnv, WorkerTimeoutError
from vecenv.backends.memory.shared_memory import A_CALL, A_ROUND, DOING, PROGRESS
from vecenv.backends.pool import watchdog as watchdog_module

remote_backend = and_ray(PROCESS_BACKENDS, quick=False)


@columns("blocks", dummy=False)
def test_a_block_that_gets_on_may_take_longer_than_one_step(column: Column) -> None:
    """The limit is per env, not per round: two envs of 0.6 s share a worker."""
    slow = partial(TakesLong, seconds=0.6)
    with column.open(counters(N, env0=slow, env1=slow), step_timeout=1.0) as ledger:
        ledger.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that they wait, and share a worker
            begin = time.monotonic()
            assert ledger.round() == []
        assert time.monotonic() - begin > 1.1


def test_a_hung_env_among_quick_ones_is_given_up(remote_backend: Any) -> None:
    """Each wait is far shorter than `step_timeout`."""
    fns = [*counters(2), partial(HangsOnStep, 2)]
    with remote_backend(fns, step_timeout=0.5, wait_num=1) as venv:
        venv.reset()
        deadline, ids = time.monotonic() + 20, [0, 1, 2]
        with pytest.raises(WorkerTimeoutError) as caught:  # noqa: PT012
            while time.monotonic() < deadline:
                *_, info = venv.step([0] * len(ids), ids)
                ids = [row["env_id"] for row in info]
        assert caught.value.env_id == 2


@pytest.mark.parametrize(
    "column",
    [
        *column_params("single", dummy=False, far=False, command=False),
        *column_params("single", only=ThreadVectorEnv, quick=True, ray=False),
    ],
)
def test_without_a_limit_a_long_step_is_reported_in_a_warning_with_its_stack(
    column: Column, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, reported = tmp_path / "go", []

    def showwarning(message: Any, category: Any, filename: str, *_: Any) -> None:
        if not str(message).startswith("env 2"):
            return  # on a busy machine, any env may be slow
        assert Path(filename).name == "ledger.py", "a warning names the line that called us"
        reported.append(str(message))
        if len(reported) == 2:
            go.touch()  # the env returns after its second warning

    monkeypatch.setattr(watchdog_module, "WARN_AFTER", 0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # Python's own, which drops repeated texts
        monkeypatch.setattr(warnings, "showwarning", showwarning)
        with column.open([partial(Faulty, i, str(go)) for i in range(N)]) as ledger:
            ledger.begin()
            ledger.venv.set_env_attr("trap", "step: hang in Python", [2])
            assert ledger.round() == []
            worker = f"worker pid {pids(ledger.venv)[2]}" if column.remote else "thread vecenv-block-2"
    assert len(reported) >= 2
    for part in (f"({worker}", "step_timeout", "faults.py", "on_step"):
        assert part in reported[0]


class Watched:
    """Watchdog with a fake clock over a worker of two envs. `limit` is a minute."""

    limit = 60.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.line, self.hung = 1000.0, [0] * 16, list[float]()
        monkeypatch.setattr(watchdog_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        worker = {"line": self.line, "start": 4, "ids": range(4, 6), "alive": True, "title": "", "ending": "was ended"}
        worker |= {"reports_progress": True, "is_silent": lambda self: False, "stack": lambda self: "its stack"}
        self.worker: Any = type("Worker", (), worker)()
        self.watchdog = watchdog_module.Watchdog(self.limit, lambda worker, reason: self.hung.append(self.now))
        self.line[DOING], self.line[PROGRESS] = A_ROUND, 3

    def look_after(self, share: float, busy: bool = True) -> None:
        """Look at the worker after a share of the limit."""
        self.now += share * self.limit
        self.watchdog.check({self.worker: (5,)} if busy else {})


def test_time_without_a_look_with_progress_or_of_another_worker_is_not_taken_for_a_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program was stopped, perhaps with its workers, or was slow."""
    watched = Watched(monkeypatch)
    watched.look_after(0)
    watched.look_after(10)
    assert watched.hung == []
    for _ in range(30):  # each env in turn
        watched.line[PROGRESS] += 1
        watched.look_after(0.2)
    for change in (
        lambda: watched.line.__setitem__(DOING, A_CALL),
        lambda: watched.watchdog.discard(watched.worker),
        lambda: watched.look_after(0, busy=False),
    ):
        for _ in range(8):
            watched.look_after(0.1)
        change()
        watched.look_after(0)
        watched.look_after(0.15)
    assert watched.hung == []
    begin = watched.now - 0.15 * watched.limit
    while not watched.hung:
        watched.look_after(0.1)
    assert 1 <= (watched.hung[0] - begin) / watched.limit <= 1.2


# Stopped processes.


@columns("blocks", dummy=False, command=False)
def test_a_large_action_for_a_stopped_worker_does_not_block_the_caller(column: Column) -> None:
    """1 MiB does not fit the pipe of a worker that does not read."""
    actions = np.full((N, 1 << 20), 5, np.int8)
    with column.open([partial(LargeAction, i) for i in range(N)], step_timeout=0.5) as ledger:
        venv = ledger.venv
        venv.reset()
        venv.step(actions)
        while venv.waiting_id:
            venv.step(None)
        block, pid = block_of(venv, 1), pids(venv)[1]
        os.kill(pid, signal.SIGSTOP)
        venv.send(actions)
        with pytest.raises(WorkerTimeoutError) as caught:  # noqa: PT012
            while venv.waiting_id:
                venv.recv()
        assert (caught.value.env_ids, caught.value.pid) == (tuple(block), pid)
        assert f"one of the envs {block} has been busy for more than step_timeout=0.5 s" in str(caught.value)
        assert "is it stopped?" in str(caught.value) or "not read from another machine" in str(caught.value)
        while venv.waiting_id:
            venv.recv()
        assert venv.failed_id == block
        venv.reset(block)
        obs, *_ = venv.step(actions[block], block)
        assert obs[:, 1:].tolist() == [[1, 1, 5]] * len(block)


@pytest.mark.parametrize(
    "column", [*column_params("blocks", dummy=False), *column_params("blocks", only=ThreadVectorEnv, quick=True)]
)
def test_envs_that_wait_instead_of_computing_are_reported_once(column: Column) -> None:
    """Even if several workers notice."""
    fns = [partial(TakesLong, i, seconds=0.05) for i in range(N)]
    with warnings.catch_warnings(record=True) as warned, column.open(fns) as ledger:
        warnings.simplefilter("always")
        ledger.begin()
        for _ in range(8):
            assert ledger.round() == []
        ledger.venv.get_env_attr("id")  # answered after the workers have said what they noticed
        assert ledger.round() == []
    (reported,) = [warning for warning in warned if warning.category is RuntimeWarning]
    advice = f"and wait one after the other. Pass num_workers={N} to the vector env, or"
    assert f"the envs wait more than they compute, {advice}" in str(reported.message)
    assert Path(reported.filename).name == "ledger.py", "a warning names the line that called us"


def test_close_is_bounded_though_an_env_hangs_in_its_step_another_in_close_and_a_worker_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vecenv.engine.lifetime.CLOSE_TIMEOUT", 0.3)
    seen = tmp_path / "seen"
    hangs, slow = partial(HangsOnStep, at=1, gil=True, seen=str(seen)), partial(Faulty, trap="close: hang in Python")
    venv = ShmemVectorEnv(counters(N, env1=hangs, env2=slow), num_workers=N)
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
