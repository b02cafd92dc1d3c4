"""Transforms with statistics: a resumed job continues the statistics. With frozen statistics, a job is repeatable."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest

from collector import Dataset, DatasetError, Job, JobError, load_job, resume_job, run_job, save_statistics
from tests.fuzz import kills
from tests.support.backends import FULL
from tests.support.command_line import command
from tests.support.job_envs import assert_same, change_job, counting, job, stop_at, stopped
from vecenv import DummyVectorEnv, EnvCreator, TransformedEnv
from vecenv.transforms import NormalizeReward, TransformedVectorEnv, VecNorm

LEARNING = {"call": "VecNorm", "kwargs": {"decay": 1.0}}
KEPT = "statistics.json"
TOML = """
env = "CartPole-v1"
num_envs = 4
backend = "dummy"
episodes = 30
transforms = [{ call = "VecNorm", kwargs = { decay = 1.0 }, frozen = "stats/cartpole.json" }]
"""


def learning(**changes: Any) -> Job:
    return job(**{"transforms": (LEARNING,), "episodes": 60, "shard_bytes": 3000, **changes})


def states(folder: Path) -> list[Any]:
    return [env["0.VecNorm"] for env in json.loads((folder / KEPT).read_text())["envs"]]


def seen(folder: Path, key: str = "reward_count") -> float:
    """Return the number of rows in the stored statistics of all envs."""
    return sum(state[key] for state in states(folder))


def assert_nothing_is_lost(folder: Path) -> None:
    """Check that the statistics include at least every row of every committed episode."""
    data = Dataset(folder)
    assert seen(folder) >= data.steps
    assert seen(folder, "observation_count") >= data.steps + len(data)


@pytest.mark.parametrize("backend", ["dummy", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.local_ray])])
def test_a_job_that_was_stopped_goes_on_with_its_statistics(backend: str, tmp_path: Path) -> None:
    state = stopped(run_job, learning(backend=backend), tmp_path, on_progress=stop_at(20))
    assert (state.status, state.repeatable) == ("interrupted", False)
    before = seen(tmp_path)
    assert before == state.frames, "the batch in which the signal came is the last one"
    content = (tmp_path / KEPT).read_text()
    for wrong in (None, "[]", '{"envs": [{}]}', '{"envs": 4}', '{"envs": [1, 2, 3, 4]}', "{", '{"envs": NaN}'):
        (tmp_path / KEPT).unlink()
        if wrong is not None:
            (tmp_path / KEPT).write_text(wrong)
        with pytest.raises(DatasetError, match=KEPT):
            resume_job(tmp_path)
        (tmp_path / KEPT).touch()
    (tmp_path / KEPT).write_text('{"envs": [{}, {}, {}, {}]}')
    with pytest.raises(JobError, match=r"do not fit the transforms of the job: the state is for the transforms \[\]"):
        resume_job(tmp_path, settings=["backend=dummy"])
    (tmp_path / KEPT).write_text(content)
    resumed = resume_job(tmp_path, settings=["backend=dummy"])
    assert (resumed.status, resumed.episodes) == ("complete", 60)
    assert seen(tmp_path) == before + resumed.frames
    assert_nothing_is_lost(tmp_path)
    info = command("info", tmp_path, "--json").json()
    assert info["statistics"] == ["VecNorm continues its statistics when the job is resumed; not repeatable"]
    done = command("verify", tmp_path, "--replay", 2)
    assert (done.code, "VecNorm carried statistics from one episode to the next" in done.error) == (2, True)


@FULL
@pytest.mark.filterwarnings("ignore:VecNorm.* subtracts the mean of the rewards:RuntimeWarning")
def test_the_first_observations_after_a_resume_are_normalised_by_what_came_before(tmp_path: Path) -> None:
    stopped(run_job, learning(), tmp_path, on_progress=stop_at(20))
    known = set(Dataset(tmp_path).numbers.tolist())
    norm = VecNorm(decay=1.0)
    with TransformedVectorEnv(DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")]), norm) as venv:
        norm.load_state_dict({name: np.asarray(value) for name, value in states(tmp_path)[0].items()})
        resume_job(tmp_path)
        first = next(episode for episode in Dataset(tmp_path) if episode.number not in known)
        expected, _ = venv.reset(seed=[first.seed])
    np.testing.assert_allclose(first.obs[0], expected[0], rtol=1e-5, atol=1e-6)


@FULL
@pytest.mark.usefixtures("forkserver_ends")
@pytest.mark.parametrize(
    ("call", "when"),
    [(9, "within"), (13, "before")],  # within the first statistics; after the statistics, before the shard
)
def test_a_kill_within_and_between_commits_loses_no_statistics(call: int, when: str, tmp_path: Path) -> None:
    jobs, out, committed = kills.LocalJobs("dummy"), tmp_path / "a", set[int]()
    for moment in (f"{call}:{when}", f"{call + 3}:after", ""):  # the next run is killed too, during its commits
        running = kills.start(out, jobs, 60, moment, (LEARNING,))
        code = kills.finish(running, (0, -signal.SIGKILL))
        assert code != 0 or moment != f"{call}:{when}"
        committed = kills.check(out, committed)
        if committed:
            assert_nothing_is_lost(out)
    assert len(committed) == 60


@FULL
def test_an_episode_that_is_played_again_has_them_as_well(tmp_path: Path) -> None:
    chain = ({"call": "VecNorm", "kwargs": {"in_keys": ["count"], "decay": 1.0}},)
    state = run_job(learning(**counting(every=13, how="raise"), transforms=chain), tmp_path)
    assert (bool(state.skipped), state.status) == (True, "complete")
    assert seen(tmp_path, "count_count") >= 60


@FULL
def test_statistics_of_a_wrapper_are_not_stored(tmp_path: Path) -> None:
    wrapped = job(wrappers=("gymnasium.wrappers:NormalizeObservation",), episodes=500)
    assert not stopped(run_job, wrapped, tmp_path, on_progress=stop_at(5)).repeatable
    with pytest.raises(JobError, match=r"the statistics of .*NormalizeObservation were not stored"):
        resume_job(tmp_path)


# Frozen statistics.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a job file with steps and with statistics that `VecNorm` learned in this process."""
    (tmp_path / "stats").mkdir()
    norm = VecNorm(decay=1.0)
    with TransformedVectorEnv(DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4), norm) as venv:
        venv.reset(seed=0)
        for _ in range(5):
            venv.step([0] * 4)
        save_statistics(venv.transform[0], tmp_path / "stats/cartpole.json")
    (tmp_path / "frozen.toml").write_text(TOML)
    return tmp_path / "frozen.toml"


