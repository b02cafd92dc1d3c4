"""Collection jobs: the episodes that they write, and how they fail, stop and resume."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import psutil
import pytest

from collector import Dataset, DatasetError, episode_seed
from collector.__main__ import main
from collector.basics.interruptor import Stopping
from collector.jobs.builders import find_env_difference, make_job_policy
from collector.jobs.job import JobError
from collector.jobs.job_progress import Metrics
from collector.jobs.job_runner import resume_job, run_job
from collector.jobs.plan import Plan
from collector.jobs.player import JobFailedError
from collector.store import safe_folder
from collector.store.dataset_head import make_head
from collector.store.safe_folder import FolderInUseError
from collector.store.writer import StoreWriter
from tests.support import job_envs
from tests.support.backends import FULL
from tests.support.job_envs import (
    HERE,
    assert_equal,
    assert_same,
    assert_whole,
    change_job,
    counting,
    job,
    process,
    stop_at,
    stopped,
)
from vecenv import DummyVectorEnv
from vecenv.backends import recycling

NOTICE = "Ending the job: finished episodes are kept, unfinished ones are dropped. A second signal ends it immediately."
backends = pytest.mark.parametrize(
    "backend",
    [
        "dummy",
        "shmem",
        *(pytest.param(each, marks=[pytest.mark.slow]) for each in ("auto", "subproc")),
        pytest.param("thread", marks=FULL),
        pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.local_ray]),
    ],
)
UNREPEATED = {
    "": "",
    "draws": "",
    "own seed": r"reset\(seed=...\) does not decide the episode .* obs\['x'\]\[0\] of the reset is .* in two new envs",
    "camera": r"reset\(seed=...\) does not decide the episode .* obs\['x'\]\[1\] of the reset is .* in two new envs",
    "episode before": r"reset\(seed=...\) keeps a state of the episode before: obs\['x'\]\[1\] of the reset is .*",
    "process": r"the env uses a generator of its process .*: obs\['x'\]\[0\] of step 1 is .* after other draws",
    "torch": r"the env uses a generator of its process .*torch's.*: obs\['x'\]\[0\] of step 1 is .* after other draws",
    "late process": r"the env uses a generator of its process .*: obs\['x'\]\[0\] of step 20 is .*",
}
TOO_MANY = r"3 episodes failed, and max_failed is 2; .* OverflowError: the episode"
ALL_FAILED = r"all episodes failed; the last, episode 2, with .*Over"
RAISED = {"episodes": 400, "on_error": "raise"}


def torch_and_mlp() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    from collector.policy.mlp import MLPPolicy

    return torch, MLPPolicy


class TestWhatAJobWrites:
    @pytest.mark.guarantee("G11.1", "G11.4")
    @backends
    def test_the_same_episodes_on_every_backend(self, backend: str, uninterrupted: Path, tmp_path: Path) -> None:
        state = run_job(job(**counting(), episodes=40, backend=backend, num_envs=3), tmp_path / "a")
        data = Dataset(tmp_path / "a")
        assert (state.status, state.signum, state.episodes, state.repeatable) == ("complete", 0, 40, True)
        assert_whole(data)
        assert data.complete
        assert data.steps == state.steps == sum(state.lengths)
        assert sorted(state.returns) == pytest.approx(sorted(data.returns))
        assert [episode.seed for episode in data] == [episode_seed(0, number) for number in range(40)]
        assert all((episode.obs["count"][:, 0] == episode.seed).all() for episode in data), "it was reset with it"
        assert_same(tmp_path / "a", uninterrupted)

    @pytest.mark.parametrize("env", [f"{HERE}:Configured", "Configured-v0"])
    @pytest.mark.parametrize("backend", ["dummy", pytest.param("thread", marks=FULL)])
    def test_what_changes_its_arguments_changes_no_other_object(
        self, env: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
        gymnasium.register("Configured-v0", entry_point=f"{HERE}:Configured")
        wrapper = {"call": f"{HERE}:Configured", "kwargs": {"config": {}}}
        changes = {"env_kwargs": {"config": {}}, "wrappers": [wrapper] * 2 if ":" in env else []}
        changes |= {"policy": f"{HERE}:Popping", "policy_kwargs": {"options": {"action": 1}}}
        settings = job(env=env, backend=backend, episodes=5, **changes)
        run_job(settings, tmp_path / "a")
        assert Dataset(tmp_path / "a").transitions().reward.tolist() == [4.0 if ":" in env else 2.0] * 25
        assert resume_job(tmp_path / "a", settings).status == "complete"

    def test_steps_are_the_shortest_row_of_first_episodes(self, uninterrupted: Path, tmp_path: Path) -> None:
        lengths = Dataset(uninterrupted).lengths
        for steps in (1, int(lengths[:5].sum()), int(lengths[:5].sum()) + 1):
            folder = tmp_path / str(steps)
            state = run_job(job(**counting(), steps=steps), folder)
            data = Dataset(folder)
            first = int(np.searchsorted(lengths.cumsum(), steps)) + 1
            assert data.numbers.tolist() == list(range(first))
            assert (state.episodes, state.steps) == (first, lengths[:first].sum())
            assert all((a.seed, len(a)) == (b.seed, len(b)) for a, b in zip(data, Dataset(uninterrupted), strict=False))

    @FULL
    @pytest.mark.parametrize(("policy", "repeatable"), [("mlp", True), (f"{HERE}:Drawing", False)])
    def test_a_job_says_whether_it_is_repeatable(self, policy: str, repeatable: bool, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        for name, backend in (("a", "dummy"), ("b", "shmem")):
            state = run_job(job(policy=policy, device="cpu", backend=backend), tmp_path / name)
            assert state.repeatable is repeatable
            head = Dataset(tmp_path / name).head
            assert head["repeatable"] is repeatable
            assert ("repeatable = True" in head["not_repeatable_because"]) is not repeatable
        if repeatable:
            assert_same(tmp_path / "a", tmp_path / "b")

    @pytest.mark.guarantee("G11.7")
    @pytest.mark.parametrize(
        "backend", ["dummy", pytest.param("shmem", marks=FULL), pytest.param("thread", marks=FULL)]
    )
    @pytest.mark.parametrize(("how", "reason"), UNREPEATED.items())
    def test_a_job_says_whether_its_env_is_repeatable(
        self, how: str, reason: str, backend: str, tmp_path: Path, capsys: Any
    ) -> None:
        if how == "torch":
            pytest.importorskip("torch")
        state = run_job(job(env=f"{HERE}:Unrepeated", env_kwargs={"how": how}, backend=backend, episodes=6), tmp_path)
        head = Dataset(tmp_path).head
        assert state.repeatable is head["repeatable"] is (not reason)
        assert re.fullmatch(reason, head["not_repeatable_because"])
        main(["info", str(tmp_path)])
        assert ("repeatable │ no: " in capsys.readouterr().out) is bool(reason)

    @pytest.mark.guarantee("G11.8")
    def test_an_env_that_cannot_be_checked_is_played_and_not_called_repeatable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        monkeypatch.setenv("FAILS_ONCE", str(tmp_path / "failed"))
        state = run_job(job(**counting(every=1, how="once", at="reset")), tmp_path / "a")
        assert (state.status, state.episodes, state.retried, state.repeatable) == ("complete", 30, 0, False)
        main(["info", str(tmp_path / "a")])
        assert "repeatable │ not checked, because the check failed with OverflowError" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("how", "reason"),
        [
            ("kill", r"WorkerDiedError: the worker of .* while running env 0"),
            pytest.param("raise", r"OverflowError: the episode with the seed \d+ cannot be played", marks=FULL),
        ],
    )
    def test_the_reason_of_a_failed_check_is_one_sentence(self, how: str, reason: str) -> None:
        found = find_env_difference(job(**counting(every=1, how=how, at="reset"), backend="shmem"))
        assert re.fullmatch(f"not checked, because the check failed with {reason}", found)

    @pytest.mark.guarantee("G11.9")
    def test_a_resumed_job_keeps_the_result_of_the_check(self, tmp_path: Path) -> None:
        how = {"env": f"{HERE}:Unrepeated", "env_kwargs": {"how": "episode before"}}
        states = [stopped(run_job, job(**how, episodes=40), tmp_path, on_progress=stop_at(5))]
        reason = Dataset(tmp_path).head["not_repeatable_because"]
        states.append(resume_job(tmp_path, allow_import=[HERE]))
        assert [(state.status, state.repeatable) for state in states] == [("interrupted", False), ("complete", False)]
        assert Dataset(tmp_path).head["not_repeatable_because"] == reason

    @pytest.mark.parametrize("how", ["process", "torch"])
    def test_the_check_leaves_the_generators_of_the_process(self, how: str) -> None:
        torch = pytest.importorskip("torch") if how == "torch" else None
        get_states = [random.getstate, lambda: np.random.get_state()[1].tolist()]
        get_states += [lambda: torch.get_rng_state().tolist()] if torch else []
        states = [get() for get in get_states]
        assert find_env_difference(job(env=f"{HERE}:Unrepeated", env_kwargs={"how": how}))
        assert [get() for get in get_states] == states

    @pytest.mark.guarantee("G11.5")
    def test_a_policy_may_say_that_it_is(self, tmp_path: Path) -> None:
        changes = {**counting(), "policy": f"{HERE}:Mean", "policy_kwargs": {"scale": 0.5}}
        state = run_job(job(**changes), tmp_path / "a")
        assert state.repeatable
        episode = Dataset(tmp_path / "a")[0]
        assert np.allclose(episode.action, 0.5 * np.tanh(episode.obs["pose"][0][:-1]))

    def test_weights_are_drawn_from_the_seed_and_not_from_the_programs_stream(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also on machines with several GPUs that are not used."""
        torch, _ = torch_and_mlp()
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        before = torch.get_rng_state()
        with DummyVectorEnv(["CartPole-v1"]) as venv:
            first, again = (make_job_policy(job(policy="mlp", seed=3), venv, "cpu") for _ in range(2))
        assert torch.equal(first.net[0].weight, again.net[0].weight)
        assert torch.equal(torch.get_rng_state(), before)

    @FULL
    def test_weights_come_from_a_checkpoint_that_runs_nothing(self, tmp_path: Path) -> None:
        torch, MLPPolicy = torch_and_mlp()
        with gymnasium.make("CartPole-v1") as env:
            policy = MLPPolicy(env.observation_space, env.action_space)
        with torch.no_grad():
            policy.net[-1].bias[:] = torch.tensor([100.0, 0.0])  # always 0
        torch.save(policy.state_dict(), tmp_path / "left.pt")
        run_job(job(policy="mlp", checkpoint=str(tmp_path / "left.pt"), device="cpu"), tmp_path / "a")
        data = Dataset(tmp_path / "a")
        assert not data.transitions().action.any()
        assert data.head["policy_hash"]
        torch.save(Path("x"), tmp_path / "object.pt")
        with pytest.raises(JobError, match="cannot be read with weights_only=True"):
            run_job(job(policy="mlp", checkpoint=str(tmp_path / "object.pt"), device="cpu"), tmp_path / "b")

    @pytest.mark.parametrize("due", [{"shard_bytes": 1}, {"shard_seconds": 1e-9}], ids=str)
    def test_a_commit_is_due_by_size_and_by_time(self, due: Any, uninterrupted: Path, tmp_path: Path) -> None:
        seen: list[int] = []
        on_progress = lambda state: seen.append(state.episodes - len(Dataset(tmp_path / "a")))  # noqa: E731
        run_job(job(**counting(), episodes=40, **due), tmp_path / "a", on_progress=on_progress)
        assert {*seen} == {0}, "each batch is committed before the next one"
        assert_same(tmp_path / "a", uninterrupted)

    def test_the_last_progress_counts_the_episodes_that_readers_see(self, tmp_path: Path) -> None:
        """The last batch of a job of steps plays episodes that the job does not need."""
        seen: list[tuple[int, int]] = []
        on_progress = lambda state: seen.append((state.episodes, state.steps))  # noqa: E731
        run_job(job(**counting(), steps=300), tmp_path / "a", on_progress=on_progress)
        data = Dataset(tmp_path / "a")
        assert seen[-2] > seen[-1] == (len(data), data.steps)


