"""Faults that coincide: a death during a restart, a hung env among fast envs, infos that cannot be read."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import FULL, PROCESS_BACKENDS, and_ray, full, on_this_node, vector_env_classes
from tests.support.faulty import (
    AGES,
    Counter,
    DiesOnStep,
    HangsOnStep,
    RaisesInInit,
    RaisesOnStep,
    SlowClose,
    WaitsForFile,
    counters,
)
from tests.support.ledger import SEEN, kill, pids, said
from tests.support.local_ray import FAR, NEAR
from tests.support.oddities import DiesAtPickle, OddInfo, RaisesAtUnpickle
from vecenv import DummyVectorEnv, RayVectorEnv, SubprocVectorEnv, WorkerDiedError, WorkerTimeoutError

process_backend = vector_env_classes(full(PROCESS_BACKENDS))
remote_backend = and_ray(PROCESS_BACKENDS, quick=False)

ACTIONS = np.zeros(2, np.int64)


class KillsWhenMade(Counter):
    """Env whose constructor kills the process in the file, if any, and waits for its end."""

    def __init__(self, id: int, path: Path) -> None:
        super().__init__(id)
        if path.exists():
            pid = int(path.read_text())
            path.unlink()
            kill(pid)


@pytest.fixture
def killing(remote_backend: Any, tmp_path: Path) -> Iterator[Any]:
    """Make two envs in separate workers. The second env kills the first worker when it is made again."""

    def make(**options: Any) -> Any:
        options |= on_this_node(remote_backend)
        venv = remote_backend([partial(Counter, 0), partial(KillsWhenMade, 1, path)], num_workers=2, **options)
        made.append(venv)
        venv.reset()
        first, second = pids(venv)
        path.write_text(str(first))
        kill(second)
        return venv

    path, made = tmp_path / "pid", list[Any]()
    yield make
    for venv in made:
        venv.close()


@pytest.mark.parametrize("on_error", ["raise", "restart"])
def test_a_reset_in_which_a_worker_dies_while_another_is_started_again(killing: Any, on_error: str) -> None:
    venv = killing(on_error=on_error)
    obs, _ = venv.reset()
    assert len(obs) == 2
    assert venv.failed_id == []
    assert venv.step(ACTIONS)[0][:, 2].tolist() == [1, 1]


def test_a_step_in_which_a_worker_dies_while_another_is_started_again(killing: Any) -> None:
    venv = killing()
    assert venv.alive() == [True, False]
    with pytest.raises(WorkerDiedError) as caught:
        venv.step(ACTIONS, reset=[1])
    assert caught.value.env_id == 0
    assert caught.value.partial.env_id.tolist() == [1]
    venv.reset(0)
    assert venv.step(ACTIONS)[0][:, 2].tolist() == [1, 1]


class Forks(Counter):
    """Env with a child that holds the worker's descriptors."""

    def __init__(self, id: int) -> None:
        super().__init__(id)
        if os.fork() == 0:
            time.sleep(AGES)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # a fork beside another thread
def test_the_end_of_a_worker_is_seen_also_where_its_children_hold_its_descriptors(
    process_backend: Any, context: str
) -> None:
    """The system does not kill children that a thread of the worker started."""

    def body() -> None:
        with process_backend([partial(Forks, i) for i in range(2)], num_workers=2, context=context) as venv:
            venv.reset()
            os.kill(pids(venv)[1], signal.SIGKILL)
            with pytest.raises(WorkerDiedError, match="env 1"):
                venv.step(ACTIONS)
            reported.append(True)

    reported: list[bool] = []
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(20)
    assert reported


class Announces(Counter):
    """Env whose constructor writes its pid to a pipe."""

    def __init__(self, id: int, pipe: str) -> None:
        super().__init__(id)
        Path(pipe).write_text(f"{os.getpid()}\n")


class KillsTheAnnounced(Counter):
    def __init__(self, id: int, pipe: str) -> None:
        super().__init__(id)
        with Path(pipe).open() as other:
            kill(int(other.readline()))


def test_a_worker_that_dies_while_others_construct(process_backend: Any, tmp_path: Path) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    with pytest.raises(WorkerDiedError, match=r"env 0 .* was killed by SIGKILL"):
        process_backend([partial(Announces, 0, pipe), partial(KillsTheAnnounced, 1, pipe)], num_workers=2)


