"""Jobs on a Ray cluster collect the episodes of a local job, even if tasks and nodes die."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from collector import Dataset, episode_seed
from collector.jobs import job_runner, ray_player
from collector.jobs.job import JobError
from collector.jobs.job_runner import resume_job, run_job
from collector.jobs.player import JobFailedError
from collector.jobs.ray_player import Range, RangeResult, play_range
from tests.support.backends import FULL
from tests.support.job_envs import HERE, assert_same, assert_whole, counting, job, process, stop_at, stopped
from vecenv.ray_cluster import missing_package

EPISODES = 40  # number of episodes of the job `uninterrupted`


# The task, in this process.


def play(part: Path, head: Any, numbers: Iterable[int], **changes: Any) -> RangeResult:
    """Play these episodes. Without a head, only the head is found."""
    wanted = job(**{**counting(), "episodes": EPISODES, **changes})
    return play_range(Range(wanted, str(part), head, [*numbers]))


def test_a_task_returns_its_head_and_fills_a_data_set_of_its_own(uninterrupted: Path, tmp_path: Path) -> None:
    first = play(tmp_path, None, range(5))
    assert (first.head["repeatable"], first.episodes, [*tmp_path.iterdir()]) == (True, 0, [])
    played = play(tmp_path, first.head, range(EPISODES), shard_bytes=1500)
    assert played.episodes == EPISODES
    assert len(Dataset(tmp_path).shard_files) > 1
    assert_same(tmp_path, uninterrupted)


def test_tasks_that_do_not_see_the_folder_return_their_files(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[Any]()
    monkeypatch.setattr(ray_player, "_wait_until", lambda check: waits.append(check) or check())
    isdir = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: "/shards/w" not in str(path) and isdir(path))
    RayHere(0.3, 1, monkeypatch)
    wanted = job(**counting(), episodes=EPISODES, shard_bytes=1000, ray={"max_retries": 100})
    state = run_job(wanted, tmp_path, cluster="auto", cluster_actors=3)
    assert (state.status, state.episodes) == ("complete", EPISODES)
    assert_same(tmp_path, uninterrupted)
    assert Dataset(tmp_path).verify() == []
    assert len([check for check in waits if "sees_folder" in check.__qualname__]) <= 3, "the first tasks"


def test_a_task_skips_what_fails(uninterrupted: Path, tmp_path: Path) -> None:
    failing = [episode.number for episode in Dataset(uninterrupted) if episode.seed % 13 == 0]
    played = play(tmp_path, Dataset(uninterrupted).head, range(EPISODES), **counting(every=13))
    assert sorted(played.skipped) == failing
    assert played.retried == len(failing)
    assert {*Dataset(tmp_path).numbers.tolist()} == {*range(EPISODES)} - {*failing}


def test_jobs_that_are_not_for_actors_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    refused: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
        ({"transforms": ("VecNorm",)}, {}, "the statistics of VecNorm would differ between the tasks of a cluster"),
        ({"backend": "ray"}, {}, "leave it out, or name the backend of each task"),
        ({"device": "cuda:1"}, {}, "a task sees its own GPU only"),
        *(({}, {"cluster_actors": wrong}, "must be an integer of at least 1, got") for wrong in (0, 1.5, "2")),
        ({}, {"cluster": None, "cluster_actors": 2}, "--cluster auto"),
    )
    for changes, options, message in refused:
        with pytest.raises(JobError, match=message):
            run_job(job(**changes), tmp_path / "a", **{"cluster": "auto", **options})
    assert not (tmp_path / "a").exists()


class RayHere:
    """Stand-in for Ray: tasks run in this process, end in any order, and die at any moment."""

    class exceptions:
        RayError = type("RayError", (Exception,), {})
        TaskCancelledError = type("TaskCancelledError", (RayError,), {})

    def __init__(self, deadly: float, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray_player, "start_task", self.start_task)
        monkeypatch.setattr(ray_player, "is_loss", lambda error: isinstance(error, ConnectionError))
        monkeypatch.setattr(ray_player, "dead_nodes", lambda: {"lost"} if self.silent else set())
        monkeypatch.setattr(ray_player, "get_record", lambda key: "lost" if key in self.silent else "")
        monkeypatch.setattr(ray_player, "remove_record", lambda key: None)
        monkeypatch.setattr(ray_player, "NODE_CHECK_INTERVAL", 0.0)
        monkeypatch.setattr(job_runner, "connect_to", lambda address: nullcontext(self))
        self.silent: set[str] = set()
        """Keys of the tasks on silent nodes."""
        self.ray = self
        self._rng, self._deadly = random.Random(seed), deadly
        self._calls: dict[int, bytes] = {}
        self.ended: list[int] = []

    def start_task(self, function: Any, options: Any, task: Range) -> int:
        assert function is play_range
        self._calls[len(self._calls)] = pickle.dumps(task)
        return len(self._calls) - 1

    def tasks(self) -> list[Range]:
        """All tasks until now."""
        return [pickle.loads(blob) for blob in self._calls.values()]

    def wait(self, tasks: list[int], num_returns: int, timeout: float) -> Any:
        answering = [each for each in tasks if self.tasks()[each].key not in self.silent]
        return [self._rng.choice(answering)] if answering else [], []

    def get(self, task: int) -> RangeResult:
        moment = self._rng.random()
        if moment < self._deadly / 2:
            raise ConnectionError("it died before it had done anything")
        played = play_range(pickle.loads(self._calls[task]))
        if moment < self._deadly:
            raise ConnectionError("it died when it had committed everything")  # the task is not lost
        found: RangeResult = pickle.loads(pickle.dumps(played))
        return found

    def cancel(self, task: int, force: bool) -> None:
        assert force, "an overshoot is not needed"
        self.ended.append(task)


def test_a_resumed_job_keeps_the_result_of_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RayHere(0.0, 1, monkeypatch)
    flag = tmp_path / "failed"
    flag.touch()
    monkeypatch.setenv("FAILS_ONCE", str(flag))
    wanted = job(**counting(every=1, how="once", at="reset"), episodes=EPISODES)
    states = [stopped(run_job, wanted, tmp_path / "a", on_progress=stop_at(5))]
    flag.unlink()  # the first reset fails, and a check would fail
    states.append(resume_job(tmp_path / "a", wanted, cluster="auto", cluster_actors=2))
    assert [(state.status, state.repeatable) for state in states] == [("interrupted", True), ("complete", True)]
    assert flag.exists(), "the resumed job met the failure"


@pytest.mark.parametrize(
    ("seed", "much"),
    [
        (1, {"episodes": EPISODES}),
        *(pytest.param(seed, {"steps": 300}, marks=FULL) for seed in range(4)),
        *(pytest.param(seed, {"episodes": EPISODES}, marks=FULL) for seed in (0, 2, 3)),
    ],
)
def test_whenever_tasks_die_each_episode_is_there_once(
    seed: int, much: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RayHere(0.5 * (seed > 0), seed, monkeypatch)
    wanted = job(**counting(), **much, shard_bytes=1000, ray={"max_retries": 100})
    run_job(wanted, tmp_path / "whole")
    state = run_job(wanted, tmp_path / "a", cluster="auto", cluster_actors=1 + seed % 3)
    data, whole = Dataset(tmp_path / "a"), Dataset(tmp_path / "whole")
    assert (state.status, state.episodes, state.steps) == ("complete", len(whole), whole.steps)
    lost = [note.split(" ", 1)[1] for note in state.notes]
    assert lost == ["tasks failed, and their uncommitted episodes were played again"] * (seed > 0)
    assert data.verify() == []
    assert not [*(tmp_path / "a/shards").glob("w*")], "also of tasks that were not needed any more"
    assert_same(tmp_path / "a", tmp_path / "whole")


@pytest.mark.parametrize("has_begun", [True, False])
def test_what_the_tasks_of_a_lost_node_had_is_played_again_at_once(
    has_begun: bool, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = RayHere(0.0, 0, monkeypatch)
    if not has_begun:  # it was sent to the node, and no one knows
        monkeypatch.setattr(ray_player, "get_record", lambda key: "")

    def start_task(function: Any, options: Any, task: Range) -> int:
        if len(here.tasks()) == 1:  # the first task after the task that finds the head
            here.silent.add(task.key)
        return here.start_task(function, options, task)

    monkeypatch.setattr(ray_player, "start_task", start_task)
    wanted = job(**counting(), episodes=EPISODES, shard_bytes=1000)
    state = run_job(wanted, tmp_path / "a", cluster="auto", cluster_actors=2)
    notes = [
        "1 tasks failed, and their uncommitted episodes were played again",
        "the failed tasks ran on the nodes lost (1)",
    ]
    assert state.notes == notes * has_begun
    assert here.ended, "the task whose node is lost"
    assert_same(tmp_path / "a", uninterrupted)


def test_a_job_that_a_signal_ends_leaves_the_episodes_of_a_lost_node_to_its_resume(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = RayHere(0.0, 0, monkeypatch)

    def start_task(function: Any, options: Any, task: Range) -> int:
        if len(here.tasks()) == 1:
            here.silent.add(task.key)
        return here.start_task(function, options, task)

    def interrupt(key: str) -> None:
        if key in here.silent:  # its loss was recorded
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ray_player, "start_task", start_task)
    monkeypatch.setattr(ray_player, "remove_record", interrupt)
    monkeypatch.setattr(here, "cancel", lambda task, force: None)
    wanted = job(**counting(), episodes=EPISODES, shard_bytes=1000)
    state = stopped(run_job, wanted, tmp_path / "a", cluster="auto", cluster_actors=2)
    assert state.status == "interrupted"
    assert state.notes[0] == "1 tasks failed, and their uncommitted episodes are played when the job is resumed"
    resume_job(tmp_path / "a", allow_import=[HERE])
    assert_same(tmp_path / "a", uninterrupted)


def test_a_program_that_fails_leaves_no_task_and_no_lost_episode(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes that tasks have committed are adopted, also those of a task that is killed."""
    here = RayHere(0.0, 0, monkeypatch)
    killed, get = list[int](), here.get

    def cancel(task: int, force: bool) -> None:
        if force:
            get(task)  # it commits its episodes before it dies
            killed.append(task)

    def fail(state: Any) -> None:
        monkeypatch.setattr(here, "wait", lambda tasks, **_: ([], []))  # the tasks no longer answer
        raise ZeroDivisionError("the program failed")

    monkeypatch.setattr(here, "cancel", cancel)
    monkeypatch.setattr(ray_player, "COMMIT_TIMEOUT", 0.01)
    wanted = job(**counting(), episodes=EPISODES, shard_bytes=1000)
    with pytest.raises(ZeroDivisionError):
        run_job(wanted, tmp_path / "a", cluster="auto", cluster_actors=3, on_progress=fail)
    assert len(killed) == 2
    assert not [*(tmp_path / "a/shards").glob("w*")]
    played = len(Dataset(tmp_path / "a"))
    assert 0 < played < EPISODES
    assert resume_job(tmp_path / "a", allow_import=[HERE]).status == "complete"
    assert_same(tmp_path / "a", uninterrupted)