class TestFailures:
    @pytest.mark.parametrize(
        ("how", "at", "backend"),
        [
            ("raise", "step", "dummy"),
            ("nan", "step", "dummy"),
            ("huge", "step", "dummy"),
            *(pytest.param(*each, marks=FULL) for each in (("raise", "reset", "dummy"), ("inf", "step", "dummy"))),
            pytest.param("kill", "step", "shmem", marks=FULL),
            pytest.param("kill", "step", "auto", marks=FULL),  # a single worker hosts all envs
            pytest.param("raise", "reset", "shmem", marks=pytest.mark.slow),
            pytest.param("hang", "step", "shmem", marks=pytest.mark.slow),
        ],
    )
    def test_an_episode_that_fails_is_skipped_and_counted(
        self, how: str, at: str, backend: str, uninterrupted: Path, tmp_path: Path
    ) -> None:
        whole = Dataset(uninterrupted)
        failing = [episode.number for episode in whole if episode.seed % 13 == 0]
        assert 0 < len(failing) < 10
        changes = {**counting(every=13, how=how, at=at), "episodes": 40, "backend": backend}
        changes |= {"step_timeout": 0.5} if how == "hang" else {}
        state = run_job(job(**changes), tmp_path / "a")
        data = Dataset(tmp_path / "a")
        assert (state.status, state.episodes, state.steps) == ("complete", len(data), data.steps)
        assert sorted(state.skipped) == failing
        assert data.numbers.tolist() == [number for number in range(40) if number not in failing]
        assert data.failed["skipped"] == len(failing)
        for episode in data:
            assert_equal(episode, whole[episode.number])
        assert np.isfinite(data.returns).all()

    @pytest.mark.parametrize("spare_envs", [0, pytest.param(1, marks=FULL)])
    def test_new_workers_and_spare_envs_change_no_episode(
        self,
        spare_envs: int,
        uninterrupted: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(recycling, "available_memory", lambda: 0)  # so that a round waits for each new worker
        caplog.set_level("INFO", "vecenv")
        changes = {**counting(), "episodes": 40, "backend": "shmem", "num_workers": 4}
        state = run_job(job(**changes, recycle_after=2, spare_envs=spare_envs), tmp_path / "a")
        assert (state.status, state.episodes) == ("complete", 40)
        assert "was replaced (episodes)" in caplog.text
        assert not state.skipped
        whole = Dataset(uninterrupted)
        for episode in Dataset(tmp_path / "a"):
            assert_equal(episode, whole[episode.number])

    @pytest.mark.parametrize("backend", ["dummy", pytest.param("shmem", marks=FULL)])
    def test_without_retries_no_other_episode_is_skipped(
        self, backend: str, uninterrupted: Path, tmp_path: Path
    ) -> None:
        changes = {**counting(every=13, at="reset"), "episodes": 40, "backend": backend, "retries": 0}
        state = run_job(job(**changes), tmp_path / "a")
        assert sorted(state.skipped) == [each.number for each in Dataset(uninterrupted) if each.seed % 13 == 0]
        assert all("cannot be played" in reason for reason in state.skipped.values())

    def test_a_failure_that_does_not_come_again_costs_nothing(
        self, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAILS_ONCE", str(tmp_path / "failed"))
        state = run_job(job(**counting(every=13, how="once"), episodes=40), tmp_path / "a")
        assert state.retried == 1
        assert state.skipped == {}
        assert_same(tmp_path / "a", uninterrupted)

    @pytest.mark.parametrize(
        ("changes", "error", "message", "some"),
        [
            ({**counting(every=3), "episodes": 400, "max_failed": 2}, JobFailedError, TOO_MANY, True),
            ({**counting(every=1, at="reset"), "episodes": 3}, JobFailedError, ALL_FAILED, False),
            ({**counting(every=1), "episodes": 3}, JobFailedError, ALL_FAILED, True),
            ({**counting(every=episode_seed(0, 90)), **RAISED}, OverflowError, "cannot be played", True),
            ({**counting(every=3, how="nan"), **RAISED}, ValueError, r"episode \d+", False),
            ({**counting(every=3, how="inf"), **RAISED}, ValueError, r"episode \d+", True),
            ({**counting(every=3, how="huge"), **RAISED}, ValueError, r"episode \d+ has an infinite .* return", True),
            ({"policy": f"{HERE}:bad"}, KeyError, "no such state", False),
            ({"env": f"{HERE}:Lists"}, DatasetError, "only texts and arrays of numbers", False),
            ({"env": f"{HERE}:Tiles"}, DatasetError, r"obs\['map'\] has the keys \[1, 2\]; only text can be", False),
            (
                {"env": f"{HERE}:Inventory"},
                DatasetError,
                r"leave 'items' out with the wrapper .*FilterObservation, filter_keys=\['image', 'mission'\]",
                False,
            ),
        ],
    )
    def test_an_error_that_ends_the_job_leaves_whole_episodes_or_no_folder(
        self, changes: Any, error: type[Exception], message: str, some: bool, tmp_path: Path
    ) -> None:
        with pytest.raises(error, match=message):
            run_job(job(**changes), tmp_path / "a")
        assert (tmp_path / "a").exists() == some
        if some:
            data = Dataset(tmp_path / "a")
            assert not data.complete
            assert_whole(data)

    def test_a_job_whose_episodes_all_failed_is_not_complete_when_it_is_resumed(self, tmp_path: Path) -> None:
        fails = job(**counting(every=1), episodes=3)
        with pytest.raises(JobFailedError, match=ALL_FAILED):
            run_job(fails, tmp_path / "a")
        with pytest.raises(JobFailedError, match="each of the job's 3 episodes failed in an earlier run"):
            resume_job(tmp_path / "a", fails)

    @pytest.mark.guarantee("G12.1")
    @FULL
    def test_a_full_disk_leaves_what_was_committed_and_the_job_goes_on_later(
        self, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shards: list[int] = []
        write = safe_folder.write

        def full_after_a_while(fd: int, data: Any) -> None:
            if (size := sum(map(len, data)) if isinstance(data, list) else len(data)) > 3000:
                shards.append(size)
                if len(shards) > 1:
                    raise OSError(28, "No space left on device")
            write(fd, data)

        small = job(**counting(), episodes=40, shard_bytes=2000)
        with monkeypatch.context() as patch:
            patch.setattr(safe_folder, "write", full_after_a_while)
            with pytest.raises(
                DatasetError, match=r"No space left on device; the .* episodes committed before are kept"
            ):
                run_job(small, tmp_path / "a")
        data = Dataset(tmp_path / "a")
        assert 0 < len(data) < 40
        assert data.verify() == []
        resume_job(tmp_path / "a", small)
        assert_same(tmp_path / "a", uninterrupted)

    def test_the_first_error_is_raised_though_the_disk_is_full_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(fd: int, data: Any) -> None:
            raise OSError(28, "No space left on device")

        failed: list[str] = []

        def fill_the_disk(state: Any) -> None:
            failed.append(state.status)
            monkeypatch.setattr(safe_folder, "write", full)

        changes = {**counting(every=episode_seed(0, 90)), **RAISED}
        with pytest.raises(OverflowError, match="cannot be played"):
            run_job(job(**changes), tmp_path / "a", on_progress=fill_the_disk)
        assert failed

    @FULL
    def test_so_does_a_disk_that_is_full_when_metrics_are_written(self, tmp_path: Path) -> None:
        metrics = Metrics(tmp_path)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            with pytest.raises(DatasetError, match=r"metrics\.jsonl: File too large; the episodes committed before"):
                metrics.write(lambda: {"steps": 1})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            metrics.close()


class TestGoingOn:
    @pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=FULL)])
    def test_a_job_that_was_stopped_goes_on_anywhere(self, signum: int, uninterrupted: Path, tmp_path: Path) -> None:
        state = stopped(run_job, job(**counting(), episodes=40), tmp_path / "a", on_progress=stop_at(5, signum))
        assert (state.status, state.signum) == ("interrupted", signum)
        before = Dataset(tmp_path / "a")
        assert 5 <= len(before) < 40
        assert_whole(before)
        steps: list[int] = []
        options: dict[str, Any] = {"allow_import": [HERE], "on_progress": lambda state: steps.append(state.steps)}
        state = resume_job(tmp_path / "a", settings=["backend=shmem"], **options)
        assert steps[0] > before.steps
        assert (state.status, state.episodes) == ("complete", 40)
        assert sum(state.lengths) < state.steps, "what was there was not played again"
        assert_same(tmp_path / "a", uninterrupted)

    def test_one_line_of_a_program_starts_a_job_and_goes_on_with_it(self, uninterrupted: Path, tmp_path: Path) -> None:
        wanted, folder = job(**counting(), episodes=40), tmp_path / "a"
        with pytest.raises(JobError, match="resume continues the data that overwrite would replace"):
            run_job(wanted, folder, resume=True, overwrite=True)
        assert not folder.exists()
        stopped(run_job, wanted, folder, resume=True, on_progress=stop_at(5))
        for _ in range(2):
            state = run_job(wanted, folder, resume=True)
            assert (state.status, state.episodes) == ("complete", 40)
        assert_same(folder, uninterrupted)

    def test_the_program_ends_though_the_signal_came_in_the_last_batch(self, tmp_path: Path) -> None:
        state = stopped(run_job, job(episodes=1, num_envs=1), tmp_path / "a", on_progress=stop_at(1))
        assert (state.status, state.episodes) == ("complete", 1)

    @FULL
    def test_a_job_of_steps_ends_where_it_would_have(self, tmp_path: Path) -> None:
        run_job(job(**counting(), steps=300), tmp_path / "whole")
        stopped(run_job, job(**counting(), steps=300), tmp_path / "a", on_progress=stop_at(5))
        resume_job(tmp_path / "a", allow_import=[HERE])
        assert_same(tmp_path / "a", tmp_path / "whole")

    def test_a_job_of_steps_plays_what_is_missing_before_episodes_that_were_committed(self) -> None:
        """An episode is missing if its env failed, and a signal came before the retry."""
        plan = Plan(0, steps=10)
        plan.restore(np.array([0, 2, 4]), np.array([3, 9, 9]))
        assert [number for number, _ in plan] == [1, 3]
        plan.finished(1, 1)
        assert (plan.is_complete, plan.end, plan.end_steps) == (True, 3, 13)

    def test_one_that_is_complete_stays_as_it_is(self, uninterrupted: Path) -> None:
        before = {path: path.read_bytes() for path in uninterrupted.rglob("*") if path.is_file()}
        state = resume_job(uninterrupted, allow_import=[HERE])
        assert (state.status, state.episodes, state.notes) == ("complete", 40, ["the job was already complete"])
        assert state.repeatable
        assert {path: path.read_bytes() for path in before} == before

    @pytest.mark.parametrize("fails", [0, 1])
    def test_one_that_was_killed_before_its_last_line_is_complete(
        self, fails: int, uninterrupted: Path, tmp_path: Path
    ) -> None:
        folder = Path(shutil.copytree(uninterrupted, tmp_path / "a"))
        *lines, end = (folder / "manifest.jsonl").read_text().splitlines(keepends=True)
        assert end.startswith('{"line": "end"')
        (folder / "manifest.jsonl").write_text("".join(lines))
        if fails:  # the only remaining episode fails before the first batch
            change_job(folder, episodes=41, env_kwargs={"every": episode_seed(0, 40), "at": "reset"})
        state = resume_job(folder, allow_import=[HERE])
        assert (state.status, state.episodes, state.repeatable) == ("complete", 40, True)
        data = Dataset(folder)
        assert (data.complete, data.failed.get("skipped", 0)) == (True, fails)
        assert [*state.skipped] == [40] * fails
        assert_same(folder, uninterrupted)

    def test_a_changed_job_is_refused_with_what_changed(self, tmp_path: Path) -> None:
        first = job(**counting(), episodes=40)
        stopped(run_job, first, tmp_path / "a", on_progress=stop_at(5))
        before = (tmp_path / "a" / "manifest.jsonl").read_bytes()
        for settings, message in (
            (["seed=4"], "seed was 0, and is 4"),
            (["num_envs=2"], "num_envs was 4, and is 2"),
            (["env_kwargs.seconds=0.1"], r"env_kwargs was \{\}, and is \{'seconds': 0.1\}"),
        ):
            with pytest.raises(JobError, match=f"has changed: {message}; choose another folder"):
                resume_job(tmp_path / "a", first, settings)
        assert (tmp_path / "a" / "manifest.jsonl").read_bytes() == before

    @FULL
    def test_a_changed_policy_is_refused(self, tmp_path: Path) -> None:
        torch, MLPPolicy = torch_and_mlp()
        weights = tmp_path / "w.pt"
        mlp = job(policy="mlp", device="cpu", checkpoint=str(weights), episodes=500)
        with gymnasium.make("CartPole-v1") as env:
            for _ in range(2):
                torch.save(MLPPolicy(env.observation_space, env.action_space).state_dict(), weights)
                if not (tmp_path / "a").exists():
                    stopped(run_job, mlp, tmp_path / "a", on_progress=stop_at(5))
        with pytest.raises(JobError, match="has changed: policy_hash was"):
            resume_job(tmp_path / "a")

    @FULL
    def test_statistics_that_are_gone_are_no_resume(self, tmp_path: Path) -> None:
        changes: dict[str, Any] = {"wrappers": ("gymnasium.wrappers:NormalizeObservation",), "episodes": 500}
        state = stopped(run_job, job(**changes), tmp_path / "a", on_progress=stop_at(5))
        assert not state.repeatable
        with pytest.raises(JobError, match=r"the statistics of .*NormalizeObservation were not stored"):
            resume_job(tmp_path / "a")


