"""Collection jobs: what they write, how they end, and what the command line prints."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces

from collector import Episode, SyncDataCollector, load_episodes
from collector.episodes.episode import EpisodeCutter
from collector.interruptor import StopSignals
from collector.job.cli import main
from collector.job.run import JobConfig, JobError, JobState, run_job
from collector.job.store import DatasetError, DatasetWriter, prepare_folder, read_manifest, write_atomically
from vecenv import DummyVectorEnv
from vecenv.tuning.auto_backend import VECTOR_ENVS

NOTICE = "Ending after this round, and keeping what is whole; once more ends it at once."
ROOT = Path(__file__).parent.parent
LOCAL = sorted(VECTOR_ENVS.keys() - {"ray"})
backends = pytest.mark.parametrize("backend", LOCAL)


class Camera(gymnasium.Env):
    """Dict observations that hold the number of their step; episodes of 3, 4, 5, ... steps; may be made to break."""

    def __init__(self, breaks_at: int = -1) -> None:
        self.observation_space = spaces.Dict(
            {
                "pixels": spaces.Box(0, 255, (4, 4), np.uint8),
                "pose": spaces.Tuple([spaces.Box(-9, 9, (2,)), spaces.Discrete(99)]),
            }
        )
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.episode, self.taken, self.breaks_at = 2, 0, breaks_at

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.episode, self.taken = self.episode + 1, 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.taken += 1
        if self.episode == self.breaks_at:
            raise OverflowError("the camera broke")
        return self.observe(), 1.0, False, self.taken == self.episode, {}

    def observe(self) -> Any:
        pose = (np.full(2, self.taken, np.float32), np.int64(self.taken))
        return {"pixels": np.full((4, 4), self.taken, np.uint8), "pose": pose}


class Words(gymnasium.Env):
    observation_space, action_space = spaces.Text(8), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[str, dict]:
        return "hello", {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict]:
        return "world", 0.0, True, False, {}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    gymnasium.register("Camera-v0", Camera, disable_env_checker=True, order_enforce=False)
    gymnasium.register("Words-v0", Words, disable_env_checker=True, order_enforce=False)
    yield
    for name in ("Camera-v0", "Words-v0"):
        del gymnasium.registry[name]


@pytest.fixture(scope="module")
def _fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """matplotlib keeps the font files open that it has once used; that is no leak of the test that draws first."""
    pytest.importorskip("matplotlib")
    from collector.job.plot import draw_returns

    draw_returns(tmp_path_factory.mktemp("fonts") / "returns.png", [1.0, 2.0], [1, 1], "fonts")


def config(out: Path, **changes: Any) -> JobConfig:
    quick: dict[str, Any] = {"env": "CartPole-v1", "steps": 1000, "num_envs": 4, "backend": "dummy", "policy": "random"}
    return JobConfig(**{**quick, "plot": False, "out": out, **changes})


def assert_whole(episodes: list[Episode]) -> None:
    for episode in episodes:
        over = episode.terminated | episode.truncated
        assert np.flatnonzero(over).tolist() == [len(episode) - 1]
        assert len(episode.action) == len(episode.reward) == len(episode)


def load_nothing(folder: Path) -> bool:
    return not folder.exists() or list(folder.iterdir()) == []


def digests(folder: Path) -> list[str]:
    return [shard["sha256"] for shard in read_manifest(folder)["shards"]]


class TestWhatAJobWrites:
    @backends
    def test_whole_episodes_have_at_least_the_requested_steps(self, backend: str, tmp_path: Path) -> None:
        state = run_job(config(tmp_path / "a", backend=backend))
        episodes = load_episodes(tmp_path / "a")
        assert_whole(episodes)
        assert state.status == "complete"
        assert state.signum == 0
        assert sum(map(len, episodes)) == state.steps >= 1000
        assert [len(episode) for episode in episodes] == state.lengths
        assert [episode.total_reward for episode in episodes] == state.returns
        for episode in episodes:
            assert episode.obs.shape == (len(episode) + 1, 4)
            # CartPole ends where the cart or the pole is too far: only the true last observation is.
            too_far = (abs(episode.obs[:, 0]) > 2.4) | (abs(episode.obs[:, 2]) > 0.2095)
            assert np.flatnonzero(too_far).tolist() == [len(episode)]

    def test_the_manifest_agrees_with_the_shards(self, tmp_path: Path) -> None:
        run_job(config(tmp_path, shard_bytes=4000))
        manifest, first = read_manifest(tmp_path), 0
        assert manifest["status"] == "complete"
        assert len(manifest["shards"]) > 3
        for shard in manifest["shards"]:
            with np.load(tmp_path / shard["file"], allow_pickle=False) as arrays:
                assert shard["first_episode"] == first
                assert shard["episodes"] == len(arrays["env_id"]) == len(arrays["offsets"]) - 1
                assert shard["steps"] == arrays["offsets"][-1] == len(arrays["reward"]) == len(arrays["action"])
                assert len(arrays["obs"]) == shard["steps"] + shard["episodes"]
            assert (tmp_path / shard["file"]).stat().st_size == shard["bytes"]
            first += shard["episodes"]
        assert manifest["episodes"] == first
        assert manifest["steps"] == sum(shard["steps"] for shard in manifest["shards"])
        assert manifest["config"]["env"] == "CartPole-v1"
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            ["manifest.json", *(shard["file"] for shard in manifest["shards"])]
        )

    def test_the_same_seed_gives_the_same_bytes_on_every_backend(self, tmp_path: Path) -> None:
        for policy in ("random", "mlp"):
            for backend in LOCAL:
                run_job(config(tmp_path / policy / backend, backend=backend, policy=policy, device="cpu"))
        for policy in ("random", "mlp"):
            first, *others = (digests(tmp_path / policy / backend) for backend in LOCAL)
            assert others == [first] * len(others)
        run_job(config(tmp_path / "other", seed=1))
        assert digests(tmp_path / "other") != digests(tmp_path / "random" / "dummy")

    @pytest.mark.ray
    @pytest.mark.local_ray
    def test_they_are_the_same_bytes_on_ray(self, tmp_path: Path) -> None:
        for backend in ("dummy", "ray"):
            run_job(config(tmp_path / backend, backend=backend, workers=None))
        assert digests(tmp_path / "ray") == digests(tmp_path / "dummy")

    def test_dict_and_tuple_observations_come_back_in_their_form(self, tmp_path: Path) -> None:
        run_job(config(tmp_path, env="Camera-v0", steps=60, num_envs=2))
        episodes = load_episodes(tmp_path)
        assert_whole(episodes)
        lengths = [len(episode) for episode in episodes]
        assert lengths[0::2] == lengths[1::2] == list(range(lengths[0], lengths[0] + len(lengths) // 2))
        for episode in episodes:
            times = np.arange(len(episode) + 1)
            assert (episode.obs["pixels"] == times[:, None, None]).all()
            assert (episode.obs["pose"][0] == times[:, None]).all()
            assert (episode.obs["pose"][1] == times).all()
            assert episode.obs["pixels"].dtype == np.uint8
        assert repr(episodes[0]) == f"Episode({lengths[0]} steps, total reward {lengths[0]}, env 0)"

    def test_episodes_longer_than_a_batch_are_put_together(self) -> None:
        make = gymnasium.make("Pendulum-v1", max_episode_steps=23)
        cutter = EpisodeCutter()
        with SyncDataCollector(DummyVectorEnv([lambda: make]), None, frames_per_batch=5) as collector:
            episodes = [episode for _ in range(10) for episode in cutter.cut(collector.rollout())]
        assert [len(episode) for episode in episodes] == [23, 23]
        assert_whole(episodes)
        assert cutter.unfinished_steps == 50 - 46
        assert not episodes[0].terminated.any()

    def test_what_is_left_unfinished_is_counted(self, tmp_path: Path) -> None:
        state = run_job(config(tmp_path, env="Pendulum-v1", steps=100, max_episode_steps=40, num_envs=2))
        assert state.lengths == [40, 40, 40, 40]
        assert state.steps == 160
        assert state.unfinished_steps % 2 == 0

    @pytest.mark.usefixtures("_fonts")
    def test_the_picture_shows_something(self, tmp_path: Path) -> None:
        from matplotlib.image import imread

        state = run_job(config(tmp_path, plot=True))
        assert state.picture == tmp_path / "returns.png"
        pixels = imread(state.picture)[..., :3]
        assert pixels.shape[0] > 300
        assert pixels.shape[1] > 500
        blue, red = (abs(pixels - color).sum(-1) < 0.6 for color in ((0.6, 0.8, 0.9), (0.84, 0.15, 0.16)))
        assert blue.sum() > 50, "a dot for each episode"
        assert red.sum() > 200, "the line of the mean"

    def test_progress_is_reported_after_every_batch(self, tmp_path: Path) -> None:
        steps: list[int] = []
        run_job(config(tmp_path), lambda state: steps.append(state.steps))
        assert len(steps) > 3
        assert steps == sorted(steps)

    @pytest.mark.parametrize("terminal", [True, False])
    def test_progress_reports_where_the_time_goes(self, terminal: bool, tmp_path: Path) -> None:
        console = pytest.importorskip("rich.console").Console(file=io.StringIO(), force_terminal=terminal, width=200)
        from collector.job.progress_report import Report

        reported: list[str] = []
        job = config(tmp_path)
        state = run_job(job, lambda state: reported.append(state.bottleneck))
        assert all(re.fullmatch(r"(envs|policy|transfers|storage|idle) \d+ %", each) for each in reported)
        state.seconds = 2.0  # where there is no terminal, the first line comes after a second
        with Report(console, job) as report:
            report(state)
        assert f"{len(state.returns)} episodes  mean return" in console.file.getvalue()
        assert f"  {reported[-1]}" in console.file.getvalue()


class TestWhenAJobCannotGoOn:
    def test_an_env_that_breaks_leaves_what_was_whole(self, tmp_path: Path) -> None:
        gymnasium.register("Broken-v0", lambda: Camera(breaks_at=30), disable_env_checker=True, order_enforce=False)
        try:
            with pytest.raises(OverflowError, match="the camera broke"):
                run_job(config(tmp_path, env="Broken-v0", steps=10_000))
        finally:
            del gymnasium.registry["Broken-v0"]
        assert read_manifest(tmp_path)["status"] == "failed"
        episodes = load_episodes(tmp_path)
        assert len(episodes) > 10
        assert_whole(episodes)

    def test_a_full_disk_leaves_what_was_committed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        writes: list[str] = []
        save = np.savez

        def full_at_the_third(file: Any, **arrays: Any) -> None:
            writes.append(file.name)
            if len(writes) >= 3:
                raise OSError(28, "No space left on device")
            save(file, **arrays)

        monkeypatch.setattr(np, "savez", full_at_the_third)
        with pytest.raises(DatasetError, match=r"No space left on device; the .* episodes committed before are kept"):
            run_job(config(tmp_path, shard_bytes=4000))
        assert len(read_manifest(tmp_path)["shards"]) == 2
        assert_whole(load_episodes(tmp_path))

    def test_a_manifest_that_cannot_be_written_counts_nothing_as_committed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(path: Path, write: Any) -> None:
            if path.name == "manifest.json":
                raise OSError(28, "No space left on device")
            write_atomically(path, write)

        one = np.ones(1)
        writer = DatasetWriter(tmp_path, {})
        writer.add([Episode(np.zeros(2), one, one, one > 0, one < 0, 0)])
        with monkeypatch.context() as patch:
            patch.setattr("collector.job.store.write_atomically", full)
            with pytest.raises(DatasetError, match="the 0 episodes committed before are kept"):
                writer.commit()
        writer.close("complete")
        assert read_manifest(tmp_path)["episodes"] == len(load_episodes(tmp_path)) == 1

    def test_observations_that_are_no_arrays_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="Python objects"):
            run_job(config(tmp_path, env="Words-v0"))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"env": "CartPoll-v1"}, "there is no env CartPoll-v1"),
            ({"env": "Camera-v0", "policy": "mlp"}, "Camera-v0: the MLP policy takes .* the random policy may do"),
        ],
    )
    def test_what_the_env_does_not_allow_is_a_job_error(self, changes: Any, message: str, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        with pytest.raises(JobError, match=message):
            run_job(config(tmp_path, **changes))


class TestFolders:
    def write(self, folder: Path) -> None:
        prepare_folder(folder, overwrite=True)
        writer = DatasetWriter(folder, {"env": "Camera-v0"})
        one = np.ones(1)
        writer.add([Episode(np.zeros(2), one, one, one > 0, one < 0, 0)])
        writer.close("complete")

    def test_a_folder_is_made_with_its_parents(self, tmp_path: Path) -> None:
        prepare_folder(tmp_path / "a" / "b")
        assert list((tmp_path / "a" / "b").iterdir()) == []

    def test_episodes_are_replaced_only_with_overwrite(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        with pytest.raises(DatasetError, match=r"already holds 1 episodes of Camera-v0.*--overwrite"):
            prepare_folder(tmp_path)
        assert len(load_episodes(tmp_path)) == 1
        prepare_folder(tmp_path, overwrite=True)
        assert list(tmp_path.iterdir()) == []

    def test_episodes_that_cannot_be_removed_are_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: Path) -> None:
            if path.name.endswith((".npz", ".json")):
                raise PermissionError(1, "Operation not permitted")
            os.unlink(path)

        self.write(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", refuse)
            with pytest.raises(DatasetError, match="Operation not permitted; choose another folder"):
                prepare_folder(tmp_path, overwrite=True)
        assert len(load_episodes(tmp_path)) == 1

    def test_a_job_that_cannot_run_removes_no_episodes(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        for changes in ({"env": "no_such_module:Env-v0"}, {"env": "Camera-v0", "policy": "mlp"}):
            with pytest.raises(JobError):
                run_job(config(tmp_path, overwrite=True, **changes))
        assert len(load_episodes(tmp_path)) == 1

    def test_files_of_others_are_never_removed(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        (tmp_path / "thesis.tex").write_text("ten years")
        with pytest.raises(DatasetError, match=r"thesis\.tex"):
            prepare_folder(tmp_path, overwrite=True)
        assert len(load_episodes(tmp_path)) == 1

    def test_a_folder_that_cannot_be_made_is_an_error_with_the_reason(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DatasetError, match=r"cannot write to .*file.x: Not a directory; choose another"):
            prepare_folder(tmp_path / "file" / "x")

    def test_what_the_manifest_does_not_name_does_not_count(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        (tmp_path / "episodes-000001.npz").write_bytes(b"half of a shard")
        (tmp_path / "episodes-000002.npz.tmp").write_bytes(b"less")
        assert len(load_episodes(tmp_path)) == 1
        prepare_folder(tmp_path, overwrite=True)
        assert list(tmp_path.iterdir()) == []

    def test_a_damaged_shard_is_named(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        shard = tmp_path / "episodes-000000.npz"
        content = bytearray(shard.read_bytes())
        content[100] ^= 1
        shard.write_bytes(content)
        with pytest.raises(DatasetError, match=r"episodes-000000\.npz is missing or does not match manifest\.json"):
            load_episodes(tmp_path)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (None, "there is no manifest"),
            ("{", "cannot be read"),
            ('{"format": "x"}', "not a manifest of"),
            ("[]", "not a manifest"),
        ],
    )
    def test_a_manifest_that_is_none_is_an_error(self, text: str | None, message: str, tmp_path: Path) -> None:
        if text is not None:
            (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(DatasetError, match=message):
            load_episodes(tmp_path)

    def test_a_write_that_fails_leaves_the_old_content(self, tmp_path: Path) -> None:
        path = tmp_path / "manifest.json"
        write_atomically(path, lambda file: file.write(b"old"))

        def fail(file: Any) -> None:
            file.write(b"ne")
            raise OSError("full")

        with pytest.raises(OSError, match="full"):
            write_atomically(path, fail)
        assert path.read_bytes() == b"old"


class TestCommandLine:
    def arguments(self, out: Path, *more: str) -> list[str]:
        return [
            "--env",
            "CartPole-v1",
            "--backend",
            "dummy",
            "--policy",
            "random",
            "--out",
            str(out),
            "--no-plot",
            *more,
        ]

    @pytest.mark.filterwarnings("ignore:.*latest versioned env")
    def test_an_id_without_a_version_is_that_of_the_latest(self, tmp_path: Path) -> None:
        assert main(self.arguments(tmp_path / "a", "--env", "CartPole")) == 0
        assert load_episodes(tmp_path / "a")

    def test_a_job_without_a_terminal_prints_a_few_plain_lines(self, tmp_path: Path, capsys: Any) -> None:
        assert main(self.arguments(tmp_path / "a", "--steps", "1,000", "--num-envs", "2")) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"Collecting 1,000 steps of CartPole-v1 from 2 envs into {tmp_path / 'a'}\n")
        for words in ("uniform random actions; seed 0", "(1,000 requested)", "steps/s", str(tmp_path / "a")):
            assert words in out.replace("\n", "")
        assert "\x1b" not in out
        assert "\r" not in out
        assert len(out.splitlines()) < 25

    def test_the_folder_is_named_after_the_env_when_none_is_given(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        arguments = self.arguments(tmp_path, "--steps", "10")
        del arguments[arguments.index("--out") : arguments.index("--out") + 2]
        assert main(arguments) == 0
        assert len(load_episodes("data/CartPole-v1")) >= 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--steps 0", "--steps: must be at least 1, got 0"),
            ("--steps many", "--steps: must be a whole number, got 'many'"),
            ("--num-envs -3", "--num-envs: must be at least 1, got -3"),
            ("--seed -1", "--seed: must be at least 0, got -1"),
            ("--backend ship", "--backend: invalid choice: 'ship'"),
            ("--workers 2", "--workers: the dummy backend has none; use --backend shmem or subproc"),
            ("--backend shmem --num-envs 2 --workers 3", "--workers: 3 workers for 2 envs"),
            ("--env CartPoll-v1", "there is no env CartPoll-v1: "),
            ("--env no_such_module:X-v0", "no_such_module:X-v0 cannot be made: No module named 'no_such_module'"),
            ("--policy mlp --device cuda:99", "--device: invalid choice"),
        ],
    )
    def test_wrong_values_are_named(self, arguments: str, message: str, tmp_path: Path, capsys: Any) -> None:
        with pytest.raises(SystemExit) as exit:
            main(self.arguments(tmp_path / "a", *arguments.split()))
        assert exit.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
        assert load_nothing(tmp_path / "a")

    def test_a_folder_in_use_is_refused_and_replaced_on_demand(self, tmp_path: Path, capsys: Any) -> None:
        arguments = self.arguments(tmp_path / "a", "--steps", "50")
        assert main(arguments) == 0
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        assert exit.value.code == 1
        assert "--overwrite" in capsys.readouterr().err
        assert main([*arguments, "--overwrite"]) == 0

    def test_cuda_that_is_not_there_is_an_error(self, tmp_path: Path, capsys: Any) -> None:
        if pytest.importorskip("torch").cuda.is_available():
            pytest.skip("there is a CUDA device")
        with pytest.raises(SystemExit) as exit:
            main(self.arguments(tmp_path / "a", "--policy", "mlp", "--device", "cuda"))
        assert exit.value.code == 2
        assert "PyTorch sees 0 CUDA devices; use 'cpu' or 'auto'" in capsys.readouterr().err

    def test_an_env_that_breaks_is_a_traceback_and_names_the_folder_of_the_rest(
        self, tmp_path: Path, capsys: Any
    ) -> None:
        gymnasium.register("Broken-v0", lambda: Camera(breaks_at=9), disable_env_checker=True, order_enforce=False)
        try:
            with pytest.raises(OverflowError):
                main(self.arguments(tmp_path / "a", "--env", "Broken-v0"))
        finally:
            del gymnasium.registry["Broken-v0"]
        assert f"whole episodes until then are kept in {tmp_path / 'a'}" in capsys.readouterr().err
        assert_whole(load_episodes(tmp_path / "a"))

    def test_an_env_whose_episodes_never_end_is_noted(self, tmp_path: Path, capsys: Any) -> None:
        more = ["--env", "Pendulum-v1", "--max-episode-steps", "400", "--steps", "100", "--num-envs", "1"]
        assert main(self.arguments(tmp_path / "a", *more)) == 0
        assert capsys.readouterr().out.count("note: no episode has ended in 1") == 1

    def test_help_needs_neither_torch_nor_rich(self) -> None:
        code = (
            "import sys; from collector.job.cli import main\n"
            "try: main(['--help'])\n"
            "finally: print([name for name in ('torch', 'rich', 'matplotlib') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0
        assert done.stdout.splitlines()[-1] == "[]"
        assert "--num-envs" in done.stdout

    @pytest.mark.parametrize("library", ["rich", "torch", "matplotlib"])
    def test_a_missing_library_is_an_error_that_names_what_to_install(self, library: str, tmp_path: Path) -> None:
        arguments = ["--env", "CartPole-v1", "--backend", "dummy", "--out", str(tmp_path / "a")]
        code = f"import sys; sys.modules[{library!r}] = None; from collector.job.cli import main; main({arguments})"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert f"pip install vecenv[{'torch' if library == 'torch' else 'job'}]" in done.stderr
        assert "Traceback" not in done.stderr


class TestSignals:
    def test_the_second_signal_does_what_it_always_did(self) -> None:
        with StopSignals() as stop:
            assert not stop.collection_stopped()
            signal.raise_signal(signal.SIGINT)
            assert stop.collection_stopped()
            assert stop.signum == signal.SIGINT
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_ends_a_job_with_what_is_whole(self, signum: int, tmp_path: Path) -> None:
        def interrupt(state: JobState) -> None:
            if state.steps > 500:
                signal.raise_signal(signum)

        state = run_job(config(tmp_path, steps=1_000_000), interrupt)
        assert state.status == "interrupted"
        assert state.signum == signum
        assert_whole(load_episodes(tmp_path))
        assert read_manifest(tmp_path)["status"] == "interrupted"

    def test_a_signal_before_the_first_step_ends_a_job_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("collector.job.run._steps_per_batch", lambda *args: signal.raise_signal(signal.SIGINT) or 8)
        state = run_job(config(tmp_path))
        assert state.status == "interrupted"
        assert load_episodes(tmp_path) == []

    @pytest.mark.parametrize("backend", [pytest.param("subproc", marks=pytest.mark.slow), "shmem"])
    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_in_mid_run_ends_the_command_cleanly(self, backend: str, signum: int, tmp_path: Path) -> None:
        options = ["--env", "CartPole-v1", "--steps", "100000000", "--policy", "random", "--backend", backend]
        with process("-m", "collector", *options, "--out", str(tmp_path / "a"), "--no-plot") as job:
            assert job.stdout is not None
            assert job.stdout.readline().startswith("Collecting 100,000,000 steps")
            assert "steps/s" in job.stdout.readline(), "it is collecting"
            workers = psutil.Process(job.pid).children(recursive=True)
            os.kill(job.pid, signum)
            out, error = job.communicate(timeout=30)
            _, alive = psutil.wait_procs(workers, timeout=5)
        assert job.returncode == 128 + signum
        assert workers
        assert not alive
        assert error.split("\n") == ["", NOTICE, ""]
        assert "Interrupted; collected until then, and kept:" in out
        episodes = load_episodes(tmp_path / "a")
        assert len(episodes) > 10
        assert_whole(episodes)
        assert json.loads((tmp_path / "a" / "manifest.json").read_text())["status"] == "interrupted"

    def test_a_signal_that_was_ignored_stays_ignored(self) -> None:
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with StopSignals() as stop:
                signal.raise_signal(signal.SIGINT)
                assert not stop.collection_stopped()
        finally:
            signal.signal(signal.SIGINT, previous)

    def test_the_second_ctrl_c_ends_a_job_whose_envs_hang(self, tmp_path: Path) -> None:
        (tmp_path / "hanging.py").write_text(HANGING)
        options = ["--env", "hanging:Hanging-v0", "--policy", "random", "--num-envs", "2", "--out", str(tmp_path / "a")]
        with process("-m", "collector", *options, PYTHONPATH=str(tmp_path)) as job:
            assert job.stdout is not None
            assert job.stderr is not None
            while "hanging now" not in job.stdout.readline():
                pass
            workers = psutil.Process(job.pid).children(recursive=True)
            job.send_signal(signal.SIGINT)
            while NOTICE not in job.stderr.readline():
                pass
            job.send_signal(signal.SIGINT)
            _, error = job.communicate(timeout=30)
            _, alive = psutil.wait_procs(workers, timeout=5)
        assert job.returncode == 130
        assert workers
        assert not alive
        assert "stopped at once" in error
        assert "Traceback" not in error
        assert load_episodes(tmp_path / "a") == []

    def test_a_killed_job_leaves_what_was_committed(self, tmp_path: Path) -> None:
        code = (
            "import sys; from pathlib import Path; from collector.job.run import JobConfig, run_job\n"
            "out = Path(sys.argv[1])\n"
            "job = JobConfig('CartPole-v1', out, 10**9, policy='random', plot=False, shard_bytes=20_000)\n"
            "run_job(job, lambda state: print(state.steps, flush=True))"
        )
        with process("-c", code, str(tmp_path)) as job:
            assert job.stdout is not None
            for line in job.stdout:
                if int(line) > 5000:  # some shards of them are committed, and more are on their way
                    break
            workers = psutil.Process(job.pid).children(recursive=True)
            job.kill()
            job.wait(timeout=30)
            _, alive = psutil.wait_procs(workers, timeout=5)
        assert workers
        assert not alive
        episodes = load_episodes(tmp_path)
        assert sum(map(len, episodes)) > 1000
        assert_whole(episodes)


HANGING = """
import os, threading
import gymnasium as gym, numpy as np

class Hanging(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        os.write(1, b"hanging now\\n")
        threading.Event().wait()

gym.register("Hanging-v0", Hanging)
"""


@contextmanager
def process(*arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Python in a process of its own, which is gone afterwards."""
    running = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()