def test_auto_is_measured_by_the_first_task_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = RayHere(0.0, 0, monkeypatch)
    run_job(job(episodes=EPISODES, backend="auto"), tmp_path / "a", cluster="auto", cluster_actors=2)
    first, *others = [task.job.backend for task in here.tasks()]
    assert (first, {*others}) in (("auto", {"dummy"}), ("auto", {"shmem"}))


def test_ray_gets_the_options_of_a_job_for_each_task() -> None:
    given = {"num_cpus": 2, "memory": 10, "resources": {"far": 1}, "runtime_env": {"pip": ["a"]}}
    ray = {**given, "scheduling": "DEFAULT", "max_retries": 0}
    expected = {**given, "num_gpus": 0, "scheduling_strategy": "DEFAULT"}
    assert ray_player.task_options(job(ray=ray)) == expected
    assert ray_player.task_options(job()) == {"num_cpus": 1, "num_gpus": 0, "scheduling_strategy": "SPREAD"}
    with pytest.raises(JobError, match="num_cpus"):
        job(ray={"num_cpus": -1})


def test_a_node_without_vecenv_is_told_what_to_do() -> None:
    found = missing_package(ModuleNotFoundError("No module named 'vecenv'"))
    assert 'runtime_env={"pip": ["vecenv"]}' in found
    assert missing_package(ModuleNotFoundError("No module named 'vecenvs'")) == ""


