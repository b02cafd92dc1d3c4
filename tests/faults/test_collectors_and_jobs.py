"""The table of faults in collectors and jobs."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector import AsyncDataCollector, Dataset, SyncDataCollector, episode_seed, run_job
from tests.support.collector_envs import zeros
from tests.support.fault_rows import Row, cases, tier_of_some
from tests.support.faults import Faulty
from tests.support.job_envs import job
from vecenv import DummyVectorEnv, ShmemVectorEnv

COLLECTORS = {"sync": SyncDataCollector, "async": AsyncDataCollector}
EPISODES = 6


@cases("Collectors", tier_of_some(("sync", "SIGKILL"), ("async-dummy", "raise"), ("sync-dummy", "raise")))
def test_faults_in_a_collector(rows: list[Row], kind: str, tmp_path: Path) -> None:
    for row in rows:
        print(row)  # for the report of a failure
        check_collector(row, kind, tmp_path / "flag")


def check_collector(row: Row, kind: str, flag: Path) -> None:
    fns = [partial(Faulty, i, "", f"{row.place}: {row.fault}" if i else "", str(flag), 3) for i in range(2)]
    make = DummyVectorEnv if "dummy" in kind else partial(ShmemVectorEnv, num_workers=2)
    options = {"step_timeout": 1.0} if "hang" in row.fault else {}
    if row.place == "construct":
        flag.touch()
        with pytest.raises(ValueError, match="boom") as caught:
            make(fns)
        row.check(caught.value)
        return
    expected: Any = pytest.warns(RuntimeWarning) if row.place == "close" else nullcontext()
    collect = COLLECTORS[kind.partition("-")[0]]
    with expected as warned, collect(make(fns, **options), zeros, frames_per_batch=8) as collector:
        seen = collector.rollout().flatten().traj_ids.tolist()
        flag.touch()
        if row.place != "close":
            check_batches(row, collector, seen)
    if row.place == "close":
        assert row.texts()[0] in str(warned[0].message)


def check_batches(row: Row, collector: Any, seen: list[int]) -> None:
    """The batch of the fault is discarded, and the next one has new episodes of all envs."""
    frames = collector.frames
    with pytest.raises(Exception) as caught:  # noqa: PT011, PT012 - the row checks the class
        for _ in range(3):  # an asynchronous batch may end before the fault
            seen += collector.rollout().flatten().traj_ids.tolist()
            frames = collector.frames
    row.check(caught.value)
    assert collector.frames == frames
    after = collector.rollout().flatten()
    assert after.frames == 8
    begins = np.r_[True, np.diff(after.env_ids) > 0]
    assert after.step_count[begins].tolist() == [0, 0]
    assert not set(seen) & set(after.traj_ids.tolist())
    np.testing.assert_array_equal(after.obs[:, 2], after.step_count)
    np.testing.assert_array_equal(after.next.obs[:, 2], after.step_count + 1)


@cases("Jobs", tier_of_some(("dummy", "raise"), ("shmem", "SIGKILL")))
def test_faults_in_a_job(rows: list[Row], kind: str, tmp_path: Path) -> None:
    for k, row in enumerate(rows):
        print(row)  # for the report of a failure
        check_job(row, kind, tmp_path / "flag", tmp_path / f"data {k}")


def check_job(row: Row, kind: str, flag: Path, folder: Path) -> None:
    flag.touch()
    kwargs = {"trap": f"{row.place}: {row.fault}", "flag": str(flag), "bad": episode_seed(0, 2)}
    settings: Any = {"env": "tests.support.faults:FaultyEpisode", "env_kwargs": kwargs, "backend": kind}
    settings |= {"episodes": EPISODES, "num_envs": 2} | ({"step_timeout": 1.0} if "hang" in row.fault else {})
    if row.error:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the row checks the class
            run_job(job(**settings), folder)
        row.check(caught.value)
        assert not folder.exists()
        return
    state = run_job(job(**settings), folder)
    assert not flag.exists()
    assert (state.status, state.episodes, state.skipped) == ("complete", EPISODES, {})
    if row.place == "step":  # the vector env itself repeats a failed reset
        assert state.retried >= 1
    data = Dataset(folder)
    assert data.numbers.tolist() == list(range(EPISODES))
    assert [len(episode) for episode in data] == [5] * EPISODES
