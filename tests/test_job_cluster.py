"""Jobs on a Ray cluster: the episodes of a local job, whichever actors play them, and whatever becomes of these."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from collector import Dataset, DatasetError, episode_seed
from collector.cluster.actor_pool import Actor as Place
from collector.cluster.actor_pool import Answer
from collector.job import run
from collector.job.job import JobError
from collector.job.on_cluster import cluster_player, episode_actor
from collector.job.on_cluster.episode_actor import ActorReport, EpisodeActor
from collector.job.playing import JobFailedError
from collector.job.run import resume_job, run_job
from collector.store.head import HEAD
from collector.store.writer import StoreWriter
from tests.backends import FULL
from tests.job_envs import HERE, assert_same, assert_whole, counting, job, process, stop_at

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
    assert sorted(path.name for path in own.glob("0*")) == ["000000", "000001"]
    with Actor(tmp_path) as actor:
        actor.open_folder(("shards/w001/000000",))
        assert [path.name for path in own.glob("0*")] == ["000000"]


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


def test_jobs_that_are_not_for_actors_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    refused: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
        ({"transforms": ("VecNorm",)}, {}, "the statistics of VecNorm go from one episode to the next"),
        ({"backend": "ray"}, {}, "leave it out, or name the backend of each actor"),
        ({"device": "cuda:1"}, {}, "an actor sees its own GPU only"),
        ({}, {"cluster_actors": 0}, "must be at least 1, got 0"),
        ({}, {"cluster": None, "cluster_actors": 2}, "--cluster auto"),
    )
    for changes, options, message in refused:
        with pytest.raises(JobError, match=message):
            run_job(job(**changes), tmp_path / "a", **{"cluster": "auto", **options})
    assert not (tmp_path / "a").exists()


class ActorsHere:
    """In the place of an `ActorPool`: the actors live in this process, answer in any order, and die at any moment.

    One that has died keeps its folder, as a process does that is still ending.
    """

    def __init__(self, deadly: float, seed: int, *pool: Any) -> None:
        _, count, _, self._start_arguments, _ = pool
        self._rng, self._deadly = random.Random(seed), deadly
        self.actors = [Place(index) for index in range(count)]
        self.failures: list[Any] = []
        self._made: list[EpisodeActor] = []

    @property
    def alive(self) -> list[Place]:
        return self.actors

    def start(self) -> None:
        for actor in self.actors:
            self._launch(actor)

    def ask(self, actor: Place, *call: Any) -> None:
        actor.calls.append(pickle.loads(pickle.dumps(call)))

    def next_answer(self, timeout: float) -> Any:
        actor = self._rng.choice([actor for actor in self.actors if actor.calls])
        name, *arguments = actor.calls.popleft()
        moment = self._rng.random()
        if moment > self._deadly / 2:
            report = getattr(actor.handle, name)(*arguments)
        if moment > self._deadly:
            return Answer(actor, pickle.loads(pickle.dumps(report)), 0)
        self.failures.append(name)
        actor.calls.clear()
        actor.stats.restarts += 1
        self._launch(actor)
        return None

    def close(self) -> None:
        for made in self._made:
            made.flush()
            made.close()

    def _launch(self, actor: Place) -> None:
        actor.handle = EpisodeActor(actor.index, len(self.actors))
        actor.handle.start(*self._start_arguments(actor))
        self._made.append(actor.handle)


@pytest.mark.parametrize(
    ("seed", "much"),
    [
        (1, {"episodes": EPISODES}),
        *(pytest.param(seed, {"steps": 300}, marks=FULL) for seed in range(4)),
        *(pytest.param(seed, {"episodes": EPISODES}, marks=FULL) for seed in (0, 2, 3)),
    ],
)
def test_whenever_actors_die_each_episode_is_there_once(
    seed: int, much: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_actor, "SLICE", 0.002)
    monkeypatch.setattr(cluster_player, "MOST_DEATHS", 100)
    monkeypatch.setattr(run, "connect_to", nullcontext)
    monkeypatch.setattr(cluster_player, "ActorPool", partial(ActorsHere, 0.2 * (seed > 0), seed))
    wanted = job(**counting(), **much, shard_bytes=1000)
    run_job(wanted, tmp_path / "whole")
    state = run_job(wanted, tmp_path / "a", cluster="auto", cluster_actors=1 + seed % 3)
    data, whole = Dataset(tmp_path / "a"), Dataset(tmp_path / "whole")
    assert (state.status, state.episodes, state.steps) == ("complete", len(whole), whole.steps)
    assert [note.split(" ", 1)[1] for note in state.notes] == ["actors failed, and what they had was played again"] * (
        seed > 0
    )
    assert data.verify() == []
    assert_same(tmp_path / "a", tmp_path / "whole")


# On Ray.


def actors_of(folder: Path) -> list[int]:
    """The pids of the actors that play for a folder, on this machine."""
    found = []
    for path in sorted((folder / "shards").glob("w*/writer.lock")):
        pid = int(path.read_text().split()[1])
        with suppress(psutil.Error):
            if "EpisodeActor" in " ".join(psutil.Process(pid).cmdline()):
                found.append(pid)
    return found


@FULL
@pytest.mark.local_ray
def test_actors_write_the_episodes_of_a_local_job(uninterrupted: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    state = run_job(
        job(**counting(), episodes=EPISODES, shard_bytes=2000),
        tmp_path / "a",
        cluster="auto",
        cluster_actors=2,
        on_progress=lambda state: seen.append((state.episodes, state.frames)),
    )
    data = Dataset(tmp_path / "a")
    assert (state.status, state.episodes, state.actors, state.repeatable) == ("complete", EPISODES, 2, True)
    assert data.complete
    assert data.steps == state.steps == sum(state.lengths)
    assert sorted(state.returns) == pytest.approx(sorted(data.returns))
    assert seen[-1][0] == EPISODES
    assert state.frames >= state.steps
    assert data.head["job"] == Dataset(uninterrupted).head["job"] | {"shard_bytes": 2000}
    assert data.head["ran_on"]["actors"] == 2
    assert {Path(name).parent.name for name in data.shard_files} <= {"w001", "w002"}
    assert not state.notes
    assert_same(tmp_path / "a", uninterrupted)


@pytest.mark.ray
@pytest.mark.local_ray
class TestOnRay:
    def test_workers_and_a_policy_are_in_the_actors(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        mlp = {"policy": "mlp", "device": "cpu", "backend": "shmem"}
        run_job(job(**mlp), tmp_path / "whole")
        run_job(job(**mlp), tmp_path / "a", cluster="auto", cluster_actors=2)
        one, two = (Dataset(tmp_path / name).head for name in ("whole", "a"))
        assert one["policy_hash"] == two["policy_hash"]
        assert two["ran_on"] == {"vector_env": "ShmemVectorEnv", "num_workers": 1, "actors": 2}
        assert two["repeatable"]
        assert_same(tmp_path / "a", tmp_path / "whole")

    def test_an_env_that_ends_its_actor_again_and_again_ends_the_job(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cluster_player, "MOST_DEATHS", 2)
        failing = job(**counting(every=episode_seed(0, 30), how="kill"), episodes=EPISODES)
        with pytest.raises(JobFailedError, match=r"2 actors have died while they had .*\b30\b.*died during its work:"):
            run_job(failing, tmp_path / "a", cluster="auto", cluster_actors=2)
        data = Dataset(tmp_path / "a")
        assert 30 not in data.numbers
        assert data.verify() == []

    def test_too_many_failures_in_all_actors_together_end_the_job(self, tmp_path: Path) -> None:
        with pytest.raises(JobFailedError, match="4 episodes failed, and max_failed is 3"):
            run_job(
                job(**counting(every=3), episodes=400, max_failed=3), tmp_path / "a", cluster="auto", cluster_actors=2
            )
        assert_whole(Dataset(tmp_path / "a"))

    def test_errors_of_policies_and_envs_are_raised_with_what_was_whole(self, tmp_path: Path) -> None:
        with pytest.raises(KeyError, match="no such state"):
            run_job(job(policy=f"{HERE}:bad"), tmp_path / "a", cluster="auto", cluster_actors=2)
        failing = job(**counting(every=episode_seed(0, 90)), episodes=400, on_error="raise")
        with pytest.raises(OverflowError, match="cannot be played"):
            run_job(failing, tmp_path / "b", cluster="auto", cluster_actors=2)
        data = Dataset(tmp_path / "b")
        assert not data.complete
        assert len(data)
        assert_whole(data)
        with pytest.raises(JobError, match="no_such_module:Env-v0 cannot be made: No module named"):
            run_job(job(env="no_such_module:Env-v0"), tmp_path / "c", cluster="auto", cluster_actors=1)

    def test_a_job_goes_on_with_a_cluster_and_without(self, tmp_path: Path) -> None:
        slow = job(**counting(seconds=0.001), episodes=200)
        run_job(slow, tmp_path / "whole")
        run_job(slow, tmp_path / "a", on_progress=stop_at(30))
        state = resume_job(tmp_path / "a", slow, cluster="auto", cluster_actors=2, on_progress=stop_at(100))
        assert (state.status, state.signum) == ("interrupted", signal.SIGINT)
        before = Dataset(tmp_path / "a")
        assert 100 <= state.episodes == len(before) < 200
        state = resume_job(tmp_path / "a", slow, cluster="auto", cluster_actors=3, on_progress=stop_at(150))
        state = resume_job(tmp_path / "a", slow)
        assert (state.status, state.episodes) == ("complete", 200)
        assert_same(tmp_path / "a", tmp_path / "whole")


LONG = ("--env", "CartPole-v1", "--steps", "100000000", "--cluster-actors", "2", "--shard-seconds", "0.5", "--no-plot")


@pytest.fixture
def running(ray_address: str, tmp_path: Path) -> Iterator[Any]:
    """A command on the cluster that has committed something."""
    folder = tmp_path / "a"
    with process("-m", "collector", "run", *LONG, "--cluster", ray_address, "--out", str(folder)) as started:
        while not (folder / "manifest.jsonl").exists() or len(Dataset(folder)) < 100:
            assert started.poll() is None
            time.sleep(0.05)
        assert len(actors_of(folder)) == 2
        yield started


@pytest.mark.ray
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_its_actors_cleanly(signum: int, running: Any, tmp_path: Path) -> None:
    actors = actors_of(tmp_path / "a")
    before, began = len(Dataset(tmp_path / "a")), time.monotonic()
    running.send_signal(signum)
    out, error = running.communicate(timeout=60)
    assert running.returncode == 128 + signum
    assert time.monotonic() - began < 25
    assert "Traceback" not in error
    assert "Interrupted; collected until then, and kept:" in out
    assert len(Dataset(tmp_path / "a")) >= before
    assert Dataset(tmp_path / "a").verify() == []
    assert_gone(actors)


@pytest.mark.ray
def test_actors_end_with_a_driver_that_is_killed_and_the_job_goes_on_at_once(running: Any, tmp_path: Path) -> None:
    actors = actors_of(tmp_path / "a")
    running.kill()
    running.communicate()
    before = Dataset(tmp_path / "a").numbers.tolist()
    state = resume_job(tmp_path / "a", settings=["num_workers=1"], on_progress=stop_at(len(before) + 50))
    assert state.status == "interrupted"
    data = Dataset(tmp_path / "a")
    assert set(before) < set(data.numbers.tolist())
    assert data.verify() == []
    assert_gone(actors)


def assert_gone(pids: list[int]) -> None:
    """They end in a while."""
    deadline = time.monotonic() + 30
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.ray
def test_a_dry_run_says_where_the_job_would_run(tmp_path: Path) -> None:
    with process("-m", "collector", "run", *LONG, "--cluster=auto", "--dry-run", "--out", str(tmp_path / "a")) as one:
        out, error = one.communicate(timeout=60)
    assert (one.returncode, error) == (0, "")
    assert json.loads(out)["cluster"] == {"address": "auto", "actors": 2}
    assert not (tmp_path / "a").exists()


@pytest.mark.ray
def test_a_cluster_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with process("-m", "collector", "run", *LONG, "--cluster=127.0.0.1:1", "--out", str(tmp_path / "a")) as one:
        _, error = one.communicate(timeout=60)
    assert one.returncode == 2
    assert "there is no Ray cluster at '127.0.0.1:1'" in error
    assert "Traceback" not in error
