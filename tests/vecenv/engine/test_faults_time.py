"""Envs that are too slow or hang: they are ended, the error shows their stack, and the caller does not hang."""

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

import vecenv.engine.lifetime
from tests.support.backends import PROCESS_BACKENDS, full, vector_env_classes
from tests.support.faulty import AGES, Counter, HangsOnStep, LargeAction, SlowClose, TakesLong, WaitsForFile, counters
from tests.support.ledger import CLOSED, Column, N, appears, block_of, column_params, columns, gone, kill, pids
from tests.support.oddities import HangsAtPickle, HangsAtUnpickle, OddInfo
from vecenv import ShmemVectorEnv, ThreadVectorEnv, WorkerTimeoutError
from vecenv.backends.memory.shared_memory import A_CALL, A_ROUND, DOING, ELSEWHERE, NOTHING, PROGRESS, SENDING
from vecenv.backends.pool import watchdog as watchdog_module

LIMIT = 0.5
SHORT = {"step_timeout": LIMIT}
process_backend = vector_env_classes(full(PROCESS_BACKENDS))


def check_error(error: WorkerTimeoutError, env_id: int, pid: int, where: str, hung: str = "") -> None:
    """Check that the error names the env and the limit, and shows the line of the env."""
    assert isinstance(error, TimeoutError)
    assert (error.env_id, error.pid) == (env_id, pid)
    assert f"{hung or f'env {env_id}'} has been busy for more than step_timeout={LIMIT} s" in str(error)
    assert where in str(error)


def test_a_hang_while_a_value_travels_is_reported_for_its_env(process_backend: Any) -> None:
    """An info that hangs in pickle, and an option or argument that hangs in unpickle, after env 1 was used."""
    with process_backend([partial(OddInfo, 0, HangsAtPickle), partial(Counter, 1)], num_workers=1, **SHORT) as venv:
        for hang in (
            lambda: venv.step([0, 0]),
            lambda: venv.reset([0], options={"odd": HangsAtUnpickle()}),
            lambda: venv.set_env_attr("odd", HangsAtUnpickle(), [0]),
        ):
            venv.reset()
            venv.step([0, 0])
            with pytest.raises(WorkerTimeoutError, match="env 0 has been busy") as caught:
                hang()
            assert "in sleep_for_ages" in str(caught.value)
            venv.reset()


@columns("blocks", dummy=False)
def test_a_block_that_gets_on_may_take_longer_than_one_step(column: Column) -> None:
    """The limit is per env, not per round: two envs of 0.6 s share a worker."""
    with column.open(
        counters(N, env0=partial(TakesLong, seconds=0.6), env1=partial(TakesLong, seconds=0.6)), step_timeout=1.0
    ) as ledger:
        ledger.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that they wait, and share a worker
            begin = time.monotonic()
            assert ledger.round() == []
        assert time.monotonic() - begin > 1.1


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
        reported.append(str(message))
        assert Path(filename).name == "ledger.py", "a warning names the line that called us"
        if len(reported) == 2:
            go.touch()  # the env returns after its second warning

    monkeypatch.setattr(watchdog_module, "WARN_AFTER", 1.0)
    with column.open(counters(N, env2=partial(WaitsForFile, at=2, go=str(go)))) as ledger:
        ledger.begin()
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # Python's own, which drops repeated texts
            monkeypatch.setattr(warnings, "showwarning", showwarning)
            assert ledger.round() == []
        hang, longer = reported
        assert hang.startswith("env 2")
        assert longer.startswith("env 2")
        worker = f"worker pid {pids(ledger.venv)[2]}" if column.remote else "thread vecenv-block-2"
        assert f"({worker}" in hang
        assert "step_timeout" in hang
        assert "faulty.py" in hang
        assert "on_step" in hang


# The time of an env.


