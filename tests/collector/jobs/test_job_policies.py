"""Jobs with policies that change while they act: they resume, and the data set is not repeatable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collector import Dataset, resume_job, run_job
from tests.collector.jobs.test_job_cluster import RayHere
from tests.support.backends import FULL
from tests.support.job_envs import assert_same, assert_whole, job, stop_at, stopped

pytest.importorskip("torch")
HERE = "tests.support.job_policies:Carrying"


def carrying(how: str, training: bool = True, **changes: Any) -> Any:
    return job(policy=HERE, policy_kwargs={"how": how, "training": training}, device="cpu", **changes)


@pytest.mark.guarantee("G11.5", "G11.11")
@pytest.mark.parametrize(
    ("how", "training", "repeatable"),
    [
        ("norm", True, False),
        ("norm", False, True),
        *(pytest.param(how, False, False, marks=FULL) for how in ("buffer", "attribute", "array", "generator")),
        pytest.param("not at all", True, True, marks=FULL),
    ],
)
def test_a_policy_that_changes_itself_can_be_resumed_and_is_not_repeatable(
    how: str, training: bool, repeatable: bool, tmp_path: Path
) -> None:
    before = stopped(run_job, carrying(how, training, episodes=200), tmp_path / "a", on_progress=stop_at(20))
    assert (before.status, before.repeatable) == ("interrupted", repeatable)
    state = resume_job(tmp_path / "a", allow_import=["tests.support.job_policies"])
    data = Dataset(tmp_path / "a")
    assert_whole(data)
    assert (state.status, state.repeatable, data.head["repeatable"]) == ("complete", repeatable, repeatable)
    run_job(carrying(how, training, episodes=200, backend="shmem"), tmp_path / "b")
    assert Dataset(tmp_path / "b").head["policy_hash"] == data.head["policy_hash"], "the hash of what was loaded"
    if repeatable:
        assert_same(tmp_path / "a", tmp_path / "b")


def test_tasks_on_a_cluster_agree_about_a_policy_that_changes_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RayHere(monkeypatch)
    state = run_job(carrying("norm", episodes=40), tmp_path / "a", cluster="auto", cluster_actors=3)
    assert (state.status, state.episodes, state.repeatable) == ("complete", 40, False)
