"""Workers that end: the call raises immediately, with env and cause. Other envs lose nothing. A reset restarts."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.support.faulty import (
    AGES,
    DiesInInit,
    DiesOnReset,
    DiesOnStep,
    Does,
    HangsOnStep,
    counters,
    sleep_for_ages,
)
from tests.support.ledger import SEEN, Column, Ledger, N, appears, block_of, columns, gone, kill, pids, reply_begins
from tests.support.oddities import OddInfo
from vecenv import RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, WorkerDiedError
from vecenv.backends.pool import start_methods
from vecenv.portability import PORTABLE


def check_error(error: WorkerDiedError, ids: list[int], pid: int, cause: str) -> None:
    """Check that the error names the envs, the process and the cause, and says what to do."""
    assert (error.env_ids, error.pid) == (tuple(ids), pid)
    assert error.env_id in ids
    assert cause in str(error)
    assert f"pid {pid}" in str(error)
    assert "reset(" in str(error)


def check_goes_on(ledger: Ledger, failed: list[int]) -> None:
    """Check as `Ledger.goes_on`, for envs that are made again."""
    ledger.born_again(failed)
    ledger.goes_on(failed, WorkerDiedError)


def meets_death(ledger: Ledger, ids: list[int]) -> None:
    """Run a round in which a dead worker is found or already known."""
    try:
        errors = ledger.round(ids)
    except WorkerDiedError as error:
        errors = [error]
    assert {type(error) for error in errors} == {WorkerDiedError}


def refused(ledger: Ledger, ids: list[int]) -> WorkerDiedError:
    with pytest.raises(WorkerDiedError) as caught:
        ledger.send(ids)
    return caught.value


@columns("blocks", "async", dummy=False, far=False, quick=True)
def test_alive_reports_the_death_of_an_idle_worker_without_waiting_and_a_reset_brings_it_back(column: Column) -> None:
    """The reset does not raise, but the other envs of the worker need a reset too."""
    with column.open(counters(N)) as ledger:
        ledger.begin()
        assert ledger.venv.alive() == [True] * N
        block = block_of(ledger.venv, 2)
        kill(pids(ledger.venv)[2])
        begin = time.monotonic()
        while ledger.venv.alive()[2]:
            assert time.monotonic() - begin < SEEN
        assert ledger.venv.alive() == [i not in block for i in range(N)]
        refused(ledger, list(range(N)))  # before any env is stepped
        ledger.born_again(block)
        ledger.reset([2])
        rest = [i for i in block if i != 2]
        assert ledger.venv.failed_id == rest
        if rest:
            refused(ledger, rest)
            ledger.reset(rest)
        assert ledger.round() == []
        assert ledger.venv.stats()["restarts"] == 1


@columns("blocks", "async", dummy=False)
def test_the_death_of_a_worker_is_seen_within_a_tenth_of_a_second(column: Column, tmp_path: Path) -> None:
    """The best of five, because a busy machine may run other programs meanwhile."""
    seen = tmp_path / "seen"
    delays = []
    with column.open(counters(N, env1=partial(HangsOnStep, at=1, seen=str(seen)))) as ledger:
        for _ in range(5):
            ledger.venv.reset()
            pid = pids(ledger.venv)[1]
            ledger.venv.send([0], [1])
            appears(seen)
            seen.unlink()
            begin = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(WorkerDiedError):
                ledger.venv.recv()
            delays.append(time.monotonic() - begin)
    assert min(delays) < 0.1, delays


def first_errors(ledger: Ledger) -> list[BaseException]:
    """Step until calls raise. Outside of Linux, only a call that has to wait sees that the forkserver has died."""
    for _ in range(10_000):
        try:
            if errors := ledger.round():
                return errors
        except WorkerDiedError as error:  # of a round whose envs had all answered
            return [error]
    return []


@columns("blocks", dummy=False, ray=False, command=False)
def test_when_the_forkserver_is_killed_its_workers_are_reported_dead_and_another_one_starts(column: Column) -> None:
    with column.open(counters(N)) as ledger:
        ledger.begin()
        server, workers = start_methods._server._forkserver_pid, set(pids(ledger.venv))
        os.kill(server, signal.SIGKILL)
        assert gone(server)
        if not PORTABLE:
            assert all(gone(pid) for pid in workers)
        with column.open(counters(N)) as other:
            other.begin()
        assert start_methods._server._forkserver_pid != server
        assert {type(error) for error in first_errors(ledger)} == {WorkerDiedError}
        assert all(gone(pid) for pid in workers)
        ledger.born_again(range(N))
        ledger.reset()
        assert ledger.round() == []


def close_descriptors() -> None:
    os.closerange(3, 1000)


def become_another_program() -> None:
    os.execv("/bin/sleep", ["sleep", str(AGES)])


def in_order(*calls: Callable[[], None]) -> None:
    for call in calls:
        call()


fork_may_warn = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*threads.*:RuntimeWarning")


@columns("blocks", dummy=False, ray=False, command=False)
@pytest.mark.parametrize(
    ("context", "leave"),
    [
        ("fork", partial(in_order, close_descriptors, sleep_for_ages)),
        ("fork", become_another_program),
        pytest.param("spawn", partial(in_order, close_descriptors, sleep_for_ages), marks=pytest.mark.slow),
    ],
)
@fork_may_warn
def test_a_worker_that_loses_its_connection_is_ended_and_the_report_does_not_blame_the_kernel(
    column: Column, context: str, leave: Callable[[], None]
) -> None:
    with column.open(counters(N, env2=partial(Does, at=2, what=leave)), context=context) as ledger:
        ledger.begin()
        block, pid = block_of(ledger.venv, 2), pids(ledger.venv)[2]
        begin = time.monotonic()
        (error,) = ledger.round()
        assert time.monotonic() - begin < SEEN
        check_error(error, block, pid, "closed its connection without ending, so vecenv killed it")
        assert "memory" not in str(error)
        assert "while running env 2" in str(error)
        check_goes_on(ledger, block)
        assert gone(pid)


@columns("blocks", only=SubprocVectorEnv)
@pytest.mark.parametrize(
    "context", ["fork", *(pytest.param(c, marks=pytest.mark.slow) for c in ("forkserver", "spawn"))]
)
@fork_may_warn
def test_a_worker_that_cannot_answer_is_reported_with_its_exit_code(column: Column, context: str) -> None:
    """The guard of a forked worker, in the same process group, does not kill a worker that ends by itself."""
    with column.open(counters(N, env2=partial(Does, at=2, what=close_descriptors)), context=context) as ledger:
        ledger.begin()
        block, pid = block_of(ledger.venv, 2), pids(ledger.venv)[2]
        (error,) = ledger.round()
        check_error(error, block, pid, "exited with code 1 (after an error that it printed")


@columns("blocks", "single", "async", dummy=False, far=False)
def test_a_worker_killed_in_the_middle_of_a_reply_is_reported_and_nothing_of_the_half_is_used(column: Column) -> None:
    with column.open(counters(N, env1=partial(OddInfo, make=partial(bytes, 8 << 20)))) as ledger:
        ledger.begin()
        block, pid = block_of(ledger.venv, 1), pids(ledger.venv)[1]
        ledger.send([1])
        reply_begins(ledger.venv, 1)  # 8 MiB do not fit, so the worker has to wait for the parent
        kill(pid)
        with pytest.raises(WorkerDiedError) as caught:
            ledger.venv.recv()
        check_error(caught.value, block, pid, column.cause("SIGKILL"))
        assert "while sending what its envs returned" in str(caught.value)
        assert not caught.value.bystander
        ledger._settle(caught.value)
        check_goes_on(ledger, block)


@columns("blocks", "async blocks", dummy=False)
def test_the_result_of_a_block_mate_survives_a_restart(column: Column) -> None:
    """The result of env 0 is not read yet when the worker dies in the reset of env 1. With shared memory, the worker
    may find both requests together and die before it announces the result.
    """
    with column.open(counters(N, env1=DiesOnReset)) as ledger:
        ledger.begin()
        assert block_of(ledger.venv, 1) == [0, 1]
        ledger.send([0])
        with pytest.raises(WorkerDiedError):
            ledger.venv.reset([1])
        ledger.born_again([1])
        ledger._expect_reset(1)
        obs, _ = ledger.venv.reset([1])
        assert obs.tolist() == [[1, 1, 0, -1]]
        del ledger.sent[1]
        try:
            ledger.check(*ledger.venv.recv())
        except WorkerDiedError:
            assert column.backend in (ShmemVectorEnv, RayVectorEnv)
            ledger.sent.clear()
        assert not ledger.sent
        check_goes_on(ledger, [0])


@columns("blocks", "single", dummy=False)
def test_a_constructor_that_fails_in_a_restart_leaves_the_env_failed_and_the_next_reset_tries_again(
    column: Column, tmp_path: Path
) -> None:
    flag = tmp_path / "die"
    with column.open(counters(N, env1=partial(DiesInInit, flag=str(flag)))) as ledger:
        ledger.begin()
        block = block_of(ledger.venv, 1)
        kill(pids(ledger.venv)[1])
        ledger.round([1])
        flag.touch()
        for _ in range(2):
            with pytest.raises(WorkerDiedError, match=column.cause("exited with code 3")):
                ledger.venv.reset([1])
            assert ledger.venv.failed_id == block
            others = [i for i in range(N) if i not in block]
            assert ledger.round(others) == []
        flag.unlink()
        check_goes_on(ledger, block)


@columns("single", "async", dummy=False, far=False)
@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_kill_while_another_worker_is_being_restarted_harms_neither(column: Column, rounds: int) -> None:
    """A thread kills env 2 at a random moment of a restart."""
    rng = np.random.default_rng(0)
    with column.open(counters(N)) as ledger:
        ledger.begin()
        for _ in range(rounds):
            victim, other = pids(ledger.venv)[1], pids(ledger.venv)[2]
            kill(victim)
            ledger.round([1])
            killer = threading.Timer(float(rng.uniform(0, 0.03)), os.kill, (other, signal.SIGKILL))
            killer.start()
            ledger.born_again([1])
            ledger.reset([1])
            killer.join()
            assert gone(other)
            meets_death(ledger, [0, 1, 2, 3])
            assert ledger.venv.failed_id == [2]
            ledger.born_again([2])
            ledger.reset([2])
            assert ledger.round() == []


@pytest.fixture
def reaped_by_others(children: str) -> Iterator[None]:
    """A program that ignores SIGCHLD, or a thread of the user, reaps the children."""
    stop, before = threading.Event(), signal.getsignal(signal.SIGCHLD)
    if children == "ignored":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        stop.set()
    reaper = threading.Thread(target=reap, args=(stop,))
    reaper.start()
    yield
    stop.set()
    reaper.join()
    signal.signal(signal.SIGCHLD, before)


@columns("blocks", dummy=False, ray=False, command=False)
@pytest.mark.parametrize("context", ["forkserver", "fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("children", ["ignored", "reaped"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*threads.*:RuntimeWarning")
def test_death_is_seen_where_children_are_reaped_by_others(
    column: Column, context: str, reaped_by_others: None
) -> None:
    with column.open(counters(N, env1=DiesOnStep), context=context) as ledger:
        ledger.begin()
        block, pid = block_of(ledger.venv, 1), pids(ledger.venv)[1]
        begin = time.monotonic()
        errors = ledger.round()
        assert time.monotonic() - begin < SEEN
        check_error(errors[0], block, pid, "")
        check_goes_on(ledger, block)


def reap(stop: threading.Event) -> None:
    while not stop.wait(0.001):
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            continue
