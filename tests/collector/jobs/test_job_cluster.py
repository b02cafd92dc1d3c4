"""Jobs on a Ray cluster collect the episodes of a local job, even if tasks and nodes die."""

from __future__ import annotations

import os
import pickle
import random
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from collector import Dataset, Job, JobError, episode_seed, resume_job, run_job
from collector.jobs import job_runner, ray_player
from tests.support.backends import FULL
from tests.support.command_line import JobFailedError
from tests.support.job_envs import HERE, assert_same, assert_whole, counting, job, stopped

EPISODES = 40  # number of episodes of the job `uninterrupted`
AUTO: dict[str, Any] = {"cluster": "auto", "cluster_actors": 2}
ANY_DEATHS = {"max_retries": 100}


def small(**changes: Any) -> Job:
    return job(**{**counting(), "episodes": EPISODES, "shard_bytes": 1000, **changes})


class RayHere:
    """Stand-in for Ray: tasks run in this process, end in any order, and die at any moment."""

    class exceptions:
        RayError = type("RayError", (Exception,), {})
        TaskCancelledError = type("TaskCancelledError", (RayError,), {})

    def __init__(self, monkeypatch: pytest.MonkeyPatch, deadly: float = 0.0, seed: int = 0) -> None:
        for name, value in {
            "start_task": self.start_task,
            "is_loss": lambda error: isinstance(error, ConnectionError),
            "dead_nodes": lambda: {"lost"} if self.silent else set(),
            "get_record": lambda key: "lost" if key in self.silent else "",
            "remove_record": lambda key: None,
            "NODE_CHECK_INTERVAL": 0.0,
        }.items():
            monkeypatch.setattr(ray_player, name, value)
        monkeypatch.setattr(job_runner, "connect_to", lambda address: nullcontext(self))
        self.silent: set[str] = set()
        """Keys of the tasks on silent nodes."""
        self.loses = -1
        """Number of the task whose node is lost."""
        self.ray = self
        self._rng, self._deadly = random.Random(seed), deadly
        self._calls: list[bytes] = []
        self._keys: list[str] = []
        self.ended: list[int] = []

    def start_task(self, function: Any, options: Any, task: Any) -> int:
        if len(self._calls) == self.loses:
            self.silent.add(task.key)
        self._keys.append(task.key)
        self._calls.append(pickle.dumps(task))
        return len(self._calls) - 1

    def tasks(self) -> list[Any]:
        """All tasks until now."""
        return [pickle.loads(blob) for blob in self._calls]

    def wait(self, tasks: list[int], num_returns: int, timeout: float) -> Any:
        answering = [each for each in tasks if self._keys[each] not in self.silent]
        return [self._rng.choice(answering)] if answering else [], []

    def get(self, task: int) -> Any:
        moment = self._rng.random()
        if moment < self._deadly / 2:
            raise ConnectionError("it died before it had done anything")
        played = ray_player.play_range(pickle.loads(self._calls[task]))
        if moment < self._deadly:
            raise ConnectionError("it died when it had committed everything")  # the task is not lost
        return pickle.loads(pickle.dumps(played))

    def cancel(self, task: int, force: bool) -> None:
        assert force, "an overshoot is not needed"
        self.ended.append(task)