class ExitsInReset(Counter):
    """Env that ends its process in a reset: env 0 the first process, env 1 the second."""

    def __init__(self, id: int, path: Path) -> None:
        super().__init__(id)
        if id == 0:
            path.write_text(path.read_text() + "x" if path.exists() else "x")
        self.process, self.resets = len(path.read_text()), 0

    def reset(self, **kwargs: Any) -> Any:
        if self.process == self.id + 1:
            os._exit(1)
        self.resets += 1
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        assert self.resets, "stepped before its reset"
        return super().step(action)


def test_an_env_whose_worker_dies_again_for_another_is_no_fresh_one(remote_backend: Any, tmp_path: Path) -> None:
    fns = [partial(ExitsInReset, i, tmp_path / "processes") for i in range(2)]
    with remote_backend(fns, num_workers=1, on_error="restart") as venv:
        venv.reset()
        assert venv.failed_id == [0]
        *_, truncated, info = venv.step(ACTIONS)
        assert truncated.tolist() == [True, False]
        assert info[0]["restarted"]
        venv.reset(0)
        assert venv.step(ACTIONS)[0][:, 2].tolist() == [1, 2]


def test_a_worker_that_dies_as_soon_as_it_is_ready(process_backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with process_backend(counters(1)) as venv:
        venv.reset()
        kill(pids(venv)[0])
        pool = venv.engine.backend.pool
        await_ready = pool.await_ready

        def late(workers: Any, hints: bool = False) -> None:
            assert select.select([workers[0].channel.fileno()], [], [], 20.0)[0]
            kill(workers[0].pid)
            assert select.select([workers[0].process.sentinel], [], [], 20.0)[0]
            await_ready(workers, hints)

        with monkeypatch.context() as patch:
            patch.setattr(pool, "await_ready", late)
            with pytest.raises(WorkerDiedError, match="env 0"):
                venv.reset()
        venv.reset()
        assert venv.step([0])[0][:, 2].tolist() == [1]


class LongNames(Counter):
    """Env with a space whose description is larger than a socket buffer."""

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.observation_space = spaces.Dict({f"{'x' * 400}{k}": spaces.Discrete(5) for k in range(2000)})

    def reset(self, **kwargs: Any) -> Any:
        return dict.fromkeys(self.observation_space, 1), {}


def test_a_layout_that_is_larger_than_a_socket(remote_backend: Any) -> None:
    with remote_backend([partial(LongNames, 0)] * 2) as venv:
        obs, _ = venv.reset()
    assert all(leaf.tolist() == [1, 1] for leaf in obs.values())


def test_a_hung_env_among_quick_ones_is_given_up(remote_backend: Any) -> None:
    """Each wait is far shorter than `step_timeout`."""
    fns = [*counters(2), partial(HangsOnStep, 2)]
    with remote_backend(fns, step_timeout=0.5, wait_num=1) as venv:
        venv.reset()
        deadline = time.monotonic() + 20
        ids: Any = [0, 1, 2]
        with pytest.raises(WorkerTimeoutError) as caught:  # noqa: PT012
            while time.monotonic() < deadline:
                *_, info = venv.step([0] * len(ids), ids)
                ids = [row["env_id"] for row in info]
        assert caught.value.env_id == 2


def test_a_process_that_ends_while_it_sends_blames_no_other_env(remote_backend: Any) -> None:
    fns = [partial(OddInfo, 0, DiesAtPickle, 1), *counters(4)[1:]]
    with remote_backend(fns, num_workers=2, **on_this_node(remote_backend)) as venv:
        venv.reset()
        with pytest.raises(WorkerDiedError, match="while sending what its envs returned") as caught:
            venv.step([0] * 4)
        assert remote_backend is RayVectorEnv or "exited with code 3" in str(caught.value)
        assert caught.value.env_id == 0
        assert not caught.value.bystander


def test_an_env_that_ends_its_process_after_another_has_sent_is_blamed(remote_backend: Any) -> None:
    fns = [partial(OddInfo, 0, dict, 1), partial(DiesOnStep, 1, at=1), partial(Counter, 2)]
    with remote_backend(fns, num_workers=1, wait_num=3, timeout=20, **on_this_node(remote_backend)) as venv:
        venv.reset()
        venv.send([0] * 3)
        with pytest.raises(WorkerDiedError, match="while running env 1") as caught:
            venv.recv()
        assert caught.value.env_id == 1
        assert not caught.value.bystander


def test_an_info_that_is_sent_again_brings_no_old_ones_along(remote_backend: Any) -> None:
    fns = [partial(OddInfo, 0, dict, 1), partial(OddInfo, 1, dict), partial(OddInfo, 2, RaisesAtUnpickle)]
    with remote_backend(fns, num_workers=1) as venv:
        venv.reset()
        venv.step([0] * 3)
        with pytest.raises(TypeError, match="step on env 2: the result cannot be unpickled in this process") as caught:
            venv.step([0] * 3)
    infos = caught.value.partial.info  # type: ignore[attr-defined]
    assert ["odd" in info for info in infos] == [False, True]


def test_an_info_that_cannot_be_read_holds_up_no_other_env(remote_backend: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    fns = [partial(OddInfo, 0, RaisesAtUnpickle, 1), partial(WaitsForFile, 1, 1, str(go))]
    with remote_backend(fns, num_workers=1, timeout=0.05) as venv:
        venv.reset()
        patience = threading.Timer(SEEN, go.touch)
        patience.start()
        try:
            with pytest.raises(TypeError, match="cannot be unpickled in this process"):
                venv.step(ACTIONS)
            assert not go.exists()
            assert venv.waiting_id == [1]
        finally:
            patience.cancel()
            go.touch()
        assert venv.recv()[0][:, 2].tolist() == [1]


def test_infos_that_cannot_be_read_are_sent_again_also_where_another_came_since(remote_backend: Any) -> None:
    fns = [partial(OddInfo, i, RaisesAtUnpickle, 1) for i in range(2)]
    with remote_backend(fns, num_workers=1, wait_num=1, step_timeout=5) as venv:
        venv.reset()
        venv.send(ACTIONS)
        while venv.waiting_id:
            with pytest.raises(TypeError, match="cannot be unpickled in this process"):
                venv.recv()
        assert venv.failed_id == [0, 1]


# State that a call or env leaves to the next.


def test_refusals_have_no_results_of_the_call_that_failed_and_do_not_pile_up() -> None:
    with DummyVectorEnv([partial(RaisesOnStep, 0, at=1), partial(Counter, 1)]) as venv:
        venv.reset()
        lengths = []
        for results in ([1], None, None, None):
            with pytest.raises(ValueError, match="boom") as caught:
                venv.step(ACTIONS)
            reported = caught.value.partial
            assert results == (reported and reported.env_id.tolist())
            lengths.append(len([*traceback.walk_tb(caught.value.__traceback__)]))
    assert lengths[2] == lengths[3]


def test_a_reset_beside_a_failure_is_over_when_that_is_raised() -> None:
    with DummyVectorEnv([partial(RaisesOnStep, i, at=1) for i in range(2)]) as venv:
        venv.reset()
        with pytest.raises(ValueError, match="boom") as caught:
            venv.step(ACTIONS, reset=[0])
        assert "env 1, step()" in said(caught.value)
        venv.reset(1)
        with pytest.raises(ValueError, match="boom") as caught:
            venv.step(ACTIONS)
        assert "env 0, step()" in said(caught.value)


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


@pytest.mark.parametrize("make", [DummyVectorEnv, pytest.param(partial(SubprocVectorEnv, num_workers=1), marks=FULL)])
def test_envs_that_share_their_infos_do_not_share_ours(make: Any) -> None:
    with make([partial(Shares, i) for i in range(2)]) as venv:
        venv.reset()
        *_, info = venv.step([0] * 2)
    assert [row["who"] for row in info] == [0, 1]
    assert [row["log"] for row in info] == [[0], [1]]
    info[0]["mask"][:] = 7
    assert info[1]["mask"].tolist() == [1, 1, 1]


def test_a_forked_copy_of_a_program_keeps_no_channel_and_closes_none_of_the_original(process_backend: Any) -> None:
    with process_backend(counters(2)) as venv:
        workers = venv.engine.backend.pool.workers
        pid = os.fork()
        if pid == 0:
            os._exit(sum(worker.channel.fileno() >= 0 for worker in workers))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        venv.reset()
        assert all(venv.alive())


def test_an_env_that_hangs_in_close_does_not_hide_why_another_could_not_be_made(
    remote_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vecenv.engine.lifetime.CLOSE_TIMEOUT", 0.5)
    fns = [partial(SlowClose, 0), partial(RaisesInInit, 1)]
    for where in (NEAR, FAR) if remote_backend is RayVectorEnv else ({},):
        with pytest.raises(ValueError, match="boom"):
            remote_backend(fns, num_workers=1, start_timeout=60, **where)