def test_what_ray_itself_raises_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = RayHere(0.0, 0, monkeypatch)

    def get(task: int) -> RangeResult:
        raise here.exceptions.RayError("the environment of the task\n  cannot be made")

    monkeypatch.setattr(here, "get", get)
    text = "^a task of the job failed: RayError: the environment of the task cannot be made$"
    with pytest.raises(JobFailedError, match=text):
        run_job(job(**counting(), episodes=EPISODES), tmp_path / "a", cluster="auto", cluster_actors=2)


def test_a_second_ctrl_c_ends_the_tasks_on_a_cluster_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = RayHere(0.0, 0, monkeypatch)

    def twice(state: Any) -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    endless = job(**counting(), steps=10**6)
    with pytest.raises(KeyboardInterrupt):
        run_job(endless, tmp_path / "a", cluster="auto", cluster_actors=3, on_progress=twice)
    assert len(here.ended) == 2, "all but the one that has returned"


# On Ray.


def tasks_of(folder: Path) -> list[int]:
    """Return the pids of this machine's tasks that play for a folder."""
    locks = (path.read_text().split() for path in (folder / "shards").glob("w*/writer.lock"))
    return sorted(int(words[1]) for words in locks if len(words) > 1 and psutil.pid_exists(int(words[1])))


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
    assert [path.name for path in (tmp_path / "a" / "shards").iterdir() if path.name.startswith("w")] == []
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

    def test_an_env_that_ends_its_actor_again_and_again_ends_the_job(self, tmp_path: Path) -> None:
        failing = job(**counting(every=episode_seed(0, 30), how="kill"), episodes=EPISODES, ray={"max_retries": 1})
        with pytest.raises(JobFailedError, match=r"2 tasks have died while they had .*\b30\b"):
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
        stopped(run_job, slow, tmp_path / "a", on_progress=stop_at(30))
        state = stopped(resume_job, tmp_path / "a", slow, cluster="auto", cluster_actors=2, on_progress=stop_at(100))
        assert (state.status, state.signum) == ("interrupted", signal.SIGINT)
        before = Dataset(tmp_path / "a")
        assert 100 <= state.episodes == len(before) < 200
        state = stopped(resume_job, tmp_path / "a", slow, cluster="auto", cluster_actors=3, on_progress=stop_at(150))
        state = resume_job(tmp_path / "a", slow)
        assert (state.status, state.episodes) == ("complete", 200)
        assert_same(tmp_path / "a", tmp_path / "whole")


