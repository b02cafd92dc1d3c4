"""Inspect a collected data set: numbers, charts, videos and replays."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from collector import Dataset
from collector.__main__ import main
from collector.jobs.dataset_info import dataset_info, read_metrics
from collector.jobs.job import JobError
from collector.jobs.job_progress import JobState, spread
from collector.jobs.job_runner import run_job
from collector.jobs.player import JobFailedError
from collector.jobs.replay import equal_rows, make_videos, replay_episodes
from collector.jobs.report import Report
from tests.support.backends import FULL
from tests.support.job_envs import HERE, change_job, counting, job, stop_at, stopped
from tests.support.paths import ROOT

DRAWN = {"env": f"{HERE}:Drawn", "episodes": 3}


def rows_of(table: str) -> dict[str, str]:
    """Return the names and values of a printed table."""
    cells = (line.split("│")[1:3] for line in table.splitlines() if line.count("│") == 3)
    return {name.strip(): value.strip() for name, value in cells}


class TestReplay:
    @pytest.mark.guarantee("G11.10")
    def test_a_repeatable_job_is_played_again_with_its_policy(self, tmp_path: Path, capsys: Any) -> None:
        run_job(job(**counting(), episodes=20), tmp_path)
        assert replay_episodes(tmp_path, 4, [HERE]) == {0: "", 6: "", 13: "", 19: ""}
        change_job(tmp_path, seed=1)
        assert set(replay_episodes(tmp_path, 5, [HERE]).values()) == {"obs differs from step 0 on"}
        [shard] = tmp_path.glob("shards/*/reward.npy")
        content = bytearray(shard.read_bytes())
        content[200] ^= 1
        shard.write_bytes(content)
        assert main(["verify", str(tmp_path)]) == 1
        assert str(shard.parent) in capsys.readouterr().out

    @pytest.mark.parametrize(
        "settings",
        [{}, {"on_error": "raise"}, {"max_failed": 0}, {"retries": 0}, {"policy": f"{HERE}:Drawing"}],
        ids=lambda settings: "-".join(settings) or "random",
    )
    def test_an_env_that_fails_is_reported(self, settings: dict[str, Any], tmp_path: Path) -> None:
        run_job(job(**settings, episodes=3), tmp_path)
        change_job(tmp_path, **counting(every=1, at="reset"))
        found = replay_episodes(tmp_path, 3, [HERE])
        assert list(found) == [0, 1, 2]
        for text in found.values():
            assert text.startswith("its env failed: OverflowError: the episode with the seed ")

    @pytest.mark.parametrize("policy", ["random", f"{HERE}:Drawing"])
    def test_an_env_that_has_changed_differs(self, policy: str, tmp_path: Path) -> None:
        run_job(job(policy=policy, episodes=3), tmp_path)
        for changed in (counting(), counting(every=1, at="reset"), {"env": f"{HERE}:Words", "env_kwargs": {}}):
            change_job(tmp_path, **changed)
            if policy == "random" and "Words" in changed["env"]:
                continue  # a job refuses its observations
            found = replay_episodes(tmp_path, 3, [HERE])
            assert all(text.startswith(("obs differs from step 0 on", "its env failed")) for text in found.values()), (
                found
            )

    def test_it_is_played_on_the_device_of_the_job(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A job ran without a GPU, and is verified on a machine with a GPU."""
        pytest.importorskip("torch")
        run_job(job(policy="mlp", device="cpu", episodes=3), tmp_path)
        monkeypatch.setattr("collector.jobs.replay.device_of_policy", lambda job: "cuda")
        assert not any(replay_episodes(tmp_path, 3).values())

    @pytest.mark.parametrize(
        ("stored", "other", "expected"),
        [
            (np.float32(0.1), 0.1, True),
            (np.array([1.0, np.nan]), [1, np.nan], True),
            (np.bool_(True), 1, True),
            (np.array([0.0]), np.array([-0.0]), False),
            (np.array([np.nan]), np.array([-np.nan]), False),
            (np.int64(1), 1.5, False),
            (np.zeros(2), [[0.0], [0.0, 0.0]], False),
            (np.zeros(2), "text", False),
        ],
    )
    def test_rows_are_compared_bit_for_bit_in_the_stored_dtype(self, stored: Any, other: Any, expected: bool) -> None:
        assert equal_rows({"a": (stored,)}, {"a": (other,)}) is expected

    @pytest.mark.guarantee("G11.10")
    @FULL
    def test_of_other_jobs_the_actions_are_repeated(self, tmp_path: Path, capsys: Any) -> None:
        for env, differs in (("CartPole-v1", ""), (f"{HERE}:Forgetful", "obs differs from step 0 on")):
            run_job(job(env=env, policy=f"{HERE}:Drawing", episodes=8), tmp_path, overwrite=True)
            found = replay_episodes(tmp_path, 3, [HERE])
            assert list(found) == [0, 4, 7]
            assert found[7] == differs
        assert main(["verify", str(tmp_path), "--replay", "8", "--allow-import", HERE]) == 1
        out = capsys.readouterr().out
        assert "8 episodes in 1 shards: whole" in out
        assert "obs differs from step 0 on" in out


