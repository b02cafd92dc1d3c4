"""Faults in an order that the table of faults (tests/faults) does not have: several at once, and races."""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import faulty
from tests.support.backends import FULL, PROCESS_BACKENDS, and_ray, one_of
from tests.support.faults import Faulty
from tests.support.faulty import AGES, Counter, Does, counters
from tests.support.ledger import Column, N, block_of, columns, gone, kill, pids, reply_begins
from tests.support.local_ray import FAR, NEAR
from tests.support.oddities import OddInfo, RaisesAtUnpickle
from tests.support.threads import in_a_thread
from vecenv import (
    DummyVectorEnv,
    RayVectorEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    ThreadVectorEnv,
    WorkerDiedError,
)

remote_backend = and_ray(PROCESS_BACKENDS, quick=False)

ACTIONS = np.zeros(2, np.int64)


def trapped(n: int, **traps: str) -> list[Any]:
    """Return `n` env_fns of `Faulty`, with these traps: env1="step: raise"."""
    return [partial(Faulty, i, trap=traps.get(f"env{i}", "")) for i in range(n)]


# Envs that raise.


class Own(ValueError):
    """Exception with weak references."""


@pytest.mark.parametrize("backend", [DummyVectorEnv, ThreadVectorEnv])
def test_the_very_exception_is_raised_where_the_env_lives_here(backend: Any) -> None:
    """With one note and its context, and no longer traceback if it is raised again. A reset lets go of it."""

    def fail() -> None:
        try:
            raise OSError("the real reason")
        except OSError:
            raise mine[0]  # noqa: B904

    mine, lengths = [Own("what it led to")], list[int]()
    with backend([partial(Does, 0, 1, fail)]) as venv:
        for _ in range(2):
            venv.reset()
            for _ in range(3):
                with pytest.raises(Own) as caught:
                    venv.step([0])
                assert caught.value is mine[0]
                frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
                lengths.append(len(frames))
        assert "fail" in frames
        assert lengths[1] == lengths[2]
        assert mine[0].__notes__.count("env 0, step()") == 1
        assert isinstance(mine[0].__context__, OSError)
        assert not mine[0].__suppress_context__
        error = weakref.ref(mine.pop())
        del caught
        venv.set_env_attr("at", 9)
        venv.reset()
        gc.collect()
        assert error() is None


class Shares(Counter):
    """Env that returns a dict and arrays that all envs of its process share."""

    shared: dict[str, Any] = {}
    mask = np.ones(3, np.int8)
    log: list[int] = []

    def step(self, action: Any) -> Any:
        *result, _ = super().step(action)
        self.log[:] = [self.id]
        self.shared.update(who=self.id, mask=self.mask, log=self.log)
        return (*result, self.shared)


@pytest.mark.parametrize("make", [DummyVectorEnv, partial(SubprocVectorEnv, num_workers=1)])
def test_envs_that_share_their_infos_do_not_share_ours(make: Any) -> None:
    with make([partial(Shares, i) for i in range(2)]) as venv:
        venv.reset()
        *_, info = venv.step([0] * 2)
    assert [row["who"] for row in info] == [0, 1]
    assert [row["log"] for row in info] == [[0], [1]]
    info[0]["mask"][:] = 7
    assert info[1]["mask"].tolist() == [1, 1, 1]


def test_infos_that_cannot_be_read_fail_all_their_envs(remote_backend: Any) -> None:
    """The worker sends the infos again, even if another env has answered since."""
    fns = [partial(OddInfo, i, RaisesAtUnpickle, 1) for i in range(2)]
    with remote_backend(fns, num_workers=1, wait_num=1, step_timeout=5) as venv:
        venv.reset()
        venv.send(ACTIONS)
        while venv.waiting_id:
            with pytest.raises(TypeError, match="cannot be unpickled in this process"):
                venv.recv()
        assert venv.failed_id == [0, 1]


# Workers that end.