LONG = ("--env", "CartPole-v1", "--steps", "100000000", "--cluster-actors", "2", "--shard-seconds", "0.5", "--no-plot")


@pytest.fixture
def running(ray_address: str, tmp_path: Path) -> Iterator[Any]:
    """Start a command on the cluster, and wait for its first commit."""
    folder = tmp_path / "a"
    with process("-m", "collector", "run", *LONG, "--cluster", ray_address, "--out", str(folder)) as started:
        # A place has no task between two ranges.
        while not (folder / "manifest.jsonl").exists() or len(Dataset(folder)) < 100 or len(tasks_of(folder)) < 2:
            assert started.poll() is None
            time.sleep(0.05)
        yield started


@pytest.mark.ray
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_its_actors_cleanly(signum: int, running: Any, tmp_path: Path) -> None:
    actors = tasks_of(tmp_path / "a")
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
    actors = tasks_of(tmp_path / "a")
    running.kill()
    running.communicate()
    before = Dataset(tmp_path / "a").numbers.tolist()
    state = stopped(resume_job, tmp_path / "a", settings=["num_workers=1"], on_progress=stop_at(len(before) + 50))
    assert state.status == "interrupted"
    data = Dataset(tmp_path / "a")
    assert set(before) < set(data.numbers.tolist())
    assert data.verify() == []
    assert_gone(actors)


def assert_gone(pids: list[int]) -> None:
    """Wait until the processes have ended."""
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