class TestFolders:
    def test_a_folder_in_use_is_refused_and_replaced_on_demand(self, tmp_path: Path) -> None:
        run_job(job(episodes=3), tmp_path / "a")
        with pytest.raises(DatasetError, match=r"already holds 3 episodes of CartPole-v1: continue it"):
            run_job(job(episodes=5), tmp_path / "a")
        assert len(Dataset(tmp_path / "a")) == 3
        run_job(job(episodes=5), tmp_path / "a", overwrite=True)
        assert len(Dataset(tmp_path / "a")) == 5
        for changes in ({"env": "no_such_module:Env-v0"}, {"env": "CartPoll-v1"}, {"policy": f"{HERE}:none"}):
            with pytest.raises(JobError):
                run_job(job(**changes), tmp_path / "a", overwrite=True)
        assert len(Dataset(tmp_path / "a")) == 5, "a job that cannot run removes nothing"

    @pytest.mark.parametrize("error", [None, KeyboardInterrupt], ids=str)
    def test_a_job_that_does_not_begin_leaves_the_lock_of_another(
        self, error: type[BaseException] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other job begins in the same new folder while this job plays its first batch."""
        writers: list[StoreWriter] = []

        def act(obs: Any) -> Any:
            writers.append(StoreWriter(tmp_path / "a", make_head(None, None)))
            monkeypatch.setattr(job_envs, "bad", lambda obs: np.zeros(len(obs), np.int64))
            if error is not None:
                raise error
            return np.zeros(len(obs), np.int64)

        monkeypatch.setattr(job_envs, "bad", act)
        with pytest.raises(error or FolderInUseError):
            run_job(job(policy=f"{HERE}:bad", num_envs=1, episodes=1), tmp_path / "a")
        with writers[0], pytest.raises(FolderInUseError, match=f"is being written by pid {os.getpid()}"):
            StoreWriter(tmp_path / "a", None, resume=True)
        StoreWriter(tmp_path / "a", None, resume=True).close()

    def test_a_folder_that_cannot_be_made_is_an_error_with_the_reason(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DatasetError, match=r"cannot write to .*file.x: Not a directory; choose another"):
            run_job(job(), tmp_path / "file" / "x")


def command(folder: Path, *options: str) -> Any:
    """Start `run` in a separate process."""
    return process("-m", "collector", "run", *options, "--out", str(folder), "--no-plot")


def ended_by(signum: int, running: Any, has_workers: bool = True) -> tuple[str, str]:
    """Send a signal to a command, check that no worker is left, and return the rest of its output."""
    workers = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signum)
    output = running.communicate(timeout=60)
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert not alive
    assert bool(workers) == has_workers
    return output


class TestSignals:
    def test_the_second_signal_does_what_it_always_did(self) -> None:
        before = signal.getsignal(signal.SIGTERM)
        with Stopping() as stop:
            assert not stop.is_stopped
            signal.raise_signal(signal.SIGINT)
            assert stop.collection_stopped()
            assert stop.signum == signal.SIGINT
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) == before

    def test_a_signal_that_ended_the_reader_of_standard_error_too_is_handled(self) -> None:
        kept, (read, write) = os.dup(2), os.pipe()
        os.close(read)
        try:
            os.dup2(write, 2)
            with Stopping() as stop:
                signal.raise_signal(signal.SIGINT)
                assert stop.collection_stopped()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(write)

    def test_a_signal_that_was_ignored_stays_ignored(self) -> None:
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with Stopping() as stop:
                signal.raise_signal(signal.SIGINT)
                assert not stop.is_stopped
        finally:
            signal.signal(signal.SIGINT, previous)

    @pytest.mark.parametrize(
        ("backend", "signum"),
        [
            pytest.param("shmem", signal.SIGINT, marks=FULL),
            pytest.param("shmem", signal.SIGTERM, marks=pytest.mark.slow),
            pytest.param("subproc", signal.SIGTERM, marks=pytest.mark.slow),
        ],
    )
    def test_a_signal_in_mid_run_ends_the_command_cleanly(self, backend: str, signum: int, tmp_path: Path) -> None:
        options = ["--env", "CartPole-v1", "--steps", "100000000", "--backend", backend]
        with command(tmp_path / "a", *options) as running:
            assert running.stdout.readline().startswith("Job: {")
            assert running.stdout.readline().startswith("Collecting 100,000,000 steps")
            assert "steps/s" in running.stdout.readline()
            out, error = ended_by(signum, running)
        assert running.returncode == 128 + signum
        assert error.split("\n") == ["", NOTICE, ""]
        assert "Interrupted; collected until then, and kept:" in out
        assert f"Resume with: python -m collector resume {tmp_path / 'a'}" in out.replace("\n", "")
        data = Dataset(tmp_path / "a")
        assert len(data) > 10
        assert_whole(data)

    @pytest.mark.parametrize(
        ("backend", "signum"),
        [
            pytest.param("dummy", signal.SIGINT, marks=FULL),
            pytest.param("shmem", signal.SIGTERM, marks=FULL),
            pytest.param("dummy", signal.SIGTERM, marks=pytest.mark.slow),
            pytest.param("shmem", signal.SIGINT, marks=pytest.mark.slow),
        ],
    )
    def test_the_second_signal_ends_a_job_whose_env_hangs(
        self, backend: str, signum: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = {**counting(every=episode_seed(0, 40), how="hang", seconds=0.002), "episodes": 50, "num_envs": 1}
        hanging = job(**settings, backend=backend, shard_seconds=0.1)
        (tmp_path / "job.json").write_bytes(msgspec.json.encode(hanging))
        with command(tmp_path / "a", str(tmp_path / "job.json")) as running:
            while "hanging now" not in running.stdout.readline():
                pass
            running.send_signal(signum)
            while NOTICE not in running.stderr.readline():
                pass
            _, error = ended_by(signum, running, has_workers=backend != "dummy")
        assert running.returncode == (130 if signum == signal.SIGINT else -signum)
        assert ("stopped immediately" in error) == (signum == signal.SIGINT)
        assert "Traceback" not in error
        assert 0 < len(Dataset(tmp_path / "a")) <= 40
        monkeypatch.setenv("HANGS_NO_MORE", "1")
        here = msgspec.structs.replace(hanging, backend="dummy")
        resume_job(tmp_path / "a", here)
        run_job(here, tmp_path / "whole")
        assert_same(tmp_path / "a", tmp_path / "whole")
