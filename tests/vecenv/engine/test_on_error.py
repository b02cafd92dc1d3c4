"""on_error="restart": a limited number of failures become truncated rows. Random programs draw it for each fault."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import BACKENDS, FULL, PROCESS_BACKENDS, RAY, and_ray, on_this_node
from tests.support.faults import Faulty
from tests.support.faulty import BreaksOffItsRow, Counter
from tests.support.ledger import kill, pids, said
from vecenv import (
    DummyVectorEnv,
    ObservationError,
    RayVectorEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    VectorEnvNormObs,
    WorkerDiedError,
)

remote_backend = and_ray(PROCESS_BACKENDS, quick=False)
ENV_FNS = [partial(Faulty, i) for i in range(2)]


def absorbed(venv: Any, env_id: int, fault: str) -> Any:
    """Let an env fail in a step. Return the flags `truncated` of the step, and reset the envs that it ended."""
    venv.set_env_attr("trap", f"step: {fault}", [env_id])
    *_, truncated, info = venv.step([0, 0])
    assert info[env_id]["error"].startswith("ValueError: boom" if fault == "raise" else "WorkerDiedError: ")
    venv.reset(np.flatnonzero(truncated))
    return truncated.tolist()


@pytest.mark.guarantee("G8.9")
def test_a_failure_is_absorbed_five_times_per_minute_and_env(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with DummyVectorEnv(ENV_FNS, on_error="restart") as venv:
        venv.reset()
        for now in (0, 50, 50, 50, 50, 61):  # noqa: B007
            assert absorbed(venv, 1, "raise") == [False, True]
        with pytest.raises(ValueError, match="boom"):
            absorbed(venv, 1, "raise")
        venv.reset([1])
        assert absorbed(venv, 0, "raise") == [True, False]


@pytest.mark.guarantee("G8.12")
def test_the_death_of_a_worker_counts_for_the_env_that_was_running() -> None:
    with ShmemVectorEnv(ENV_FNS, num_workers=1, on_error="restart", max_restarts=1) as venv:
        venv.reset()
        assert absorbed(venv, 1, "SIGKILL") == [True, True]
        assert venv.stats()["restarts"] == 1
        assert absorbed(venv, 0, "raise") == [True, False]
        with pytest.raises(WorkerDiedError) as caught:
            absorbed(venv, 1, "SIGKILL")
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
        venv.set_env_attr("trap", "step: raise", [1])
        venv.step([0, 0])
        assert venv.get_obs_rms().count == before + 1


def test_a_reset_that_fails_is_tried_again_within_the_budget_and_then_raises_its_last_error() -> None:
    class Fails(Counter):
        def on_reset(self) -> None:
            if self.episode in (2, 3, 5, 6, 7, 8):
                raise ValueError(f"no episode {self.episode}")

    with DummyVectorEnv([partial(Fails, 0)], on_error="restart", max_restarts=3) as venv:
        venv.reset()
        assert venv.reset()[0][:, 1].tolist() == [4]
        with pytest.raises(ValueError, match="no episode 6"):
            venv.reset()


@FULL
def test_an_env_that_dies_in_every_reset_ends_in_an_error_not_in_a_storm() -> None:
    fns = [partial(Counter, 0), partial(Faulty, 1, trap="reset: SIGKILL")]
    with SubprocVectorEnv(fns, on_error="restart", max_restarts=3) as venv:
        with pytest.raises(WorkerDiedError):
            venv.reset()
        assert venv.stats()["restarts"] <= 4


@pytest.mark.guarantee("G8.9", "G8.11")
@pytest.mark.parametrize(
    ("backend", "end"),
    [
        (DummyVectorEnv, None),
        (ShmemVectorEnv, "SIGKILL"),
        *(pytest.param(backend, None, marks=FULL) for backend in BACKENDS[1:]),
        pytest.param(SubprocVectorEnv, "SIGKILL", marks=FULL),
        *(pytest.param(RayVectorEnv, end, marks=RAY) for end in (None, "SIGKILL")),
    ],
)
@pytest.mark.parametrize("autoreset", [False, True])
def test_a_row_that_was_written_in_part_is_replaced_by_the_last_whole_row(
    backend: Any, end: str | None, autoreset: bool
) -> None:
    with backend([partial(BreaksOffItsRow, i, end=end) for i in range(3)], num_workers=1, on_error="restart") as venv:
        venv.reset()
        for action in (7, 8):
            venv.step([action] * 3)[0]["first"][:] = -1  # the caller's own
        obs, rew, terminated, truncated, info = venv.step([9] * 3, autoreset=[4, 5, 6] if autoreset else False)
        lost = [1] if end is None else [0, 1, 2]
        assert truncated.nonzero()[0].tolist() == lost
        assert not rew[lost].any()
        assert not terminated.any()
        for i in lost:
            assert ("restarted" in info[i]) is not autoreset
            row = info[i]["final_obs"] if autoreset else {"first": obs["first"][i], "second": obs["second"][i]}
            assert (row["first"].tolist(), row["second"]) == ([i, 1, 2, 8], 2)
            assert (info[i]["final_info"] if autoreset else info[i]).keys() >= {"restarted", "error"}
        if autoreset:
            assert venv.get_env_attr("np_random_seed", lost) == [4 + i for i in lost]
        else:  # an autoreset of a later round resets envs that have failed, too
            obs, *_, truncated, info = venv.step([9] * 3, autoreset=True)
            assert truncated.nonzero()[0].tolist() == lost
        assert obs["second"][lost].tolist() == [0] * len(lost)
        assert venv.failed_id == []
        obs, _, _, truncated, info = venv.step([5] * 3, autoreset=True)
        assert obs["second"][lost].tolist() == [1] * len(lost)
        assert not truncated.any()
        assert all(each.keys().isdisjoint({"final_obs", "restarted"}) for each in info)


@pytest.mark.parametrize("backend", [DummyVectorEnv, *(pytest.param(each, marks=FULL) for each in BACKENDS[1:])])
def test_the_row_after_a_reset_that_failed_too_often_is_that_of_the_last_step(backend: Any) -> None:
    with backend([partial(BreaksOffItsRow, i, at=9) for i in range(2)], num_workers=2, on_error="restart") as venv:
        venv.reset()
        last = venv.step([7, 8])[0]
        venv.set_env_attr("at", 0, [1])
        with pytest.raises(ObservationError, match=r"env 1: obs\['second'\] is"):
            venv.reset([1])
        obs, _, _, truncated, _ = venv.step([0, 0])
        assert (obs["first"][1].tolist(), obs["second"].tolist()) == (last["first"][1].tolist(), [2, 1])
        assert truncated.tolist() == [False, True]


class ChangesItsSpace(Counter):
    """Env with other keys if the file exists when the env is made."""

    def __init__(self, id: int, file: Path) -> None:
        super().__init__(id)
        self.key = "other" if file.exists() else "second"
        self.observation_space = spaces.Dict({"first": spaces.Discrete(9), self.key: spaces.Discrete(9)})

    def observe(self, action: Any) -> Any:
        return {"first": 7, self.key: 0}


def test_an_env_of_a_new_worker_must_keep_to_the_space_of_the_first(remote_backend: Any, tmp_path: Path) -> None:
    file = tmp_path / "a"
    fns = [partial(ChangesItsSpace, 0, tmp_path / "none"), partial(ChangesItsSpace, 1, file)]
    with remote_backend(fns, num_workers=2, **on_this_node(remote_backend)) as venv:
        venv.reset()
        file.touch()
        kill(pids(venv)[1])
        with pytest.raises(ObservationError, match=r"missing \['second'\], not in the space \['other'\]"):
            venv.reset([1])
        file.unlink()
        kill(pids(venv)[1])
        assert venv.reset([1])[0]["second"].tolist() == [0]
