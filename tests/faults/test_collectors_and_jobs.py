"""The table of faults in collectors and jobs."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector import AsyncDataCollector, Dataset, SyncDataCollector, run_job
from collector.episodes.seeds import episode_seed
from tests.support.backends import FULL
from tests.support.collector_envs import zeros
from tests.support.fault_rows import Row, rows_of
from tests.support.faults import Faulty
from tests.support.job_envs import job
from tests.support.ledger import said
from vecenv import DummyVectorEnv, ShmemVectorEnv

COLLECTORS = {"sync": SyncDataCollector, "async": AsyncDataCollector}
QUICK = [
    ("sync", "SIGKILL"),
    ("async-dummy", "raise"),
    ("sync-dummy", "raise"),
    ("dummy", "raise"),
    ("shmem", "SIGKILL"),
]
EPISODES = 6


def marks_of(row: Row, kind: str) -> Any:
    if (kind, row.fault) in QUICK:
        return []
    return FULL if row.fault in ("raise", "SIGKILL", "wrong dtype") else pytest.mark.slow


def cases(part: str) -> Any:
    return pytest.mark.parametrize(
        ("row", "kind"),
        [
            pytest.param(
                row,
                kind,
                id=f"{kind}-{row.place}-{row.fault}".replace(" ", "-"),
                marks=marks_of(row, kind),
            )
            for row in rows_of(part)
            for kind in row.on
        ],
    )


def check_text(row: Row, said_: str) -> None:
    for text in row.says:
        assert text.format(place="__init__" if row.place == "construct" else row.place) in said_


@cases("Collectors")
def test_a_fault_in_a_collector(row: Row, kind: str, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    fns = [partial(Faulty, i, "", f"{row.place}: {row.fault}" if i else "", str(flag), 3) for i in range(2)]
    make = DummyVectorEnv if "dummy" in kind else partial(ShmemVectorEnv, num_workers=2)
    options = {"step_timeout": 1.0} if "hang" in row.fault else {}
    if row.place == "construct":
        flag.touch()
        with pytest.raises(ValueError, match="boom") as caught:
            make(fns)
        check_text(row, said(caught.value))
        return
    expected: Any = pytest.warns(RuntimeWarning) if row.place == "close" else nullcontext()
    collect = COLLECTORS[kind.partition("-")[0]]
    with expected as warned, collect(make(fns, **options), zeros, frames_per_batch=8) as collector:
        seen, frames = list[int](), list[int]()
        rollout(collector, seen, frames)
        flag.touch()
        if row.place != "close":
            check_batches(row, collector, seen, frames)
    if row.place == "close":
        check_text(row, str(warned[0].message))


def rollout(collector: Any, seen: list[int], frames: list[int], count: int = 1) -> None:
    """Collect batches, and record their episodes, and the counts of frames."""
    for _ in range(count):
        seen += collector.rollout().flatten().traj_ids.tolist()
        frames.append(collector.frames)


def check_batches(row: Row, collector: Any, seen: list[int], frames: list[int]) -> None:
    """The batch of the fault is discarded, and the next one has new episodes of all envs."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the class is checked below
        rollout(collector, seen, frames, 3)  # an asynchronous batch may end before the fault
    assert type(caught.value).__name__ == row.error
    check_text(row, said(caught.value))
    assert collector.frames == frames[-1]
    after = collector.rollout().flatten()
    assert after.frames == 8
    begins = np.r_[True, np.diff(after.env_ids) > 0]
    assert after.step_count[begins].tolist() == [0, 0]
    assert not set(seen) & set(after.traj_ids.tolist())
    np.testing.assert_array_equal(after.obs[:, 2], after.step_count)
    np.testing.assert_array_equal(after.next.obs[:, 2], after.step_count + 1)


@cases("Jobs")
def test_a_fault_in_a_job(row: Row, kind: str, tmp_path: Path) -> None:
    flag, folder = tmp_path / "flag", tmp_path / "data"
    flag.touch()
    kwargs = {"trap": f"{row.place}: {row.fault}", "flag": str(flag), "bad": episode_seed(0, 2)}
    settings: Any = {"env": "tests.support.faults:FaultyEpisode", "env_kwargs": kwargs, "backend": kind}
    settings |= {"episodes": EPISODES, "num_envs": 2} | ({"step_timeout": 1.0} if "hang" in row.fault else {})
    if row.error:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the class is checked below
            run_job(job(**settings), folder)
        assert type(caught.value).__name__ == row.error
        check_text(row, said(caught.value))
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
