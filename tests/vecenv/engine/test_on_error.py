"""on_error="restart": a limited number of failures become truncated rows. tests/faults plays it for each fault."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import BACKENDS, and_ray
from tests.support.faulty import BreaksOffItsRow, Counter, DiesOnReset, RaisesOnReset, counters
from tests.support.ledger import Column, N, columns, kill, pids, said
from vecenv import (
    DummyVectorEnv,
    ObservationError,
    ShmemVectorEnv,
    ThreadVectorEnv,
    VectorEnvNormObs,
    WorkerDiedError,
)

backend = and_ray(BACKENDS)
HERE = (DummyVectorEnv, ThreadVectorEnv)


class Fails(Counter):
    """Env that raises or ends its process in each step after `fails` was set."""

    fails = ""

    def on_step(self) -> None:
        if self.fails == "raise":
            raise ValueError("fails")
        if self.fails == "die":
            os.kill(os.getpid(), signal.SIGKILL)


ENV_FNS = [partial(Fails, i) for i in range(2)]


def absorbed(venv: Any, env_id: int, how: str) -> Any:
    """Let an env fail in a step. Return the flags `truncated` of the step, and reset the envs that it ended."""
    venv.set_env_attr("fails", how, [env_id])
    truncated = venv.step([0, 0])[3]
    venv.reset(np.flatnonzero(truncated))
    venv.set_env_attr("fails", "", [env_id])
    return truncated.tolist()


@pytest.mark.guarantee("G8.9")
def test_a_failure_is_absorbed_five_times_per_minute_and_env(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with DummyVectorEnv(ENV_FNS, on_error="restart") as venv:
        venv.reset()
        for now in (0, 50, 50, 50, 50, 61):  # noqa: B007
            assert absorbed(venv, 1, "raise") == [False, True]
        with pytest.raises(ValueError, match="fails"):
            absorbed(venv, 1, "raise")
        venv.set_env_attr("fails", "", [1])
        venv.reset([1])
        assert absorbed(venv, 0, "raise") == [True, False]


@pytest.mark.guarantee("G8.12")
def test_the_death_of_a_worker_counts_for_the_env_that_was_running() -> None:
    with ShmemVectorEnv(ENV_FNS, num_workers=1, on_error="restart", max_restarts=1) as venv:
        venv.reset()
        assert absorbed(venv, 1, "die") == [True, True]
        assert absorbed(venv, 0, "raise") == [True, False]
        with pytest.raises(WorkerDiedError) as caught:
            absorbed(venv, 1, "die")
        assert "env 1 had already failed 1 times within a minute (max_restarts=1)" in said(caught.value)
        assert caught.value.partial.env_id.tolist() == [0]
        assert caught.value.partial.truncated.tolist() == [True]
        assert venv.stats()["absorbed"] == 4


@pytest.mark.guarantee("G8.10")
def test_running_statistics_leave_out_the_row_of_a_failure() -> None:
    with VectorEnvNormObs(DummyVectorEnv(ENV_FNS, on_error="restart")) as venv:
        venv.reset()
        before = venv.get_obs_rms().count
        assert absorbed(venv.venv, 1, "raise") == [False, True]
        venv.set_env_attr("fails", "raise", [1])
        venv.step([0, 0])
        assert venv.get_obs_rms().count == before + 1


@columns(only=DummyVectorEnv)
def test_a_reset_that_fails_is_tried_again_within_the_budget_and_then_raises_its_last_error(column: Column) -> None:
    env1 = partial(RaisesOnReset, at=(2, 3, *range(5, 9)))
    with column.open(counters(N, env1=env1), on_error="restart", max_restarts=3) as ledger:
        ledger.begin()
        ledger.episode[1] = 3  # episodes 2 and 3 do not begin
        ledger.reset()
        assert ledger.venv.failed_id == []
        assert ledger.round() == []
        with pytest.raises(ValueError, match="no episode 6"):
            ledger.venv.reset()


@columns("blocks", "async", dummy=False)
def test_an_env_that_dies_in_every_reset_ends_in_an_error_not_in_a_storm(column: Column) -> None:
    with column.open(counters(N, env1=partial(DiesOnReset, always=True)), on_error="restart", max_restarts=3) as ledger:
        ledger.reset_fails(WorkerDiedError)
        assert ledger.venv.stats()["restarts"] <= 4


def last_row(obs: Any, info: Any, i: int, autoreset: bool) -> Any:
    """Return the observation of a failed step: in the infos, if the env was reset in the same round."""
    if autoreset:
        assert info[i]["final_info"].keys() == {"restarted", "error"}
        assert "restarted" not in info[i]
        return info[i]["final_obs"]
    assert info[i]["restarted"]
    return {"first": obs["first"][i], "second": obs["second"][i]}


@pytest.mark.guarantee("G8.9", "G8.11")
@pytest.mark.parametrize("end", [None, "SIGKILL"])
@pytest.mark.parametrize("autoreset", [False, True])
def test_a_row_that_was_written_in_part_is_replaced_by_the_last_whole_row(
    backend: Any, end: str | None, autoreset: bool
) -> None:
    if end is not None and backend in HERE:
        pytest.skip("its envs are in this process")
    with backend([partial(BreaksOffItsRow, i, end=end) for i in range(3)], num_workers=1, on_error="restart") as venv:
        venv.reset()
        for action in (7, 8):
            venv.step([action] * 3, autoreset=autoreset)[0]["first"][:] = -1  # the caller's own
        obs, rew, terminated, truncated, info = venv.step([9] * 3, autoreset=[4, 5, 6] if autoreset else False)
        lost = [1] if end is None else [0, 1, 2]
        assert truncated.nonzero()[0].tolist() == lost
        assert not rew[lost].any()
        assert not terminated.any()
        for i in lost:
            row = last_row(obs, info, i, autoreset)
            assert (row["first"].tolist(), row["second"]) == ([i, 1, 2, 8], 2)
        if autoreset:
            assert venv.get_env_attr("np_random_seed", lost) == [4 + i for i in lost]
        else:  # an autoreset of a later round resets envs that have failed, too
            obs, *_, truncated, info = venv.step([9] * 3, autoreset=True)
            assert truncated.nonzero()[0].tolist() == lost
            assert all(info[i]["final_info"]["restarted"] for i in lost)
        assert obs["second"][lost].tolist() == [0] * len(lost)
        assert venv.failed_id == []
        obs, _, _, truncated, info = venv.step([5] * 3, autoreset=True)
        assert obs["second"][lost].tolist() == [1] * len(lost)
        assert not truncated.any()
        assert all(each.keys().isdisjoint({"final_obs", "restarted"}) for each in info)


class RefusesToReset(gymnasium.Env):
    """Env that counts its steps. If a file exists, the second part of the first observation does not fit."""

    action_space = spaces.Discrete(9)
    observation_space: Any = spaces.Dict({"first": spaces.Discrete(9), "second": spaces.Discrete(9)})

    def __init__(self, file: Path) -> None:
        self.file, self.t, self.pid = file, 0, os.getpid()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return {"first": 7, "second": "x" if self.file.exists() else 0}, {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return {"first": self.t, "second": self.t}, 0.0, False, False, {}


def test_the_row_after_a_reset_that_failed_too_often_is_that_of_the_last_step(backend: Any, tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    with backend([partial(RefusesToReset, file) for file in files], num_workers=2, on_error="restart") as venv:
        venv.reset()
        venv.step([0, 0])
        files[1].touch()
        if backend not in HERE:
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


def test_an_env_of_a_new_worker_must_keep_to_the_space_of_the_first(remote_backend: Any, tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    with remote_backend([partial(ChangesItsSpace, file) for file in files], num_workers=2) as venv:
        venv.reset()
        for _ in range(2):
            files[1].touch()
            kill(pids(venv)[1])
            with pytest.raises(ObservationError, match=r"missing \['second'\], not in the space \['other'\]"):
                venv.reset([1])
            files[1].unlink()
            kill(pids(venv)[1])
            assert venv.reset([1])[0]["second"].tolist() == [0]