class Watched:
    """Watchdog with a fake clock over a worker of two envs. `limit` is a minute."""

    limit = 60.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.line = 1000.0, [0] * 16
        self.hung: list[tuple[float, int]] = []
        self.text = ""
        monkeypatch.setattr(watchdog_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        worker = {"line": self.line, "start": 4, "ids": range(4, 6), "alive": True, "title": "", "ending": "was ended"}
        worker |= {"reports_progress": True, "is_silent": lambda self: False}
        self.worker: Any = type("Worker", (), {**worker, "stack": lambda self: "its stack"})()
        self.watchdog = watchdog_module.Watchdog(self.limit, self.kill)
        self.line[DOING] = A_ROUND

    def kill(self, worker: Any, reason: Any) -> None:
        self.hung += [(self.now, i) for i in worker.ids if not reason(i).bystander]
        self.text = str(reason(4))

    def look_after(self, seconds: float, busy: bool = True, ids: tuple[int, ...] = (5,)) -> None:
        self.now += seconds
        self.watchdog.check({self.worker: ids} if busy else {})


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@pytest.mark.parametrize("pause", [0.02, 0.05, 0.1, 0.3])
def test_a_hang_is_noticed_as_early_whatever_the_pace_of_the_loop(watched: Watched, pause: float) -> None:
    """The loop takes `pause` (a share of the limit) between its looks."""
    watched.line[PROGRESS] = 3
    watched.look_after(0)
    begin = watched.now
    while not watched.hung:
        watched.look_after(pause * watched.limit)
        assert watched.now < begin + 2 * watched.limit
    assert watched.hung == [(watched.now, 5)]
    assert 1 <= (watched.now - begin) / watched.limit <= 1 + max(0.2, pause)


def test_time_without_a_look_with_progress_or_of_another_worker_is_not_taken_for_a_hang(watched: Watched) -> None:
    """The program was stopped, perhaps with its workers, or was slow."""
    watched.look_after(0)
    watched.look_after(10 * watched.limit)
    assert watched.hung == []
    for _ in range(30):  # each env in turn
        watched.line[PROGRESS] += 1
        watched.look_after(0.2 * watched.limit)
    for change in (
        lambda: watched.line.__setitem__(DOING, A_CALL),
        lambda: watched.watchdog.discard(watched.worker),
        lambda: watched.look_after(0, busy=False),
    ):
        for _ in range(8):
            watched.look_after(0.1 * watched.limit)
        change()
        watched.look_after(0)
        watched.look_after(0.15 * watched.limit)
    assert watched.hung == []


@pytest.mark.parametrize("doing", [NOTHING, A_ROUND, SENDING])
def test_a_hang_is_reported_after_each_limit_of_which_a_time_without_a_look_is_at_most_half(
    watched: Watched, doing: int
) -> None:
    """For the env with the operation, even if the worker has not begun."""
    watched.line[DOING], watched.line[PROGRESS] = doing, 3
    watched.look_after(0)
    for _ in range(24):
        watched.look_after(0.1 * watched.limit)
    assert watched.hung == [(1060.0, 5), (1120.0, 5)]
    watched.look_after(10 * watched.limit)
    assert len(watched.hung) == 2
    watched.look_after(0.1 * watched.limit)
    assert watched.hung[2:] == [(watched.now, 5)]


@pytest.mark.parametrize("doing", [NOTHING, ELSEWHERE])
def test_the_error_names_all_envs_that_may_hang_if_the_worker_does_not_say(watched: Watched, doing: int) -> None:
    """The worker has not begun, or shares no memory with the caller."""
    watched.line[DOING], watched.line[PROGRESS] = doing, 2
    watched.look_after(0)
    while not watched.hung:
        watched.look_after(0.1 * watched.limit, ids=(4, 5))
    assert [env_id for _, env_id in watched.hung] == [4, 5], "none of them is a bystander"
    assert "env 4 is lost because one of the envs [4, 5] has been busy" in watched.text
    assert "One of the envs [4, 5] was at\nits stack" in watched.text


@columns("blocks", only=ShmemVectorEnv)
def test_the_time_of_a_worker_that_died_is_not_that_of_its_successor(column: Column) -> None:
    with column.open(counters(N), step_timeout=AGES) as ledger:
        ledger.begin()
        backend = ledger.venv.engine.backend
        backend._watchdog.check({worker: worker.ids for worker in backend.pool.workers})
        kill(pids(ledger.venv)[0])
        ledger.round([0])
        ledger.venv.reset([0])
        assert [worker.index for worker in backend._watchdog._seen] == [1]


# Stopped processes.


@columns("blocks", dummy=False, command=False)
def test_a_large_action_for_a_stopped_worker_does_not_block_the_caller(column: Column) -> None:
    """1 MiB does not fit the pipe of a worker that does not read."""
    actions = np.full((N, 1 << 20), 5, np.int8)
    with column.open([partial(LargeAction, i) for i in range(N)], step_timeout=LIMIT) as ledger:
        venv = ledger.venv
        venv.reset()
        venv.step(actions)
        while venv.waiting_id:
            venv.step(None)
        block, pid = block_of(venv, 1), pids(venv)[1]
        was_near = next(w.on_this_node for w in venv.engine.backend.pool.workers if 1 in w.ids)
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        venv.send(actions)
        assert time.monotonic() - begin < LIMIT
        with pytest.raises(WorkerTimeoutError) as caught:
            receive_all(venv)
        where = "is it stopped?" if was_near else "not read from another machine"
        check_error(caught.value, caught.value.env_id, pid, where, f"one of the envs {block}")
        assert caught.value.env_id in block
        receive_all(venv)
        assert venv.failed_id == block
        venv.reset(block)
        obs, rew, *_ = venv.step(actions[block], block)
        while venv.waiting_id:
            venv.step(None)
        assert obs[0].tolist() == [obs[0][0], 1, 1, 5]
        assert rew[0] == 1 + obs[0][0] / 1000


def receive_all(venv: Any) -> None:
    while venv.waiting_id:
        venv.recv()


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
        assert ledger.venv.num_workers == N // 2
    reported = [warning for warning in warned if warning.category is RuntimeWarning]
    assert len(reported) == 1
    message = str(reported[0].message)
    advice = f"and wait one after the other. Pass num_workers={N} to the vector env, or"
    assert f"the envs wait more than they compute, {advice}" in message
    assert "as AsyncDataCollector does" in message
    assert Path(reported[0].filename).name == "ledger.py", "a warning names the line that called us"


def test_close_is_bounded_though_an_env_hangs_in_its_step_another_in_close_and_a_worker_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vecenv.engine.lifetime, "CLOSE_TIMEOUT", 0.3)
    seen = tmp_path / "seen"
    venv = ShmemVectorEnv(
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
