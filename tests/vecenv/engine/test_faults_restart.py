"""on_error="restart": a limited number of failures become truncated rows. Also waits for more envs than are alive."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from tests.support.backends import BACKENDS, and_ray
from tests.support.faulty import (
    BreaksOffItsRow,
    Counter,
    DiesOnReset,
    DiesOnStep,
    RaisesOnReset,
    RaisesOnStep,
    WaitsForFile,
    counters,
)
from tests.support.ledger import STARTED, Column, N, block_of, columns, kill, pids, said, wait_until
from vecenv import DummyVectorEnv, ObservationError, RayVectorEnv, ShmemVectorEnv, ThreadVectorEnv, WorkerDiedError
from vecenv.engine import recovery

backend = and_ray(BACKENDS)


@pytest.mark.parametrize("end", [None, "SIGKILL"])
def test_the_row_of_a_failure_is_the_last_one_whole_also_where_the_next_was_written_in_part(
    backend: Any, end: str | None
) -> None:
    if end is not None and backend in (DummyVectorEnv, ThreadVectorEnv):
        pytest.skip("its envs are in this process")
    fns = [partial(BreaksOffItsRow, i, end=end) for i in range(3)]
    with backend(fns, num_workers=1, on_error="restart") as venv:
        venv.reset()
        venv.step([7] * 3)
        venv.step([8], [2])
        last = [venv.step([5 + i], [i])[0] for i in range(2)]
        for batch in last:
            batch["first"][:] = -1  # the caller's own
        for _ in range(2):
            obs, rew, terminated, truncated, info = venv.step([9] * 3)
            whole = [1] if end is None else [0, 1, 2]
            assert [i for i in range(3) if "error" in info[i]] == whole
            assert obs["first"][whole].tolist() == [[i, 1, 2, (5, 6, 8)[i]] for i in whole]
            assert obs["second"][whole].tolist() == [2] * len(whole)
            assert rew[whole].tolist() == [0.0] * len(whole)
            assert truncated[whole].all()
            assert not terminated.any()
        obs, _ = venv.reset([1])
        assert obs["first"][0, 2] == obs["second"][0] == 0


class RefusesToReset(gymnasium.Env):
    """Env that counts its steps. If a file exists, the second part of the first observation does not fit."""

    action_space = spaces.Discrete(9)
    observation_space = spaces.Dict({"first": spaces.Discrete(9), "second": spaces.Discrete(9)})

    def __init__(self, file: Path) -> None:
        self.file, self.t, self.pid = file, 0, os.getpid()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return {"first": 7, "second": "x" if self.file.exists() else 0}, {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return {"first": self.t, "second": self.t}, 0.0, False, False, {}


@pytest.mark.parametrize("dies", [False, True])
def test_the_row_after_a_reset_that_failed_too_often_is_that_of_the_last_step(
    backend: Any, dies: bool, tmp_path: Path
) -> None:
    if dies and backend in (DummyVectorEnv, ThreadVectorEnv):
        pytest.skip("its envs are in this process")
    files = [tmp_path / "a", tmp_path / "b"]
    with backend([partial(RefusesToReset, file) for file in files], num_workers=2, on_error="restart") as venv:
        venv.reset()
        venv.step([0, 0])
        files[1].touch()
        if dies:
            kill(pids(venv)[1])
        with pytest.raises(ObservationError, match=r"env 1: obs\['second'\] is"):
            venv.reset([1])
        obs, _, _, truncated, _ = venv.step([0, 0])
        assert (obs["first"].tolist(), obs["second"].tolist()) == ([2, 1], [2, 1])
        assert truncated.tolist() == [False, True]


class ChangesItsSpace(RefusesToReset):
    """Env with other keys if the file exists when the env is made."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.key = "other" if file.exists() else "second"
        self.observation_space = spaces.Dict({"first": spaces.Discrete(9), self.key: spaces.Discrete(9)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"first": 7, self.key: 0}, {}


def test_an_env_of_a_new_worker_must_keep_to_the_space_of_the_first(backend: Any, tmp_path: Path) -> None:
    if backend in (DummyVectorEnv, ThreadVectorEnv):
        pytest.skip("its envs are in this process")
    files = [tmp_path / "a", tmp_path / "b"]
    with backend([partial(ChangesItsSpace, file) for file in files], num_workers=2) as venv:
        venv.reset()
        for _ in range(2):
            files[1].touch()
            kill(pids(venv)[1])
            with pytest.raises(ObservationError, match=r"missing \['second'\], not in the space \['other'\]"):
                venv.reset([1])
            files[1].unlink()
            kill(pids(venv)[1])
            assert venv.reset([1])[0]["second"].tolist() == [0]


@pytest.mark.parametrize("end", [None, "SIGKILL"])
def test_with_autoreset_a_failed_env_is_reset_in_the_round_of_its_failure(backend: Any, end: str | None) -> None:
    if end is not None and backend in (DummyVectorEnv, ThreadVectorEnv):
        pytest.skip("its envs are in this process")
    with backend([partial(BreaksOffItsRow, i, end=end) for i in range(3)], num_workers=1, on_error="restart") as venv:
        venv.reset()
        venv.step([7] * 3, autoreset=True)
        venv.step([8] * 3, autoreset=True)
        obs, rew, terminated, truncated, info = venv.step([9] * 3, autoreset=[4, 5, 6])
        lost = [1] if end is None else [0, 1, 2]
        assert [i for i in range(3) if "final_obs" in info[i]] == lost == truncated.nonzero()[0].tolist()
        assert (rew[lost].any(), terminated.any(), venv.failed_id) == (False, False, [])
        for i in lost:
            assert info[i]["final_obs"]["first"].tolist() == [i, 1, 2, 8]
            assert info[i]["final_obs"]["second"] == 2
            assert set(info[i]["final_info"]) == {"restarted", "error"}
            assert "restarted" not in info[i]
            assert obs["first"][i, 2] == obs["second"][i] == 0
        assert venv.get_env_attr("np_random_seed", lost) == [4 + i for i in lost]
        obs, _, _, truncated, info = venv.step([5] * 3, autoreset=True)
        assert [obs["second"][i] for i in lost] == [1] * len(lost)
        assert not truncated.any()
        assert all(each.keys().isdisjoint({"final_obs", "restarted"}) for each in info)


def test_with_autoreset_an_env_that_had_failed_earlier_is_reset_too(backend: Any) -> None:
    with backend([partial(BreaksOffItsRow, i, at=1) for i in range(2)], num_workers=1, on_error="restart") as venv:
        venv.reset()
        assert venv.step([7] * 2)[4][1]["restarted"]
        obs, _, _, truncated, info = venv.step([8] * 2, autoreset=True)
        assert (truncated.tolist(), obs["second"].tolist()) == ([False, True], [2, 0])
        assert info[1]["final_info"]["restarted"]
        assert venv.failed_id == []


def test_an_env_that_is_lost_between_rounds_repeats_its_latest_observation() -> None:
    """All results of the env were read. Env 1 repeats its observation even after its worker is back, because only env 0
    was reset.
    """
    with ShmemVectorEnv(counters(3), num_workers=2, on_error="restart") as venv:
        venv.reset()
        venv.step([4] * 3)
        latest = venv.step([5] * 3)[0]
        assert block_of(venv, 0) == [0, 1]
        for pid in {*pids(venv)}:
            kill(pid)
        wait_until(lambda: not any(venv.alive()))
        venv.reset([0])
        obs, _, _, truncated, info = venv.step([6] * 3)
        assert ["error" in each for each in info] == truncated.tolist() == [False, True, True]
        assert obs[1:].tolist() == latest[1:].tolist()


def test_a_reset_of_others_does_not_get_the_row_of_a_failed_env() -> None:
    env_fns: list[Any] = [partial(RaisesOnStep, 0, at=1), partial(Counter, 1), partial(Counter, 2)]
    with DummyVectorEnv(env_fns, on_error="restart") as venv:
        venv.reset()
        assert venv.step([0] * 3)[3].tolist() == [True, False, False]
        venv.send([0], [0])
        assert venv.reset([2])[1].tolist() == [{"env_id": 2}]
        assert venv.recv()[4][0]["restarted"]
        assert venv.reset()[1].tolist() == [{"env_id": 0}, {"env_id": 1, "t": 0}, {"env_id": 2}]


@columns("blocks", dummy=False, far=False, quick=True)
def test_the_end_of_a_worker_counts_for_the_env_that_was_running_alone(column: Column) -> None:
    """Other envs of the worker are truncated and restarted without a charge."""
    env_fns = counters(N, env1=partial(DiesOnStep, at=1))
    with column.backend(env_fns, on_error="restart", max_restarts=2, **column.options) as venv:
        assert block_of(venv, 1) == [0, 1]
        venv.reset()
        for _ in range(2):
            *_, truncated, info = venv.step([0] * N)
            assert truncated.tolist() == [True, True, False, False]
            assert info[0]["restarted"]
            venv.reset([0, 1])
        with pytest.raises(WorkerDiedError) as caught:
            venv.step([0] * N)
        assert caught.value.env_id == 1
        assert "env 1 had already failed 2 times within a minute (max_restarts=2)" in said(caught.value)
        partial_ = caught.value.partial
        assert partial_ is not None
        assert partial_.env_id.tolist() == [0, 2, 3]
        assert partial_.truncated.tolist() == [True, False, False]
        assert venv.stats()["absorbed"] == 5
        venv.reset([0, 1])
        assert venv.failed_id == []


def test_the_budget_is_that_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(recovery, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with DummyVectorEnv([partial(RaisesOnStep, 0, at=1)], on_error="restart", max_restarts=2) as venv:
        for clock[0] in (0, 50, 61, 111):
            venv.reset()
            assert venv.step([0])[3].tolist() == [True]
        clock[0] = 120
        venv.reset()
        with pytest.raises(ValueError, match="boom"):
            venv.step([0])


@columns(only=DummyVectorEnv)
def test_a_reset_that_fails_is_tried_again_within_the_budget_and_then_raises_its_last_error(column: Column) -> None:
    env1 = partial(RaisesOnReset, at=(2, 3, *range(5, 9)))
    with column.open(counters(N, env1=env1), on_error="restart", max_restarts=3) as ledger:
        ledger.begin()
        ledger.episode[1] = 3  # episodes 2 and 3 do not begin
        ledger.reset()
        assert ledger.venv.failed_id == []
        assert ledger.round() == []
        assert "restarted" not in ledger.rows[1]
        with pytest.raises(ValueError, match="no episode 6"):
            ledger.venv.reset()


@columns("blocks", "async", dummy=False)
def test_an_env_that_dies_in_every_reset_ends_in_an_error_not_in_a_storm(column: Column) -> None:
    begin = time.monotonic()
    with column.open(counters(N, env1=partial(DiesOnReset, always=True)), on_error="restart", max_restarts=3) as ledger:
        error = ledger.reset_fails(WorkerDiedError)
        assert "env" in str(error)
        assert ledger.venv.stats()["restarts"] <= 4
    assert time.monotonic() - begin < (3 * STARTED if column.backend is RayVectorEnv else 20)


@columns("async", dummy=False)
def test_waiting_for_more_envs_than_are_alive_ends(column: Column, tmp_path: Path) -> None:
    """wait_num=3 of 4, and two envs die while the third waits: the call returns, and the third row comes with the next
    call.
    """
    go = tmp_path / "go"
    env_fns: list[Any] = [
        partial(DiesOnStep, 0),
        partial(DiesOnStep, 1),
        partial(WaitsForFile, 2, 2, str(go)),
        partial(Counter, 3),
    ]
    with column.open(env_fns, wait_num=3) as ledger:
        ledger.begin()
        ledger.send()
        with pytest.raises(WorkerDiedError) as caught:
            ledger.venv.recv()
        ledger._take(caught.value)
        go.touch()
        ledger.check(*ledger.venv.recv())
        ledger._lose()
        ledger.born_again([0, 1])
        ledger.goes_on([0, 1], WorkerDiedError)


class RaisesWhenAsked(Counter):
    """Env that raises if the action, an object, says so."""

    action_space = spaces.Sequence(spaces.Discrete(2))

    def step(self, action: Any) -> Any:
        if action[0]:
            raise ValueError("asked to")
        return super().step(0)


def test_an_env_that_is_not_stepped_is_sent_no_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker would use the action in a later step."""
    with DummyVectorEnv([partial(RaisesWhenAsked, i) for i in range(2)], on_error="restart") as venv:
        venv.reset()
        venv.step([(1,), (0,)])
        send, sent = venv.engine.backend.send, list[Any]()

        def noted(ids: Any, ops: Any, payloads: Any) -> None:
            sent.append((ids.tolist(), list(payloads)))
            send(ids, ops, payloads)

        with monkeypatch.context() as patch:
            patch.setattr(venv.engine.backend, "send", noted)
            *_, info = venv.step([(0,), (0,)])
    assert info[0]["restarted"]
    assert sent == [([1], [1])]


def test_strict_wants_a_reset_behind_a_failure_that_was_absorbed() -> None:
    with DummyVectorEnv(counters(2, env0=partial(RaisesOnStep, at=1)), on_error="restart", strict=True) as venv:
        venv.reset()
        *_, truncated, _ = venv.step([0, 0])
        assert truncated.tolist() == [True, False]
        with pytest.raises(RuntimeError, match="env 0 has not been reset"):
            venv.step([0, 0])
        venv.reset(0)
        venv.step([0], [1])
