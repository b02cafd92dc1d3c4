"""Jobs on a Ray cluster: the episodes of a local job, whichever actors play them, and whatever becomes of these."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from benchmarks import kills
from collector import Dataset, DatasetError
from collector.job.head import versions
from collector.job.job import JobError
from collector.job.on_cluster import episode_actor
from collector.job.on_cluster.episode_actor import ActorReport, EpisodeActor
from collector.job.playing import JobFailedError
from collector.job.run import JobState, resume_job, run_job
from collector.store.head import HEAD
from collector.store.manifest import read_manifest
from collector.store.writer import StoreWriter
from tests.job_envs import HERE, assert_equal, assert_same, assert_whole, counting, job, process

EPISODES = 40


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job with `Counting` envs that ran here, undisturbed."""
    folder = tmp_path_factory.mktemp("whole")
    run_job(job(**counting(), episodes=EPISODES), folder)
    return folder


# The actor, in this process.


class Actor(EpisodeActor):
    """The first of two actors, as a driver uses it."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        super().__init__(0, 2)
        self.folder = folder
        self.start(job(**{**counting(), "episodes": EPISODES, **changes}), str(folder), "cpu", 0)
        self.reports: list[ActorReport] = []

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.flush()
        self.close()

    def play_all(self, numbers: range) -> None:
        """Play these, and none of others."""
        before = len(self.over)
        self.reports.append(self.play(numbers, False))
        while len(self.over) < before + len(numbers):
            self.reports.append(self.play([], False))

    def open_folder(self, recorded: tuple[str, ...] = ()) -> None:
        """Open the folder, which has a head."""
        self.reports.append(self.open(hashlib.sha256((self.folder / HEAD).read_bytes()).hexdigest(), recorded))

    @property
    def over(self) -> list[int]:
        """The numbers of the episodes that have ended or are skipped."""
        ended = [number for report in self.reports for number, _, _ in report.ended]
        return ended + [number for report in self.reports for number in report.skipped]


def test_an_actor_reports_what_has_ended_and_the_lines_of_its_shards(uninterrupted: Path, tmp_path: Path) -> None:
    with Actor(tmp_path, shard_bytes=1500) as actor:
        actor.play_all(range(5))
        head = actor.reports[0].head
        assert head is not None
        assert head["repeatable"]
        with StoreWriter(tmp_path, head) as writer:
            actor.open_folder()
            actor.play_all(range(5, EPISODES))
            actor.reports.append(actor.flush())
            for report in actor.reports:
                writer.record(report.lines)
            writer.end()
    ended = {number: (length, total) for report in actor.reports for number, length, total in report.ended}
    data = Dataset(tmp_path)
    assert [ended[number] for number in range(EPISODES)] == list(zip(data.lengths, data.returns, strict=True))
    assert len(data.shard_files) > 2
    assert {Path(name).parent.name for name in data.shard_files} == {"w001"}
    assert_same(tmp_path, uninterrupted)


def test_what_an_actor_has_not_reported_is_removed_by_the_next_one_in_its_folder(tmp_path: Path) -> None:
    run_job(job(**counting(), episodes=3), tmp_path)
    own = tmp_path / "shards" / "w001"
    with Actor(tmp_path) as actor:
        actor.open_folder()
        for numbers in (range(3, 6), range(6, 9)):
            actor.play_all(numbers)
            actor.flush()
        with Actor(tmp_path) as other:
            other.open_folder()
            assert (tmp_path / "shards" / "w003").is_dir(), "the first one still has its folder"
    assert sorted(path.name for path in own.glob("*.npz")) == ["000000.npz", "000001.npz"]
    with Actor(tmp_path) as actor:
        actor.open_folder(("shards/w001/000000.npz",))
        assert [path.name for path in own.glob("*.npz")] == ["000000.npz"]


def test_an_actor_that_does_not_see_the_folder_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_actor, "SEES_WITHIN", 0.0)
    text = rf"the job has written {tmp_path / HEAD}, and actor 0 on the node .* sees {{}}: the folder of a job on a"
    with Actor(tmp_path) as actor:
        with pytest.raises(DatasetError, match=text.format("no such file")):
            actor.open("", ())
        run_job(job(**counting(), episodes=3), tmp_path)
        with pytest.raises(DatasetError, match=text.format("another file there")):
            actor.open("", ())


def test_an_actor_skips_what_fails_and_goes_on_afterwards(uninterrupted: Path, tmp_path: Path) -> None:
    failing = [episode.number for episode in Dataset(uninterrupted) if episode.seed % 13 == 0]
    with Actor(tmp_path, **counting(every=13)) as actor:
        actor.play_all(range(20))
        actor.play_all(range(20, EPISODES))
    assert sorted(number for report in actor.reports for number in report.skipped) == failing
    assert sum(report.retried for report in actor.reports) == len(failing)
    assert sorted(actor.over) == list(range(EPISODES))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transforms": ("VecNorm",)}, "VecNorm keeps statistics from one episode to the next"),
        ({"backend": "ray"}, "leave it out, or name the backend of each actor"),
        ({"device": "cuda:1"}, "an actor sees its own GPU only"),
    ],
)
def test_jobs_that_are_not_for_actors_are_refused_before_anything_is_done(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(JobError, match=message):
        run_job(job(**changes), tmp_path / "a", cluster="auto")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster": "auto", "cluster_actors": 0}, "must be at least 1, got 0"),
        ({"cluster_actors": 2}, "--cluster auto"),
    ],
)
def test_a_number_of_actors_that_cannot_be_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=message):
        run_job(job(), tmp_path / "a", **options)
