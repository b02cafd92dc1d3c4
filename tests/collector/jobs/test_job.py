"""Collection jobs: the episodes that they write, and how they fail, stop and resume."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import psutil
import pytest

from collector import (
    Dataset,
    DatasetError,
    JobError,
    MLPPolicy,
    StoreWriter,
    episode_seed,
    make_head,
    resume_job,
    run_job,
)
from tests.support import job_envs, numbered
from tests.support.backends import FULL
from tests.support.command_line import JobFailedError, command
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

pytestmark = pytest.mark.usefixtures("no_fsync")
NOTICE = "Ending the job: finished episodes are kept, unfinished ones are dropped. A second signal ends it immediately."


# What a job writes.


@pytest.mark.guarantee("G11.1", "G11.4")
@pytest.mark.parametrize(
    "settings",
    [
        {"backend": "shmem"},
        pytest.param({"backend": "shmem", "recycle_after": 2, "spare_envs": 1}, marks=FULL),
        pytest.param({"backend": "thread"}, marks=FULL),
        *(pytest.param({"backend": each}, marks=pytest.mark.slow) for each in ("auto", "subproc")),
        pytest.param({"backend": "ray"}, marks=[pytest.mark.ray, pytest.mark.local_ray]),
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_the_same_episodes_on_every_backend(settings: Any, uninterrupted: Path, tmp_path: Path) -> None:
    state = run_job(job(**counting(), episodes=40, num_envs=3, **settings), tmp_path)
    data = Dataset(tmp_path)
    assert (state.status, state.signum, state.episodes, state.repeatable) == ("complete", 0, 40, True)
    assert_whole(data)
    assert data.complete
    assert data.steps == state.steps == sum(state.lengths)
    assert sorted(state.returns) == pytest.approx(sorted(data.returns))
    assert [episode.seed for episode in data] == [episode_seed(0, number) for number in range(40)]
    assert all((episode.obs["count"][:, 0] == episode.seed).all() for episode in data), "it was reset with it"
    assert_same(tmp_path, uninterrupted)


def test_a_job_stores_infos(tmp_path: Path) -> None:
    """`test_job_replay` has texts in observations and actions."""
    kwargs = {"number": 0, "form": "lists", "informs": True}
    informed = {"env": "tests.support.numbered:Numbered", "env_kwargs": kwargs, "num_envs": 1}
    run_job(job(**informed, info_keys=numbered.KEYS[:-2], episodes=12), tmp_path)
    data = Dataset(tmp_path)
    assert len(numbered.assert_whole(data)) == 12
    assert [*data[0].info] == [*numbered.KEYS[:-2]]


@pytest.mark.parametrize("env", [f"{HERE}:Configured", "Configured-v0"])
def test_what_changes_its_arguments_changes_no_other_object(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.register("Configured-v0", entry_point=f"{HERE}:Configured")
    wrapper = {"call": f"{HERE}:Configured", "kwargs": {"config": {}}}
    changes = {"env_kwargs": {"config": {}}, "wrappers": [wrapper] * 2 if ":" in env else []}
    changes |= {"policy": f"{HERE}:Popping", "policy_kwargs": {"options": {"action": 1}}}
    settings = job(env=env, episodes=5, **changes)
    run_job(settings, tmp_path)
    assert Dataset(tmp_path).transitions().reward.tolist() == [4.0 if ":" in env else 2.0] * 25
    assert resume_job(tmp_path, settings).status == "complete"


def test_steps_are_the_shortest_row_of_first_episodes(uninterrupted: Path, tmp_path: Path) -> None:
    lengths = Dataset(uninterrupted).lengths
    seen: list[tuple[int, int]] = []
    for steps in (1, int(lengths[:5].sum()), int(lengths[:5].sum()) + 1, 300):
        progress = lambda state: seen.append((state.episodes, state.steps))  # noqa: E731
        state = run_job(job(**counting(), steps=steps), tmp_path / str(steps), on_progress=progress)
        data = Dataset(tmp_path / str(steps))
        first = int(np.searchsorted(lengths.cumsum(), steps)) + 1
        assert data.numbers.tolist() == list(range(first))
        assert (state.episodes, state.steps) == seen[-1] == (first, lengths[:first].sum())
        for episode in data:
            assert_equal(episode, Dataset(uninterrupted)[episode.number])
    assert seen[-2] > seen[-1], "the last batch of a job of steps plays episodes that the job does not need"


def test_a_commit_is_due_by_size_and_by_time(uninterrupted: Path, tmp_path: Path) -> None:
    for name, due in (("a", {"shard_bytes": 1}), ("b", {"shard_seconds": 1e-9})):
        waiting: list[int] = []
        progress = lambda state: waiting.append(state.episodes - len(Dataset(tmp_path / name)))  # noqa: B023, E731
        run_job(job(**counting(), episodes=40, **due), tmp_path / name, on_progress=progress)
        assert {*waiting} == {0}, "each batch is committed before the next one"
        assert_same(tmp_path / name, uninterrupted)


# Whether a job is repeatable.

MEAN: dict[str, Any] = {**counting(), "policy": f"{HERE}:Mean", "policy_kwargs": {"scale": 0.5}}
CHECKED = {
    "": "",
    "draws": "",
    "own seed": r"reset\(seed=...\) does not decide the episode .* obs\['x'\]\[0\] of the reset is .* in two new envs",
    "episode before": r"reset\(seed=...\) keeps a state of the episode before: obs\['x'\]\[1\] of the reset is .*",
    "process": r"the env uses a generator of its process .*: obs\['x'\]\[0\] of step 1 is .* after other draws",
    "torch": r"the env uses a generator of its process .*torch's.*: obs\['x'\]\[0\] of step 1 is .* after other draws",
    "late process": r"the env uses a generator of its process .*: obs\['x'\]\[0\] of step 20 is .*",
}
"""What `Unrepeated` does, and why it is not repeatable."""
CHANGES = r"the policy changes itself while it acts \(training mode, a counter or a normaliser\)"


def carrying(how: str, training: bool = False) -> dict[str, Any]:
    """Return settings of a policy that changes itself as `how` says."""
    policy = {"policy": "tests.support.job_policies:Carrying", "policy_kwargs": {"how": how, "training": training}}
    return {**policy, "device": "cpu"}


@pytest.mark.guarantee("G11.5", "G11.7")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        *(({"env": f"{HERE}:Unrepeated", "env_kwargs": {"how": how}}, reason) for how, reason in CHECKED.items()),
        (MEAN, ""),
        ({"policy": f"{HERE}:Drawing"}, r".*repeatable = True.*"),
        *((carrying(how), CHANGES) for how in ("buffer", "attribute", "array", "generator")),
        (carrying("not at all", training=True), ""),
    ],
    ids=lambda value: "-".join(map(str, [*value.values()][-2:])) if isinstance(value, dict) else "",
)
def test_a_job_says_whether_it_is_repeatable(settings: Any, reason: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def generators() -> list[Any]:
        return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]

    before = generators()
    state = run_job(job(**settings, episodes=6), tmp_path)
    if settings.get("env_kwargs") == {"how": ""}:
        assert generators() == before, "the check leaves the generators"
    head = Dataset(tmp_path).head
    assert state.repeatable is head["repeatable"] is (not reason)
    assert re.fullmatch(reason, head["not_repeatable_because"])
    assert ("repeatable │ no: " in command("info", tmp_path).out) is bool(reason)
    if settings is MEAN:
        episode = Dataset(tmp_path)[0]
        assert np.allclose(episode.action, 0.5 * np.tanh(episode.obs["pose"][0][:-1]))


@pytest.mark.guarantee("G11.8")
def test_an_env_that_cannot_be_checked_is_played_and_not_called_repeatable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS_ONCE", str(tmp_path / "failed"))
    state = run_job(job(**counting(every=episode_seed(0, 0), how="once", at="reset")), tmp_path / "a")
    assert (state.status, state.episodes, state.repeatable) == ("complete", 30, False)
    reason = r"not checked, because the check failed with OverflowError: the episode with the seed \d+ cannot be played"
    assert re.fullmatch(reason, Dataset(tmp_path / "a").head["not_repeatable_because"])
    assert "repeatable │ not checked, because the check failed with" in command("info", tmp_path / "a").out


@pytest.mark.guarantee("G11.9")
def test_a_resumed_job_keeps_the_result_of_the_check(tmp_path: Path) -> None:
    how = {"env": f"{HERE}:Unrepeated", "env_kwargs": {"how": "episode before"}}
    states = [stopped(run_job, job(**how, episodes=40), tmp_path, on_progress=stop_at(5))]
    reason = Dataset(tmp_path).head["not_repeatable_because"]
    states.append(resume_job(tmp_path, allow_import=[HERE]))
    assert [(state.status, state.repeatable) for state in states] == [("interrupted", False), ("complete", False)]
    assert Dataset(tmp_path).head["not_repeatable_because"] == reason


@pytest.mark.guarantee("G11.9")
def test_a_resumed_job_is_not_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "failed"
    flag.touch()
    monkeypatch.setenv("FAILS_ONCE", str(flag))
    wanted = job(**counting(every=1, how="once", at="reset"), episodes=40)
    states = [stopped(run_job, wanted, tmp_path / "a", on_progress=stop_at(5))]
    flag.unlink()  # the first reset fails, and a check would fail
    states.append(resume_job(tmp_path / "a", wanted))
    assert [(state.status, state.repeatable) for state in states] == [("interrupted", True), ("complete", True)]
    assert flag.exists(), "the resumed job met the failure"


@pytest.mark.guarantee("G11.11")
@pytest.mark.parametrize("training", [True, False])
def test_a_policy_that_changes_itself_can_be_resumed(training: bool, tmp_path: Path) -> None:
    """A job leaves the training mode as it is: in evaluation mode, the normaliser does not change."""
    pytest.importorskip("torch")
    wanted = job(**carrying("norm", training), episodes=20)
    before = stopped(run_job, wanted, tmp_path / "a", on_progress=stop_at(3))
    state = resume_job(tmp_path / "a", allow_import=["tests.support.job_policies"])
    assert (before.status, before.repeatable) == ("interrupted", not training)
    assert (state.status, state.repeatable) == ("complete", not training)
    assert_whole(Dataset(tmp_path / "a"))
    if not training:
        run_job(wanted, tmp_path / "b")
        assert_same(tmp_path / "a", tmp_path / "b")


def test_weights_are_drawn_from_the_seed_and_not_from_the_programs_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on machines with several GPUs that are not used."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    before = torch.get_rng_state()
    for name in "ab":
        assert run_job(job(policy="mlp", seed=3, device="cpu", episodes=2), tmp_path / name).repeatable
    assert_same(tmp_path / "a", tmp_path / "b")
    assert torch.equal(torch.get_rng_state(), before)


@FULL
def test_weights_come_from_a_checkpoint(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with gymnasium.make("CartPole-v1") as env:
        policy = MLPPolicy(env.observation_space, env.action_space)
    policy.net[-1].bias.data = torch.tensor([100.0, 0.0])  # always 0
    torch.save(policy.state_dict(), tmp_path / "left.pt")
    mlp = {"policy": "mlp", "device": "cpu", "episodes": 500}
    stopped(run_job, job(**mlp, checkpoint=str(tmp_path / "left.pt")), tmp_path / "a", on_progress=stop_at(5))
    data = Dataset(tmp_path / "a")
    assert not data.transitions().action.any()
    assert data.head["policy_hash"]
    policy.net[-1].bias.data = torch.zeros(2)
    torch.save(policy.state_dict(), tmp_path / "left.pt")
    with pytest.raises(JobError, match="has changed: policy_hash was"):
        resume_job(tmp_path / "a")


# Failures. `tests/faults` has those that a retry repairs.


@pytest.mark.parametrize(
    ("how", "at", "backend", "retries"),
    [
        ("huge", "step", "dummy", 1),
        ("raise", "reset", "dummy", 0),
        pytest.param("kill", "step", "auto", 1, marks=FULL),  # a single worker hosts all envs
    ],
)
def test_an_episode_that_fails_is_skipped_and_counted(
    how: str, at: str, backend: str, retries: int, uninterrupted: Path, tmp_path: Path
) -> None:
    """Also without retries no other episode is skipped."""
    whole = Dataset(uninterrupted)
    failing = [episode.number for episode in whole if episode.seed is not None and episode.seed % 13 == 0]
    assert 0 < len(failing) < 10
    changes = {**counting(every=13, how=how, at=at), "episodes": 40, "backend": backend, "retries": retries}
    state = run_job(job(**changes), tmp_path)
    data = Dataset(tmp_path)
    assert (state.status, state.episodes, state.steps) == ("complete", len(data), data.steps)
    assert sorted(state.skipped) == failing
    assert data.numbers.tolist() == [number for number in range(40) if number not in failing]
    assert data.failed["skipped"] == len(failing)
    for episode in data:
        assert_equal(episode, whole[episode.number])


RAISED = {"episodes": 400, "on_error": "raise"}
ALL_FAILED = r"all episodes failed; the last, episode 2, with .*Over"
TOO_MANY = r"3 episodes failed, and max_failed is 2; .* OverflowError: the episode"


@pytest.mark.parametrize(
    ("changes", "error", "message", "some"),
    [
        ({**counting(every=3), "episodes": 400, "max_failed": 2}, JobFailedError, TOO_MANY, True),
        ({**counting(every=1, at="reset"), "episodes": 3}, JobFailedError, ALL_FAILED, False),
        ({**counting(every=1), "episodes": 3}, JobFailedError, ALL_FAILED, True),
        ({**counting(every=episode_seed(0, 90)), **RAISED}, OverflowError, "cannot be played", True),
        ({**counting(every=3, how="nan"), **RAISED}, ValueError, r"episode \d+", False),
        ({**counting(every=3, how="huge"), **RAISED}, ValueError, r"episode \d+ has an infinite .* return", True),
    ],
)
def test_an_error_that_ends_the_job_leaves_whole_episodes_or_no_folder(
    changes: Any, error: type[Exception], message: str, some: bool, tmp_path: Path
) -> None:
    failing = job(**changes)
    with pytest.raises(error, match=message):
        run_job(failing, tmp_path / "a")
    assert (tmp_path / "a").exists() == some
    if some:
        assert not Dataset(tmp_path / "a").complete
        assert_whole(Dataset(tmp_path / "a"))
    if some and message == ALL_FAILED:
        with pytest.raises(JobFailedError, match="each of the job's 3 episodes failed in an earlier run"):
            resume_job(tmp_path / "a", failing)


def full_disk(fd: int, data: Any) -> None:
    raise OSError(28, "No space left on device")


def test_the_first_error_is_raised_though_the_disk_is_full_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[str] = []

    def fill_the_disk(state: Any) -> None:
        failed.append(state.status)
        monkeypatch.setattr("collector.store.safe_folder.write", full_disk)

    changes = {**counting(every=episode_seed(0, 90)), **RAISED}
    with pytest.raises(OverflowError, match="cannot be played"):
        run_job(job(**changes), tmp_path, on_progress=fill_the_disk)
    assert failed


@pytest.mark.guarantee("G12.1")
def test_a_full_disk_leaves_what_was_committed_and_the_job_goes_on_later(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(state: Any) -> None:
        if state.episodes >= 10:
            patch.setattr("collector.store.safe_folder.write", full_disk)

    small = job(**counting(), episodes=40, shard_bytes=1)
    with monkeypatch.context() as patch, pytest.raises(DatasetError, match="No space left on device; the "):
        run_job(small, tmp_path, on_progress=fill_the_disk)
    assert 10 <= len(Dataset(tmp_path)) < 40
    assert_whole(Dataset(tmp_path))
    resume_job(tmp_path, small)
    assert_same(tmp_path, uninterrupted)


# Resuming. `tests/fuzz/jobs.py` kills, stops and resumes random jobs.


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=FULL)])
def test_a_job_that_was_stopped_goes_on_anywhere(signum: int, uninterrupted: Path, tmp_path: Path) -> None:
    wanted = job(**counting(), episodes=40)
    state = stopped(run_job, wanted, tmp_path, resume=True, on_progress=stop_at(5, signum))
    assert (state.status, state.signum) == ("interrupted", signum)
    before = Dataset(tmp_path)
    assert 5 <= len(before) < 40
    assert_whole(before)
    manifest = (tmp_path / "manifest.jsonl").read_bytes()
    for settings, message in (
        ("seed=4", "seed was 0, and is 4"),
        ("num_envs=2", "num_envs was 4, and is 2"),
        ("env_kwargs.seconds=0.1", r"env_kwargs was \{\}, and is \{'seconds': 0.1\}"),
    ):
        with pytest.raises(JobError, match=f"has changed: {message}; choose another folder"):
            resume_job(tmp_path, wanted, [settings])
    assert (tmp_path / "manifest.jsonl").read_bytes() == manifest
    steps: list[int] = []
    options: dict[str, Any] = {"allow_import": [HERE], "on_progress": lambda state: steps.append(state.steps)}
    state = resume_job(tmp_path, settings=["backend=shmem"], **options)
    assert steps[0] > before.steps
    assert (state.status, state.episodes) == ("complete", 40)
    assert sum(state.lengths) < state.steps, "what was there was not played again"
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    state = run_job(wanted, tmp_path, resume=True)
    assert (state.status, state.episodes, state.notes) == ("complete", 40, ["the job was already complete"])
    assert {path: path.read_bytes() for path in files} == files
    assert_same(tmp_path, uninterrupted)


def test_a_job_of_steps_plays_what_is_missing_before_episodes_that_were_committed(
    uninterrupted: Path, tmp_path: Path
) -> None:
    """An episode is missing if its env failed, and a signal came before the retry."""
    whole = Dataset(uninterrupted)
    wanted = job(**counting(), steps=int(whole.lengths[:3].sum()) + 1)
    head = {**whole.head, "job": {**whole.head["job"], "episodes": None, "steps": wanted.steps}}
    with StoreWriter(tmp_path, head) as writer:
        writer.add([whole[0], whole[2], whole[4]])
        writer.commit()
    state = resume_job(tmp_path, wanted)
    assert (state.status, state.steps) == ("complete", whole.lengths[:4].sum())
    assert Dataset(tmp_path).numbers.tolist() == [0, 1, 2, 3]
    for episode in Dataset(tmp_path):
        assert_equal(episode, whole[episode.number])


@pytest.mark.parametrize("fails", [0, 1])
def test_one_that_was_killed_before_its_last_line_is_complete(fails: int, uninterrupted: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(uninterrupted, tmp_path / "a"))
    *lines, end = (folder / "manifest.jsonl").read_text().splitlines(keepends=True)
    assert end.startswith('{"line": "end"')
    (folder / "manifest.jsonl").write_text("".join(lines))
    if fails:  # the only remaining episode fails before the first batch
        change_job(folder, episodes=41, env_kwargs={"every": episode_seed(0, 40), "at": "reset"})
    state = resume_job(folder, allow_import=[HERE])
    assert (state.status, state.episodes, state.repeatable) == ("complete", 40, True)
    assert (Dataset(folder).complete, Dataset(folder).failed.get("skipped", 0)) == (True, fails)
    assert [*state.skipped] == [40] * fails
    assert_same(folder, uninterrupted)


# Folders.


def test_a_folder_is_overwritten_only_on_demand_and_by_a_job_that_can_run(tmp_path: Path) -> None:
    run_job(job(episodes=3), tmp_path)
    with pytest.raises(DatasetError, match=r"already holds 3 episodes of CartPole-v1: continue it"):
        run_job(job(episodes=5), tmp_path)
    assert len(Dataset(tmp_path)) == 3
    run_job(job(episodes=5), tmp_path, overwrite=True)
    assert len(Dataset(tmp_path)) == 5
    for name, value in (("env", "no_such_module:Env-v0"), ("env", "CartPoll-v1"), ("policy", f"{HERE}:none")):
        with pytest.raises(JobError, match=value.partition(":")[0]):
            run_job(job(**{name: value}), tmp_path, overwrite=True)
    assert len(Dataset(tmp_path)) == 5


@pytest.mark.parametrize("error", [DatasetError, KeyboardInterrupt])
def test_a_job_that_does_not_begin_leaves_the_lock_of_another(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other job begins in the same new folder while this job plays its first batch."""
    writers: list[StoreWriter] = []

    def act(obs: Any) -> Any:
        writers.append(StoreWriter(tmp_path / "a", make_head(None, None)))
        monkeypatch.setattr(job_envs, "bad", lambda obs: np.zeros(len(obs), np.int64))
        if error is KeyboardInterrupt:
            raise error
        return np.zeros(len(obs), np.int64)

    monkeypatch.setattr(job_envs, "bad", act)
    with pytest.raises(error):
        run_job(job(policy=f"{HERE}:bad", num_envs=1, episodes=1), tmp_path / "a")
    with writers[0], pytest.raises(DatasetError, match=f"is being written by pid {os.getpid()}"):
        StoreWriter(tmp_path / "a", None, resume=True)
    StoreWriter(tmp_path / "a", None, resume=True).close()


