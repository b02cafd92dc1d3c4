"""Transforms with statistics: a resumed job continues the statistics. With frozen statistics, a job is repeatable."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest

from collector import Dataset, DatasetError, Job, load_job, resume_job, run_job, save_statistics
from collector.__main__ import main
from collector.jobs.dataset_info import dataset_info
from collector.jobs.job import Call, JobError
from collector.jobs.replay import replay_episodes
from collector.jobs.transform_statistics import KEPT, read_statistics
from tests.fuzz import kills
from tests.support.backends import FULL
from tests.support.job_envs import assert_same, change_job, counting, job, stop_at, stopped
from vecenv import DummyVectorEnv, EnvCreator, TransformedEnv
from vecenv.transforms import NormalizeReward, TransformedVectorEnv, VecNorm

LEARNING = Call("VecNorm", {"decay": 1.0})
TOML = """
env = "CartPole-v1"
num_envs = 4
backend = "dummy"
episodes = 30
transforms = [{ call = "VecNorm", kwargs = { decay = 1.0 }, frozen = "stats/cartpole.json" }]
"""


def learning(**changes: Any) -> Job:
    return job(**{"transforms": (LEARNING,), "episodes": 60, "shard_bytes": 3000, **changes})


def seen(folder: Path, key: str = "reward_count", place: str = "0.VecNorm", num_envs: int = 4) -> float:
    """Return the number of rows in the stored statistics of all envs."""
    return sum(state[place][key] for state in read_statistics(folder, num_envs))


def assert_nothing_is_lost(folder: Path) -> None:
    """Check that the statistics include at least every row of every committed episode."""
    data = Dataset(folder)
    assert seen(folder) >= data.steps
    assert seen(folder, "observation_count") >= data.steps + len(data)


class TestLearning:
    @pytest.mark.parametrize(
        "backend",
        [
            "dummy",
            pytest.param("shmem", marks=FULL),
            pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.local_ray]),
        ],
    )
    def test_a_job_that_was_stopped_goes_on_with_its_statistics(self, backend: str, tmp_path: Path) -> None:
        state = stopped(run_job, learning(backend=backend), tmp_path / "a", on_progress=stop_at(20))
        assert state.status == "interrupted"
        assert not state.repeatable
        before = seen(tmp_path / "a")
        assert before == state.frames, "the batch in which the signal came is the last one"
        resumed = resume_job(tmp_path / "a", settings=["backend=dummy"])
        assert (resumed.status, resumed.episodes) == ("complete", 60)
        assert seen(tmp_path / "a") == before + resumed.frames
        assert_nothing_is_lost(tmp_path / "a")

    @FULL
    @pytest.mark.filterwarnings("ignore:VecNorm.* subtracts the mean of the rewards:RuntimeWarning")
    def test_the_first_observations_after_a_resume_are_normalised_by_what_came_before(self, tmp_path: Path) -> None:
        stopped(run_job, learning(), tmp_path / "a", on_progress=stop_at(20))
        known = set(Dataset(tmp_path / "a").numbers.tolist())
        [state, *_] = read_statistics(tmp_path / "a", 4)
        norm = VecNorm(decay=1.0)
        with TransformedVectorEnv(DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")]), norm) as venv:
            norm.load_state_dict(state["0.VecNorm"])
            resume_job(tmp_path / "a")
            first = next(episode for episode in Dataset(tmp_path / "a") if episode.number not in known)
            expected, _ = venv.reset(seed=[first.seed])
        np.testing.assert_allclose(first.obs[0], expected[0], rtol=1e-5, atol=1e-6)

    @FULL
    def test_an_episode_that_is_played_again_has_them_as_well(self, tmp_path: Path) -> None:
        chain = (Call("VecNorm", {"in_keys": ["count"], "decay": 1.0}),)
        state = run_job(learning(**counting(every=13, how="raise"), transforms=chain), tmp_path / "a")
        assert state.skipped
        assert state.status == "complete"
        assert seen(tmp_path / "a", "count_count") >= 60

    @FULL
    def test_without_the_file_it_is_refused(self, tmp_path: Path) -> None:
        stopped(run_job, learning(), tmp_path / "a", on_progress=stop_at(20))
        (tmp_path / "a" / KEPT).rename(tmp_path / "kept")
        with pytest.raises(DatasetError, match=rf"{KEPT} is missing: .* the statistics .* --overwrite"):
            resume_job(tmp_path / "a")
        for content in ("[]", '{"envs": [{}]}', '{"envs": 4}', '{"envs": [1, 2, 3, 4]}', "{", '{"envs": NaN}'):
            (tmp_path / "a" / KEPT).write_text(content)
            with pytest.raises(DatasetError, match=KEPT):
                resume_job(tmp_path / "a")
        (tmp_path / "a" / KEPT).write_text('{"envs": [{}, {}, {}, {}]}')
        with pytest.raises(
            JobError,
            match=r"that are stored do not fit the transforms of the job: the state is for the transforms \[\]",
        ):
            resume_job(tmp_path / "a")
        shutil.move(tmp_path / "kept", tmp_path / "a" / KEPT)
        assert resume_job(tmp_path / "a").status == "complete"

    @FULL
    def test_what_cannot_be_said_again_is_said(self, tmp_path: Path, capsys: Any) -> None:
        run_job(learning(episodes=8), tmp_path / "a")
        assert dataset_info(tmp_path / "a")["statistics"] == [
            "VecNorm continues its statistics when the job is resumed; not repeatable"
        ]
        assert main(["verify", str(tmp_path / "a")]) == 0
        assert main(["verify", str(tmp_path / "a"), "--replay", "2"]) == 2
        assert "VecNorm carried statistics from one episode to the next" in capsys.readouterr().err


@FULL
@pytest.mark.usefixtures("forkserver_ends")
class TestKilled:
    @pytest.mark.parametrize(
        ("call", "when"),
        [  # Head and manifest need 8 calls. Each commit then writes statistics, shard and line.
            (9, "within"),  # within the first statistics
            (13, "before"),  # after the statistics, before the shard
            pytest.param(20, "before", marks=pytest.mark.slow),
            *(pytest.param(n, when, marks=pytest.mark.slow) for n in range(9, 30, 2) for when in ("after", "within")),
        ],
    )
    def test_by_sigkill_within_and_between_commits_nothing_is_lost(self, call: int, when: str, tmp_path: Path) -> None:
        chain, out = (LEARNING,), tmp_path / "a"
        assert (
            kills.finish(kills.start(out, kills.LocalJobs("dummy"), 60, f"{call}:{when}", chain), (0, -signal.SIGKILL))
            != 0
        )
        committed = kills.check(out, set())
        if committed:
            assert_nothing_is_lost(out)
        # kill the next run too, during its commits
        kills.finish(kills.start(out, kills.LocalJobs("dummy"), 60, f"{call + 3}:after", chain), (0, -signal.SIGKILL))
        committed = kills.check(out, committed)
        if committed:
            assert_nothing_is_lost(out)
        kills.finish(kills.start(out, kills.LocalJobs("dummy"), 60, "", chain))
        assert len(kills.check(out, committed)) == 60
        assert_nothing_is_lost(out)


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


class TestFrozen:
    def test_a_job_is_repeatable_and_the_same_everywhere(self, file: Path, tmp_path: Path) -> None:
        wanted = load_job(file)
        for name, backend in (("a", "dummy"), ("b", "shmem")):
            assert run_job(msgspec.structs.replace(wanted, backend=backend), tmp_path / name).repeatable
        assert_same(tmp_path / "a", tmp_path / "b")
        assert not any(replay_episodes(tmp_path / "a", 5).values())
        frozen = json.loads((tmp_path / "stats/cartpole.json").read_text())
        mean, std = np.array(frozen["observation_mean"]), np.sqrt(np.maximum(frozen["observation_var"], 1e-4))
        run_job(job(), tmp_path / "raw")
        for ours, raw in zip(Dataset(tmp_path / "a"), Dataset(tmp_path / "raw"), strict=True):
            np.testing.assert_allclose(ours.obs, (raw.obs - mean) / std, rtol=1e-4, atol=1e-5)
        assert not (tmp_path / "a" / KEPT).exists()

    @pytest.mark.ray
    @pytest.mark.local_ray
    def test_the_actors_of_a_cluster_have_them_too(self, file: Path, tmp_path: Path, ray_address: str) -> None:
        run_job(load_job(file), tmp_path / "a")
        assert run_job(load_job(file), tmp_path / "b", cluster=ray_address, cluster_actors=2).repeatable
        assert_same(tmp_path / "a", tmp_path / "b")

    def test_it_resumes_without_the_file_and_refuses_a_changed_one(self, file: Path, tmp_path: Path) -> None:
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
        resume_job(tmp_path / "a")
        assert_same(tmp_path / "a", tmp_path / "whole")

    @FULL
    def test_info_and_dry_run_say_so(self, file: Path, tmp_path: Path, capsys: Any) -> None:
        assert main(["run", str(file), "--dry-run"]) == 0
        plan = json.loads(capsys.readouterr().out)
        [said] = plan["statistics"]
        assert said.startswith("VecNorm frozen, as in stats/cartpole.json (sha256 ")
        assert plan["job"]["transforms"][0]["frozen"] in said
        assert main(["run", str(file), "--no-plot", "--out", str(tmp_path / "a")]) == 0
        assert "observation_mean" not in capsys.readouterr().out, "no numbers in the line that says what the job is"
        info = dataset_info(tmp_path / "a")
        assert info["statistics"] == [said]
        assert info["repeatable"] is True
        assert main(["info", str(tmp_path / "a")]) == 0
        assert "VecNorm frozen" in capsys.readouterr().out

    def test_files_that_are_none(self, file: Path, tmp_path: Path) -> None:
        (tmp_path / "stats/cartpole.json").unlink()
        for content, message in (
            (None, "cartpole.json cannot be read: No such file or directory"),
            ("{", "cartpole.json cannot be read: "),
            ("[1, 2]", "cartpole.json has no statistics; write the file with collector.save_statistics"),
            ("{}", "cartpole.json has no statistics"),
            ('{"envs": [{"0.VecNorms": {}}]}', "not of one VecNorm; write the file with collector.save_statistics"),
            ('{"mean": 1.0}', r"cartpole.json does not fit VecNorm: .* expected {'obser.*, got {'mean': \(\)}"),
        ):
            if content is not None:
                (tmp_path / "stats/cartpole.json").write_text(content)
            with pytest.raises(JobError, match=message):
                run_job(load_job(file), tmp_path / "a")

    @FULL
    def test_they_may_be_those_that_envs_have_shared(self, file: Path, tmp_path: Path) -> None:
        creator = EnvCreator(lambda: TransformedEnv(gymnasium.make("CartPole-v1"), VecNorm(decay=1.0)))
        creator().reset(seed=0)
        save_statistics(creator, tmp_path / "stats/cartpole.json")
        assert run_job(load_job(file), tmp_path / "a").repeatable

    def test_what_has_no_statistics_cannot_be_frozen(self, file: Path, tmp_path: Path) -> None:
        entry = Call("StepCounter", {}, str(tmp_path / "stats/cartpole.json"))
        with pytest.raises(JobError, match="StepCounter cannot be frozen: it has no statistics; remove `frozen`"):
            run_job(job(transforms=(entry,)), tmp_path / "a")
        with pytest.raises(ValueError, match="has no statistics to save"):
            save_statistics(VecNorm(), tmp_path / "none.json")

    def test_a_stored_job_opens_no_file_that_it_names(self, file: Path, tmp_path: Path) -> None:
        stopped(run_job, load_job(file), tmp_path / "a", on_progress=stop_at(5))
        change_job(tmp_path / "a", transforms=[{"call": "VecNorm", "frozen": "/etc/hostname"}])
        with pytest.raises(JobError, match="the file '/etc/hostname' was not read"):
            resume_job(tmp_path / "a")


def test_states_that_are_put_together_have_seen_all_rows() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(3.0, 2.0, (3, 50))
    each, together = [NormalizeReward(gamma=0.0) for _ in range(3)], NormalizeReward(gamma=0.0)
    for norm, rows in zip(each, rewards, strict=True):
        norm.return_rms.update(rows)
    together.return_rms.update(rewards.ravel())
    found = NormalizeReward.merged([norm.state_dict() for norm in each])
    for name, value in together.state_dict().items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)