class TestNumbers:
    def test_info_is_what_is_there(self, tmp_path: Path) -> None:
        state = run_job(job(**counting(every=13), episodes=40), tmp_path)
        info, data = dataset_info(tmp_path), Dataset(tmp_path)
        assert info["lengths"]["max"] == data.lengths.max()
        assert info["returns"]["mean"] == pytest.approx(data.returns.mean())
        assert info["failed"]["skipped"] == len(state.skipped)
        assert info["bytes"] == sum(path.stat().st_size for path in tmp_path.glob("shards/*/*.npy"))
        assert info["steps_per_second"] > 0

    def test_metrics_are_lines_of_json_and_half_a_line_is_none(self, tmp_path: Path) -> None:
        run_job(job(), tmp_path)
        with open(tmp_path / "metrics.jsonl", "a") as file:
            file.write('{"steps": 1')
        lines = read_metrics(tmp_path)
        assert lines
        assert lines[-1]["steps"] == Dataset(tmp_path).steps
        assert {"time", "episodes", "steps_per_second", "mean_return", "bottleneck"} <= lines[-1].keys()


def test_text_of_others_in_an_error_cannot_move_the_cursor(tmp_path: Path, capsys: Any) -> None:
    run_job(job(episodes=1), tmp_path)
    head = json.loads((tmp_path / "dataset.json").read_text())
    for name in ("version", "format"):
        (tmp_path / "dataset.json").write_text(json.dumps({**head, name: "\x1b[2J"}))
        assert main(["info", str(tmp_path)]) == 1
        assert "\x1b" not in capsys.readouterr().err


def test_figures_of_large_returns_are_finite() -> None:
    largest = float(np.finfo(np.float64).max)
    found = spread(np.array([largest, -largest, largest]))
    assert found is not None
    assert found == pytest.approx({"mean": largest / 3, "std": largest / 3 * 8**0.5, "min": -largest, "max": largest})