@columns("blocks", dummy=False, ray=False, command=False)
def test_when_the_forkserver_is_killed_its_workers_are_reported_dead_and_another_one_starts(column: Column) -> None:
    with column.open(counters(N)) as ledger:
        ledger.begin()
        workers = set(pids(ledger.venv))
        kill(int(Path(f"/proc/{min(workers)}/stat").read_text().rpartition(")")[2].split()[1]))
        with column.open(counters(N)) as other:
            other.begin()
        assert all(gone(pid) for pid in workers)
        with pytest.raises(WorkerDiedError):
            ledger.venv.step([0] * N)
        ledger.born_again(range(N))
        ledger.reset()
        assert ledger.round() == []


@columns("blocks", "single", "async", dummy=False, far=False)
def test_a_worker_killed_in_the_middle_of_a_reply_is_reported_and_nothing_of_the_half_is_used(column: Column) -> None:
    with column.open(counters(N, env1=partial(OddInfo, make=partial(bytes, 8 << 20)))) as ledger:
        ledger.begin()
        block, pid = block_of(ledger.venv, 1), pids(ledger.venv)[1]
        ledger.send([1])
        reply_begins(ledger.venv, 1)  # 8 MiB do not fit, so the worker has to wait for the parent
        kill(pid)
        with pytest.raises(WorkerDiedError, match="while sending what its envs returned") as caught:
            ledger.venv.recv()
        assert (caught.value.env_ids, caught.value.pid, caught.value.bystander) == (tuple(block), pid, False)
        assert column.cause("SIGKILL") in str(caught.value)
        ledger._settle(caught.value)
        ledger.born_again(block)
        ledger.goes_on(block, WorkerDiedError)


@columns("blocks", "async blocks", dummy=False)
def test_the_result_of_a_block_mate_survives_a_restart(column: Column) -> None:
    """The result of env 0 is not read yet when the worker dies in the reset of env 1. With shared memory, the worker
    may find both requests together and die before it announces the result.
    """
    with column.open(trapped(N)) as ledger:
        ledger.begin()
        ledger.venv.set_env_attr("trap", "reset: SIGKILL", [1])
        ledger.send([0])
        with pytest.raises(WorkerDiedError):
            ledger.venv.reset([1])
        ledger.born_again([1])
        ledger._expect_reset(1)
        assert ledger.venv.reset([1])[0].tolist() == [[1, 1, 0, -1]]
        del ledger.sent[1]
        try:
            ledger.check(*ledger.venv.recv())
        except WorkerDiedError:
            assert column.backend in (ShmemVectorEnv, RayVectorEnv)
            ledger.sent.clear()
        assert not ledger.sent
        ledger.born_again([0])
        ledger.goes_on([0], WorkerDiedError)


@columns("blocks", "single", dummy=False)
def test_a_constructor_that_fails_in_a_restart_leaves_the_env_failed_and_the_next_reset_tries_again(
    column: Column, tmp_path: Path
) -> None:
    flag = tmp_path / "die"
    with column.open([partial(Faulty, i, trap="construct: exit", flag=str(flag)) for i in range(N)]) as ledger:
        ledger.begin()
        block = block_of(ledger.venv, 1)
        kill(pids(ledger.venv)[1])
        ledger.round([1])
        for _ in range(2):
            flag.touch()
            with pytest.raises(WorkerDiedError, match=column.cause("exited with code 3")):
                ledger.venv.reset([1])
            assert ledger.venv.failed_id == block
            assert ledger.round([i for i in range(N) if i not in block]) == []
        ledger.born_again(block)
        ledger.goes_on(block, WorkerDiedError)


def test_an_env_that_was_reset_is_lost_if_its_worker_dies_in_the_reset_of_another(
    remote_backend: Any, tmp_path: Path
) -> None:
    """Env 0 ends the first process, and env 1 the second process, after the reset of env 0."""
    flags = [tmp_path / "0", tmp_path / "1"]
    for flag in flags:
        flag.touch()
    fns = [partial(Faulty, i, trap="reset: SIGKILL", flag=str(flags[i])) for i in range(2)]
    with remote_backend(fns, num_workers=1, on_error="restart") as venv:
        venv.reset()
        assert venv.failed_id == [0]
        assert venv.step(ACTIONS)[3].tolist() == [True, False]
        venv.reset(0)
        assert venv.step(ACTIONS)[0][:, 2].tolist() == [1, 2]