# Signals.


def test_the_program_ends_though_the_signal_came_in_the_last_batch(tmp_path: Path) -> None:
    state = stopped(run_job, job(episodes=1, num_envs=1), tmp_path, on_progress=stop_at(1))
    assert (state.status, state.episodes) == ("complete", 1)


def test_the_second_signal_does_what_it_did_before_the_job(tmp_path: Path) -> None:
    def twice(state: Any) -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as caught:
        run_job(job(steps=10**6), tmp_path, on_progress=twice)
    assert not hasattr(caught.value, "state")
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_ended_the_reader_of_standard_error_too_is_handled(tmp_path: Path) -> None:
    kept, (read, write) = os.dup(2), os.pipe()
    os.close(read)
    try:
        os.dup2(write, 2)
        assert stopped(run_job, job(steps=10**6), tmp_path, on_progress=stop_at(1)).status == "interrupted"
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(write)


def test_a_signal_that_was_ignored_stays_ignored(tmp_path: Path) -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_job(job(), tmp_path, on_progress=stop_at(1)).status == "complete"
    finally:
        signal.signal(signal.SIGINT, previous)


def ended_by(signum: int, running: Any, has_workers: bool = True) -> tuple[str, str]:
    """Send a signal to a command, check that no worker is left, and return the rest of its output."""
    workers = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signum)
    output = running.communicate(timeout=60)
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
    assert bool(workers) == has_workers
    return output


@FULL
@pytest.mark.parametrize(("backend", "signum"), [("dummy", signal.SIGINT), ("shmem", signal.SIGTERM)])
def test_the_second_signal_ends_a_job_whose_env_hangs(
    backend: str, signum: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**counting(every=episode_seed(0, 40), how="hang", seconds=0.002), "episodes": 50, "num_envs": 1}
    hanging = job(**settings, backend=backend, shard_seconds=0.1)
    (tmp_path / "job.json").write_bytes(msgspec.json.encode(hanging))
    words = [str(tmp_path / "job.json"), "--no-plot", "--out", str(tmp_path / "a")]
    with process("-m", "collector", "run", *words) as running:
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