@pytest.mark.slow  # TensorBoard takes seconds to import
def test_tensorboard_reads_what_a_job_wrote_for_it(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    arguments = ["--env", "CartPole-v1", "--episodes", "40", "--backend", "dummy", "--out", str(tmp_path / "a")]
    assert main(["run", *arguments, "--tensorboard", "--no-plot"]) == 0
    events = EventAccumulator(str(tmp_path / "a/tensorboard")).Reload()
    data, last = Dataset(tmp_path / "a"), read_metrics(tmp_path / "a")[-1]
    numbers = {name for name, value in last.items() if isinstance(value, (int, float))}
    numbers.remove("time")  # TensorBoard adds a wall time
    assert set(events.Tags()["scalars"]) == {f"job/{name}" for name in numbers}
    for name in numbers:
        newest = events.Scalars(f"job/{name}")[-1]
        assert newest.value == pytest.approx(last[name], rel=1e-6)
        assert newest.step == data.steps
    assert events.Scalars("job/episodes")[-1].value == 40


@FULL
class TestPictures:
    @pytest.mark.usefixtures("fonts")
    def test_the_picture_shows_something(self, tmp_path: Path) -> None:
        from matplotlib.image import imread

        from collector.jobs.dataset_info import plot_dataset

        run_job(job(episodes=60), tmp_path)
        pixels = imread(plot_dataset(tmp_path))[..., :3]
        assert pixels.shape[0] > 500
        blue, red = (abs(pixels - color).sum(-1) < 0.6 for color in ((0.6, 0.8, 0.9), (0.84, 0.15, 0.16)))
        assert blue.sum() > 50, "a dot for each episode"
        assert red.sum() > 200, "the line of the mean"

    @pytest.mark.parametrize("env", ["Drawn", "DrawnOnSurface"])
    def test_a_video_has_all_pictures_in_an_even_size(self, env: str, tmp_path: Path) -> None:
        pytest.importorskip("imageio_ffmpeg")
        cv2 = pytest.importorskip("cv2")
        run_job(job(env=f"{HERE}:{env}", episodes=3), tmp_path)
        videos = make_videos(tmp_path, [2, 0], allow_import=[HERE])
        assert [(video.number, video.difference) for video in videos] == [(0, ""), (2, "")]
        reader, frames = cv2.VideoCapture(videos[1].path), list[Any]()
        assert reader.get(cv2.CAP_PROP_FPS) == 10
        while (read := reader.read())[0]:
            frames.append(np.asarray(read[1]))
        reader.release()
        assert [frame.shape for frame in frames] == [(34, 52, 3)] * 7
        for step, frame in enumerate(frames):
            assert abs(frame.astype(int) - 40 * step).max() <= 6

    def test_a_video_says_where_it_is_not_as_it_was(self, tmp_path: Path, capsys: Any) -> None:
        pytest.importorskip("imageio_ffmpeg")
        run_job(job(**DRAWN), tmp_path)
        change_job(tmp_path, env_kwargs={"offset": 1})
        assert main(["video", str(tmp_path), "--allow-import", HERE]) == 0
        assert "(not as it was stored: obs differs from step 0 on)" in capsys.readouterr().out

    def test_a_video_that_cannot_be_written_is_said_in_a_line(self, tmp_path: Path, capsys: Any) -> None:
        pytest.importorskip("imageio_ffmpeg")
        run_job(job(**DRAWN), tmp_path)
        (tmp_path / "videos/episode-000001.mp4").mkdir(parents=True)
        assert main(["video", str(tmp_path), "--episodes", "1", "--allow-import", HERE]) == 1
        assert f"cannot write to {tmp_path / 'videos'}: Is a directory; pass another --out" in capsys.readouterr().err

    def test_what_cannot_be_rendered_is_said(self, tmp_path: Path) -> None:
        pytest.importorskip("imageio_ffmpeg")
        run_job(job(episodes=2), tmp_path / "a")
        with pytest.raises(JobError, match="has no episode 7; it has 2"):
            make_videos(tmp_path / "a", [7])
        run_job(job(env=f"{HERE}:Undrawn", episodes=2), tmp_path / "b")
        with pytest.raises(JobError, match=r"cannot be rendered: RuntimeError: no OpenGL context.*MUJOCO_GL=egl"):
            make_videos(tmp_path / "b", [0], allow_import=[HERE])
        run_job(job(env=f"{HERE}:WithoutModes", episodes=1), tmp_path / "c")
        with pytest.raises(JobError, match='WithoutModes cannot be made with render_mode="rgb_array": TypeError'):
            make_videos(tmp_path / "c", [0], allow_import=[HERE])

    @FULL
    def test_without_a_display_the_error_of_mujoco_is_said(self, tmp_path: Path) -> None:
        pytest.importorskip("mujoco")
        run_job(job(env="Ant-v5", episodes=1, max_episode_steps=2, num_envs=1), tmp_path)
        environ = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
        command = [sys.executable, "-m", "collector", "video", str(tmp_path)]
        done = subprocess.run(command, env={**environ, "MUJOCO_GL": "glfw"}, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        message = " ".join(done.stderr.split())
        assert "Ant-v5 cannot be rendered: " in message
        assert "without a display, envs of MuJoCo and dm_control need MUJOCO_GL=egl" in message


class TestProgress:
    """Texts of the mean return, during a job and at its end."""

    @pytest.mark.parametrize(
        ("returns", "text"),
        [
            ([], "no episode ended yet"),
            ([5.0], "mean return 5.0"),
            ([1.0, 3.0], "mean return 2.0 \N{PLUS-MINUS SIGN} 2.0"),
            ([0.0] * 50 + [6.0] * 100, "mean return 4.0 \N{PLUS-MINUS SIGN} 0.5 (last 100: 6.0)"),
        ],
        ids=["none", "one", "two", "many"],
    )
    def test_they_say_of_which_episodes_it_is(self, returns: list[float], text: str, tmp_path: Path) -> None:
        output = io.StringIO()
        state = JobState(job=job(), out=tmp_path, returns=returns, episodes=len(returns), steps=700, seconds=2.0)
        with Report(Console(file=output, width=300), state.job, "a heading") as report:
            report(state)
        assert output.getvalue().splitlines()[1].endswith(f" {len(returns)} episodes  {text}")
        assert (f", {text}, 0 skipped" in repr(state)) == bool(returns)


class TestTables:
    @pytest.fixture(autouse=True)
    def wide(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "300")

    @pytest.mark.parametrize("size", [{"episodes": 40}, pytest.param({"steps": 900}, marks=FULL)], ids=str)
    def test_the_last_one_of_a_job_and_info_say_the_same(self, size: Any, tmp_path: Path, capsys: Any) -> None:
        stopped(run_job, job(**size), tmp_path / "a", on_progress=stop_at(9))
        for command in (
            ["resume", "--no-plot"],
            ["resume", "--no-plot"],
            ["info"],
        ):  # the second `resume` has nothing to do
            capsys.readouterr()
            assert main([*command, str(tmp_path / "a")]) == 0
            rows = rows_of(capsys.readouterr().out)
            data = Dataset(tmp_path / "a")
            assert rows["episodes"].startswith(f"{len(data)} ")
            assert rows["steps"].split()[0] == f"{data.steps:,}"
            for name, values in (("return", data.returns), ("length", data.lengths)):
                assert rows[name].startswith(f"mean {values.mean():,.1f}, deviation {values.std():,.1f}, from ")

    def test_failures_are_those_of_the_whole_job(self, tmp_path: Path, capsys: Any) -> None:
        failing = counting(every=7)
        with pytest.raises(JobFailedError, match="2 episodes failed"):
            run_job(job(**failing, episodes=40, max_failed=1), tmp_path / "a")
        assert len(Dataset(tmp_path / "a").state["skipped"]) == 2
        tables = []
        for command in (["resume", "--no-plot", "--allow-import", HERE, "--set", "max_failed=9"], ["info"]):
            capsys.readouterr()
            assert main([*command, str(tmp_path / "a")]) == 0
            tables.append(rows_of(capsys.readouterr().out))
        assert tables[0]["failures"] == tables[1]["failures"] != "none"
        run_job(job(**failing, episodes=40), tmp_path / "whole")
        ours, whole = Dataset(tmp_path / "a"), Dataset(tmp_path / "whole")
        assert (ours.failed, ours.state) == (whole.failed, whole.state)

    def test_text_of_others_is_shown_as_it_is(self, tmp_path: Path, capsys: Any) -> None:
        run_job(job(episodes=2), tmp_path)
        change_job(tmp_path, env="[/bold] [red]x[/red] :smile: \x1b[31m\x07")
        assert main(["info", str(tmp_path)]) == 0
        assert rows_of(capsys.readouterr().out)["env"] == "[/bold] [red]x[/red] :smile: \ufffd[31m\ufffd"