class KillsAnother(Counter):
    """Env whose constructor ends the process that the file names."""

    def __init__(self, id: int, file: Path) -> None:
        super().__init__(id)
        if file.exists():
            kill(int(file.read_text()))
            file.unlink()


@pytest.mark.parametrize("backend", one_of(PROCESS_BACKENDS))
def test_a_worker_that_dies_while_another_is_started_again_needs_a_reset_too(backend: Any, tmp_path: Path) -> None:
    """A reset of both starts both."""
    file = tmp_path / "victim"
    with backend([partial(KillsAnother, i, file) for i in range(2)], num_workers=2) as venv:
        venv.reset()
        for ids in ([0], [0, 1]):
            first, victim = pids(venv)
            kill(first)
            file.write_text(str(victim))
            venv.reset(ids)
            if ids == [0]:
                with pytest.raises(WorkerDiedError, match="env 1"):
                    venv.step(ACTIONS)
                venv.reset([1])
            assert venv.step(ACTIONS)[0][:, 2].tolist() == [1, 1]


@columns("async", dummy=False)
def test_waiting_for_more_envs_than_are_alive_ends(column: Column, tmp_path: Path) -> None:
    """Two of four envs die while the third waits: a call that waits for three returns with what there is."""
    go = tmp_path / "go"
    with column.open([partial(Faulty, i, str(go)) for i in range(N)], wait_num=3) as ledger:
        ledger.begin()
        ledger.venv.set_env_attr("trap", "step: SIGKILL", [0, 1])
        ledger.venv.set_env_attr("trap", "step: hang in Python", [2])
        ledger.send()
        with pytest.raises(WorkerDiedError) as caught:
            ledger.venv.recv()
        ledger._take(caught.value)
        go.touch()
        ledger.check(*ledger.venv.recv())
        ledger._lose()
        ledger.born_again([0, 1])
        ledger.goes_on([0, 1], WorkerDiedError)


def become_another_program() -> None:
    os.execv("/bin/sleep", ["sleep", str(AGES)])


def leave_a_child() -> None:
    """End the worker, whose child holds its descriptors."""
    if os.fork() == 0:
        time.sleep(AGES)
    os.kill(os.getpid(), signal.SIGKILL)


LOST = "closed its connection without ending, so vecenv killed it"


@FULL
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*threads.*:RuntimeWarning")
@pytest.mark.parametrize(
    ("backend", "context", "end", "text"),
    [
        (ShmemVectorEnv, "forkserver", faulty.ENDS["SIGKILL"], ""),
        (ShmemVectorEnv, "fork", faulty.ENDS["SIGKILL"], ""),
        (ShmemVectorEnv, "fork", become_another_program, LOST),
        (ShmemVectorEnv, "fork", leave_a_child, ""),
        (SubprocVectorEnv, "fork", leave_a_child, ""),
    ],
)
def test_the_end_of_a_worker_is_seen_if_the_program_ignores_the_end_of_its_children_or_they_hold_descriptors(
    backend: Any, context: str, end: Any, text: str
) -> None:
    """If a thread has started the worker, the system does not kill children of the worker."""

    def body() -> None:
        with backend(counters(2, env1=partial(Does, at=1, what=end)), num_workers=2, context=context) as venv:
            venv.reset()
            with pytest.raises(WorkerDiedError, match=f"{text}(.|\n)*while running env 1") as caught:
                venv.step(ACTIONS)
            assert gone(caught.value.pid)
            venv.reset([1])

    before = signal.getsignal(signal.SIGCHLD)
    if end is faulty.ENDS["SIGKILL"]:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        in_a_thread(body) if end is leave_a_child else body()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_an_env_that_hangs_in_close_does_not_hide_why_another_could_not_be_made(
    remote_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vecenv.engine.lifetime.CLOSE_TIMEOUT", 0.5)
    fns = trapped(2, env0="close: hang in Python", env1="construct: raise")
    for where in (NEAR, FAR) if remote_backend is RayVectorEnv else ({},):
        with pytest.raises(ValueError, match="boom"):
            remote_backend(fns, num_workers=1, start_timeout=60, **where)