@pytest.mark.parametrize(
    ("seed", "changes", "sees_folder"),
    [
        (1, {}, False),
        (2, counting(every=13), True),
        *(pytest.param(seed, {"steps": 300, "episodes": None}, True, marks=FULL) for seed in (0, 3)),
    ],
)
def test_whenever_tasks_die_each_episode_is_there_once(
    seed: int, changes: dict[str, Any], sees_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that do not see the folder return their files."""
    waits = list[Any]()
    if not sees_folder:
        monkeypatch.setattr(ray_player, "_wait_until", lambda check: waits.append(check) or check())
        isdir = os.path.isdir
        monkeypatch.setattr(os.path, "isdir", lambda path: "/shards/w" not in str(path) and isdir(path))
    RayHere(monkeypatch, 0.5 * (seed > 0), seed)
    wanted, actors = small(**changes, ray=ANY_DEATHS), 1 + seed % 3
    expected = run_job(wanted, tmp_path / "whole")
    state = run_job(wanted, tmp_path / "a", cluster="auto", cluster_actors=actors)
    data, whole = Dataset(tmp_path / "a"), Dataset(tmp_path / "whole")
    assert (state.status, state.episodes, state.steps) == ("complete", len(whole), whole.steps)
    assert state.skipped.keys() == expected.skipped.keys()
    assert data.failed.get("skipped", 0) == len(expected.skipped)
    lost = [note.split(" ", 1)[1] for note in state.notes]
    assert lost == ["tasks failed, and their uncommitted episodes were played again"] * (seed > 0)
    assert data.verify() == []
    assert not [*(tmp_path / "a/shards").glob("w*")], "also of tasks that were not needed any more"
    assert_same(tmp_path / "a", tmp_path / "whole")
    assert len([check for check in waits if "sees_folder" in check.__qualname__]) <= 3, "only the first tasks"


@pytest.mark.parametrize("has_begun", [True, False])
def test_what_the_tasks_of_a_lost_node_had_is_played_again_at_once(
    has_begun: bool, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = RayHere(monkeypatch)
    here.loses = 1  # the first task after the task that finds the head
    if not has_begun:  # it was sent to the node, and no one knows
        monkeypatch.setattr(ray_player, "get_record", lambda key: "")
    state = run_job(small(), tmp_path, **AUTO)
    notes = [
        "1 tasks failed, and their uncommitted episodes were played again",
        "the failed tasks ran on the nodes lost (1)",
    ]
    assert state.notes == notes * has_begun
    assert here.ended, "the task whose node is lost"
    assert_same(tmp_path, uninterrupted)


def test_a_job_that_a_signal_ends_leaves_the_episodes_of_a_lost_node_to_its_resume(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = RayHere(monkeypatch)
    here.loses = 1

    def interrupt(key: str) -> None:
        if key in here.silent:  # its loss was recorded
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ray_player, "remove_record", interrupt)
    monkeypatch.setattr(here, "cancel", lambda task, force: None)
    state = stopped(run_job, small(), tmp_path, **AUTO)
    assert state.status == "interrupted"
    assert state.notes[0] == "1 tasks failed, and their uncommitted episodes are played when the job is resumed"
    resume_job(tmp_path, allow_import=[HERE])
    assert_same(tmp_path, uninterrupted)


def test_a_program_that_fails_leaves_no_task_and_no_lost_episode(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes that tasks have committed are adopted, also those of a task that is killed."""
    here = RayHere(monkeypatch)
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
    with pytest.raises(ZeroDivisionError):
        run_job(small(), tmp_path, cluster="auto", cluster_actors=3, on_progress=fail)
    assert len(killed) == 2
    assert not [*(tmp_path / "shards").glob("w*")]
    assert 0 < len(Dataset(tmp_path)) < EPISODES
    assert resume_job(tmp_path, allow_import=[HERE]).status == "complete"
    assert_same(tmp_path, uninterrupted)


def test_tasks_agree_about_a_policy_that_changes_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    RayHere(monkeypatch)
    policy = {"policy": "tests.support.job_policies:Carrying", "policy_kwargs": {"how": "norm"}, "device": "cpu"}
    state = run_job(job(**policy, episodes=12), tmp_path, cluster="auto", cluster_actors=3)
    assert (state.status, state.episodes, state.repeatable) == ("complete", 12, False)


def test_auto_is_measured_by_the_first_task_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = RayHere(monkeypatch)
    run_job(job(episodes=EPISODES, backend="auto"), tmp_path, **AUTO)
    first, *others = [task.job.backend for task in here.tasks()]
    assert (first, {*others}) in (("auto", {"dummy"}), ("auto", {"shmem"}))


def test_ray_gets_the_options_of_a_job_for_each_task() -> None:
    given = {"num_cpus": 2, "memory": 10, "resources": {"far": 1}, "runtime_env": {"pip": ["a"]}}
    ray = {**given, "scheduling": "DEFAULT", "max_retries": 0}
    expected = {**given, "num_gpus": 0, "scheduling_strategy": "DEFAULT"}
    assert ray_player.task_options(job(ray=ray)) == expected
    assert ray_player.task_options(job()) == {"num_cpus": 1, "num_gpus": 0, "scheduling_strategy": "SPREAD"}


def test_a_second_ctrl_c_ends_the_tasks_on_a_cluster_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = RayHere(monkeypatch)

    def twice(state: Any) -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_job(job(**counting(), steps=10**6), tmp_path, cluster="auto", cluster_actors=3, on_progress=twice)
    assert len(here.ended) == 2, "all but the one that has returned"


def test_a_cluster_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"there is no Ray cluster at '127\.0\.0\.1:1'"):
        run_job(small(), tmp_path / "a", cluster="127.0.0.1:1")
    assert not (tmp_path / "a").exists()


# On Ray.


@FULL
@pytest.mark.local_ray
def test_actors_write_the_episodes_of_a_local_job(uninterrupted: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    progress = lambda state: seen.append((state.episodes, state.frames))  # noqa: E731
    state = run_job(small(shard_bytes=2000), tmp_path, **AUTO, on_progress=progress)
    data = Dataset(tmp_path)
    assert (state.status, state.episodes, state.actors, state.repeatable) == ("complete", EPISODES, 2, True)
    assert (data.complete, state.notes) == (True, [])
    assert data.steps == state.steps == sum(state.lengths) <= state.frames
    assert sorted(state.returns) == pytest.approx(sorted(data.returns))
    assert seen[-1][0] == EPISODES
    assert data.head["job"] == Dataset(uninterrupted).head["job"] | {"shard_bytes": 2000}
    assert data.head["ran_on"]["actors"] == 2
    assert not [*(tmp_path / "shards").glob("w*")]
    assert_same(tmp_path, uninterrupted)


@pytest.mark.ray
@pytest.mark.local_ray
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {**counting(every=episode_seed(0, 30), how="kill"), "ray": {"max_retries": 1}},
            JobFailedError,
            r"2 tasks have died while they had .*\b30\b",
        ),
        (
            {**counting(every=episode_seed(0, 90)), "episodes": 400, "on_error": "raise"},
            OverflowError,
            "cannot be played",
        ),
    ],
)
def test_failures_in_actors_end_the_job_with_what_was_whole(
    changes: Any, error: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        run_job(small(**changes), tmp_path / "a", **AUTO)
    assert not Dataset(tmp_path / "a").complete
    assert_whole(Dataset(tmp_path / "a"))