def test_a_job_with_frozen_statistics_is_repeatable_and_the_same_everywhere(file: Path, tmp_path: Path) -> None:
    wanted = load_job(file)
    for name, backend in (("a", "dummy"), ("b", "shmem")):
        assert run_job(msgspec.structs.replace(wanted, backend=backend), tmp_path / name).repeatable
    assert_same(tmp_path / "a", tmp_path / "b")
    assert command("verify", tmp_path / "a", "--replay", 5).code == 0
    frozen = json.loads((tmp_path / "stats/cartpole.json").read_text())
    mean, std = np.array(frozen["observation_mean"]), np.sqrt(np.maximum(frozen["observation_var"], 1e-4))
    run_job(job(), tmp_path / "raw")
    for ours, raw in zip(Dataset(tmp_path / "a"), Dataset(tmp_path / "raw"), strict=True):
        np.testing.assert_allclose(ours.obs, (raw.obs - mean) / std, rtol=1e-4, atol=1e-5)
    assert not (tmp_path / "a" / KEPT).exists()
    plan = command("run", file, "--dry-run").json()
    [said] = plan["statistics"]
    assert said.startswith("VecNorm frozen, as in stats/cartpole.json (sha256 ")
    assert plan["job"]["transforms"][0]["frozen"] in said
    info = command("info", tmp_path / "a", "--json").json()
    assert (info["statistics"], info["repeatable"]) == ([said], True)
    assert "VecNorm frozen" in command("info", tmp_path / "a").out


@pytest.mark.ray
@pytest.mark.local_ray
def test_the_actors_of_a_cluster_have_frozen_statistics_too(file: Path, tmp_path: Path, ray_address: str) -> None:
    run_job(load_job(file), tmp_path / "a")
    assert run_job(load_job(file), tmp_path / "b", cluster=ray_address, cluster_actors=2).repeatable
    assert_same(tmp_path / "a", tmp_path / "b")


def test_it_resumes_without_the_file_and_refuses_a_changed_one(file: Path, tmp_path: Path) -> None:
    run_job(load_job(file), tmp_path / "whole")
    stopped(run_job, load_job(file), tmp_path / "a", on_progress=stop_at(5))
    before = (tmp_path / "a" / "manifest.jsonl").read_bytes()
    state = json.loads((tmp_path / "stats/cartpole.json").read_text())
    state["observation_count"] += 1
    (tmp_path / "stats/cartpole.json").write_text(json.dumps(state))
    with pytest.raises(JobError, match=r"has changed: transforms\[0\] was .*cartpole.json \(sha256 .*, and is .*;"):
        resume_job(tmp_path / "a", load_job(file))
    assert (tmp_path / "a" / "manifest.jsonl").read_bytes() == before
    (tmp_path / "stats/cartpole.json").unlink()
    head = (tmp_path / "a/dataset.json").read_bytes()
    change_job(tmp_path / "a", transforms=[{"call": "VecNorm", "frozen": "/etc/hostname"}])
    with pytest.raises(JobError, match="the file '/etc/hostname' was not read"):
        resume_job(tmp_path / "a")
    (tmp_path / "a/dataset.json").write_bytes(head)
    resume_job(tmp_path / "a")
    assert_same(tmp_path / "a", tmp_path / "whole")


@FULL
def test_frozen_statistics_may_be_those_that_envs_have_shared(file: Path, tmp_path: Path) -> None:
    creator = EnvCreator(lambda: TransformedEnv(gymnasium.make("CartPole-v1"), VecNorm(decay=1.0)))
    creator().reset(seed=0)
    save_statistics(creator, tmp_path / "stats/cartpole.json")
    assert run_job(load_job(file), tmp_path / "a").repeatable


def test_statistics_of_several_envs_together_have_seen_all_rows() -> None:
    rewards = np.random.default_rng(0).normal(3.0, 2.0, (3, 50))
    each, together = [NormalizeReward(gamma=0.0) for _ in range(3)], NormalizeReward(gamma=0.0)
    for norm, rows in zip([*each, together], [*rewards, rewards.ravel()], strict=True):
        norm.return_rms.update(rows)
    found = NormalizeReward.merged([norm.state_dict() for norm in each])
    for name, value in together.state_dict().items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)
