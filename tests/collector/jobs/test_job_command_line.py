"""The commands: what they write, print and return."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector import Dataset, episode_seed, run_job
from collector.__main__ import main
from tests.support.backends import FULL
from tests.support.command_line import JobFailedError, command
from tests.support.job_envs import HERE, change_job, counting, job, process, stop_at, stopped
from tests.support.paths import ROOT

FILE = 'env = "CartPole-v1"\nnum_envs = 4\nbackend = "dummy"\nepisodes = 12\nseed = 3\n'
PONG = ["--env", "ALE/Pong-v5", "--num-envs", "2", "--max-episode-steps", "30"]
QUICK = ["--backend", "dummy", "--no-plot"]
WHERE = ["--env", "CartPole-v1", "--episodes", "3", *QUICK]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "cartpole.toml").write_text(FILE)
    return tmp_path / "cartpole.toml"


def collect(folder: Path, *words: str) -> Dataset:
    """Return the output of `run` with these arguments."""
    done = command("run", *words, "--no-plot", "--overwrite", "--out", folder)
    assert done.code == 0, done.error
    return Dataset(folder)


def rows_of(table: str) -> dict[str, str]:
    """Return the names and values of a printed table."""
    cells = (line.split("│")[1:3] for line in table.splitlines() if line.count("│") == 3)
    return {name.strip(): value.strip() for name, value in cells}


# Running.


@pytest.mark.usefixtures("fonts")
def test_a_job_runs_and_is_looked_at(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    done = command("run", file, "--set", "seed=4", "--num-envs", 2, "--out", folder)
    assert done.code == 0
    assert done.out.startswith('Job: {"env": "CartPole-v1", "episodes": 12, "seed": 4, "num_envs": 2')
    assert "Collecting 12 episodes of CartPole-v1 from 2 envs into" in done.out
    assert "\x1b" not in done.out
    assert (folder / "returns.png").read_bytes().startswith(b"\x89PNG")
    data = Dataset(folder)
    assert (len(data), data.head["job"]["seed"]) == (12, 4)
    assert "12 of a job of 12 episodes" in command("info", folder).out
    with open(folder / "metrics.jsonl", "a") as metrics:
        metrics.write('{"steps": 1')  # half a line does not count
    info = command("info", folder, "--json").json()
    assert [info[name] for name in ("status", "episodes", "steps", "repeatable")] == ["complete", 12, data.steps, True]
    assert info["bytes"] == sum(path.stat().st_size for path in folder.glob("shards/*/*.npy"))
    assert info["lengths"]["max"] == data.lengths.max()
    assert info["steps_per_second"] > 0
    last = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()[:-1]][-1]
    assert last["steps"] == data.steps
    assert {"time", "episodes", "steps_per_second", "mean_return", "bottleneck"} <= last.keys()
    done = command("verify", folder, "--replay", 3)
    assert "3 of 3 episodes, played again with the policy, are the same bit for bit" in done.out
    assert command("plot", folder, "--out", tmp_path / "b.png").code == 0
    assert (tmp_path / "b.png").is_file()
    assert "the job was already complete" in command("resume", folder, "--no-plot").out
    done = command("run", file, "--resume", "--set", "seed=5", "--out", folder)
    assert (done.code, "has changed: seed was 4, and is 5" in done.error) == (2, True)


PENDULUM = ["--env", "Pendulum-v1", "--max-episode-steps", "400", "--steps", "100", "--num-envs", "1", *QUICK]


@pytest.mark.filterwarnings("ignore:.*latest versioned env")
@pytest.mark.parametrize(
    ("words", "out", "error"),
    [
        (["--env", "CartPole", "--steps", "1e2", *QUICK], "data/CartPole", ""),
        (["cartpole.toml", "--no-plot", "--json", "--out", "a"], '"status": "complete"', "Collecting 12 episodes"),
        (["cartpole.toml", "--dry-run", "--backend", "shmem"], '"out": "data/cartpole"', ""),
        (PENDULUM, "note: no episode has ended in 1", ""),
        ([*WHERE, "--cluster=auto", "--cluster-actors", "2", "--dry-run"], '"address": "auto",\n    "actors": 2', ""),
    ],
    ids=["flags", "json", "dry run", "no end", "cluster"],
)
def test_what_a_run_prints(words: list[str], out: str, error: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    done = command("run", *words)
    assert (done.code, out in done.out, error in done.error) == (0, True, True)
    if "--json" in words or "--dry-run" in words:
        assert done.json()["job"]["env"] == "CartPole-v1"  # JSON is alone on standard output
    folders = [path for path in file.parent.rglob("*") if (path / "dataset.json").exists()]
    assert len(folders) == ("--dry-run" not in words)


def test_arguments_of_an_env_may_have_its_limit(tmp_path: Path) -> None:
    words = ["--env", "CartPole-v1", "--episodes", "3", "--backend", "dummy", "--env-kwargs", '{"max_episode_steps":5}']
    for more, length in (([], 5), (["--wrapper", "FlattenObservation"], 5), (["--max-episode-steps", "4"], 4)):
        assert collect(tmp_path / "a", *words, *more).lengths.tolist() == [length] * 3


@pytest.mark.usefixtures("fonts")
def test_an_env_may_change_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    flags = ["--env", f"{HERE}:Moving", "--env-kwargs", json.dumps({"folder": str(tmp_path / "other")})]
    for words in (
        ["run", *flags, "--episodes", "3", "--backend", "dummy", "--out", "a"],
        ["resume", "a", "--allow-import", HERE, "--no-plot"],
    ):
        monkeypatch.chdir(tmp_path)
        done = command(*words, "--json")
        assert (done.code, done.json()["folder"]) == (0, "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "other"]
    assert len(Dataset(tmp_path / "a")) == 3
    assert (tmp_path / "a/returns.png").exists()


def test_a_command_that_a_signal_ends_keeps_whole_episodes_and_names_the_way_to_resume(tmp_path: Path) -> None:
    kwargs = json.dumps(counting(every=episode_seed(0, 40), how="signal")["env_kwargs"])
    words = ["run", "--env", f"{HERE}:Counting", "--env-kwargs", kwargs, "--episodes", 100, "--num-envs", 3, *QUICK]
    done = command(*words, "--out", tmp_path / "a[/b]")
    assert done.code == 130
    assert f"python -m collector resume '{tmp_path / 'a[/b]'}'" in done.out
    assert 30 < len(Dataset(tmp_path / "a[/b]")) < 100


# Packages, streams and disks.


MISSING = [
    ("torch.utils.tensorboard", ["run", *WHERE, "--tensorboard"], "pip install tensorboard"),
    ("matplotlib.figure", ["plot", "done"], "the picture needs matplotlib: pip install 'vecenv[job]'"),
    ("matplotlib.figure", ["run", *WHERE[:-1]], "pip install 'vecenv[job]'; or use --no-plot"),
    ("ale_py", ["run", *PONG, "--episodes", "2"], "ALE/Pong-v5 needs ale-py: pip install 'vecenv[atari]'"),
]


def test_a_missing_package_is_named_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_job(job(episodes=1, num_envs=1), tmp_path / "done")
    monkeypatch.chdir(tmp_path)
    for package, words, advice in MISSING:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            done = command(*words)
        assert (done.code, advice in done.error) == (2, True), words
        assert [path.name for path in tmp_path.iterdir()] == ["done"], words


@FULL
def test_an_error_names_the_libraries_that_a_run_needs(tmp_path: Path) -> None:
    """One program forks a child for each missing library. The help needs none that takes long to import."""
    words = f"run --env CartPole-v1 --steps 9 --out {tmp_path / 'a'}".split()
    code = f"""
import contextlib, os, sys
codes = []
for library in ("", "msgspec", "tyro", "rich", "matplotlib"):
    if not os.fork():
        sys.modules[library] = None
        from collector.__main__ import main
        if library:
            sys.exit(main({words}))
        with contextlib.suppress(SystemExit):
            main(["run", "--help"])
        sys.exit(10 * len(sys.modules.keys() & {{"torch", "rich", "matplotlib"}}))
    codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
print(codes)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[0, 2, 2, 2, 2]"
    assert done.stderr.count("pip install 'vecenv[job]'") == 4
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "a").exists()


def test_output_that_cannot_be_written_ends_no_command(file: Path, tmp_path: Path) -> None:
    """The terminal cannot encode the folder, or the caller has closed the streams."""
    folder = tmp_path / "Läufe"
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), "ascii")):
        assert main(["run", str(file), "--no-plot", "--out", str(folder)]) == 0
    # No data file gets the descriptor of a closed stream.
    code = f"import os; from collector.__main__ import main; main(['info', {str(folder)!r}]); os.write(1, b'from C')"
    subprocess.run(f"{sys.executable} -c {shlex.quote(code)} <&- >&- 2>&-", shell=True, cwd=ROOT, check=True)


@pytest.mark.usefixtures("fonts")
def test_pictures_that_cannot_be_written_are_said_in_a_line(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    run_job(job(num_envs=1, episodes=1), tmp_path / "a")
    (tmp_path / "file").touch()
    (tmp_path / "b").mkdir()
    inside = f"is inside of the data set {tmp_path / 'a'}; choose another place"
    for word, out, text in (
        *(("plot", out, f"cannot write to {tmp_path / out}: ") for out in ("none/a.png", "b")),
        *(("video", out, f"cannot write to {tmp_path / out}: ") for out in ("file/videos", "file")),
        *((word, "a/my pictures", inside) for word in ("plot", "video")),
    ):
        done = command(word, tmp_path / "a", "--out", tmp_path / out)
        assert (done.code, text in done.error) == (1, True), (word, out)
    assert not (tmp_path / "a/my pictures").exists(), "the job could not be resumed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "file"]


@pytest.mark.usefixtures("fonts")
def test_a_job_whose_picture_cannot_be_written_has_succeeded(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(fd: int, data: Any) -> None:
        os.write(fd, data) if isinstance(data, bytes) else os.writev(fd, data)
        if isinstance(data, bytes) and data.startswith(b"\x89PNG"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("collector.store.safe_folder.write", write)
    done = command("run", file, "--out", tmp_path / "a")
    assert (done.code, "complete" in done.out, "No space left" in done.out) == (0, True, True)
    assert not [path for path in (tmp_path / "a").iterdir() if "png" in path.name]


# Tables.


def test_the_last_table_of_a_job_and_info_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    stopped(run_job, job(steps=900), tmp_path / "a", on_progress=stop_at(9))
    for words in (["resume", "--no-plot"], ["resume", "--no-plot"], ["info"]):  # the second has nothing to do
        rows = rows_of(command(*words, tmp_path / "a").out)
        data = Dataset(tmp_path / "a")
        assert rows["episodes"].startswith(f"{len(data)} ")
        assert rows["steps"].split()[0] == f"{data.steps:,}"
        for name, values in (("return", data.returns), ("length", data.lengths)):
            assert rows[name].startswith(f"mean {values.mean():,.1f}, deviation {values.std():,.1f}, from ")


def test_failures_are_those_of_the_whole_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    failing = counting(every=7)
    with pytest.raises(JobFailedError, match="2 episodes failed"):
        run_job(job(**failing, episodes=40, max_failed=1), tmp_path / "a")
    assert len(Dataset(tmp_path / "a").state["skipped"]) == 2
    resume = ["resume", "--no-plot", "--allow-import", HERE, "--set", "max_failed=9"]
    tables = [rows_of(command(*words, tmp_path / "a").out) for words in (resume, ["info"])]
    assert tables[0]["failures"] == tables[1]["failures"] != "none"
    run_job(job(**failing, episodes=40), tmp_path / "whole")
    ours, whole = Dataset(tmp_path / "a"), Dataset(tmp_path / "whole")
    assert (ours.failed, ours.state) == (whole.failed, whole.state)
    assert command("info", tmp_path / "a", "--json").json()["failed"] == whole.failed


def test_text_of_others_is_shown_as_it_is_and_cannot_move_the_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    run_job(job(episodes=2), tmp_path)
    change_job(tmp_path, env="[/bold] [red]x[/red] :smile: \x1b[31m\x07")
    assert rows_of(command("info", tmp_path).out)["env"] == "[/bold] [red]x[/red] :smile: \ufffd[31m\ufffd"
    head = json.loads((tmp_path / "dataset.json").read_text())
    for name in ("version", "format"):
        (tmp_path / "dataset.json").write_text(json.dumps({**head, name: "\x1b[2J"}))
        done = command("info", tmp_path)
        assert (done.code, "\x1b" in done.error) == (1, False)


# Pictures, and Atari.


@pytest.mark.slow  # TensorBoard takes seconds to import
def test_tensorboard_reads_what_a_job_wrote_for_it(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    data = collect(tmp_path / "a", "--env", "CartPole-v1", "--episodes", "40", "--backend", "dummy", "--tensorboard")
    events = EventAccumulator(str(tmp_path / "a/tensorboard")).Reload()
    last = json.loads((tmp_path / "a/metrics.jsonl").read_text().splitlines()[-1])
    numbers = {name for name, value in last.items() if isinstance(value, (int, float))} - {"time"}  # has a wall time
    assert set(events.Tags()["scalars"]) == {f"job/{name}" for name in numbers}
    for name in numbers:
        newest = events.Scalars(f"job/{name}")[-1]
        assert (newest.value, newest.step) == (pytest.approx(last[name], rel=1e-6), data.steps)


@FULL
@pytest.mark.parametrize("env", ["Drawn", "DrawnOnSurface"])
def test_a_video_has_all_pictures_in_an_even_size(env: str, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    cv2 = pytest.importorskip("cv2")
    run_job(job(env=f"{HERE}:{env}", episodes=3), tmp_path)
    done = command("video", tmp_path, "--episodes", 2, 0, "--allow-import", HERE)
    paths = [tmp_path / f"videos/episode-00000{number}.mp4" for number in (0, 2)]
    assert done.out == "".join(f"{path}\n" for path in paths)
    reader, frames = cv2.VideoCapture(str(paths[1])), list[Any]()
    assert reader.get(cv2.CAP_PROP_FPS) == 10
    while (read := reader.read())[0]:
        frames.append(np.asarray(read[1]))
    reader.release()
    assert [frame.shape for frame in frames] == [(34, 52, 3)] * 7
    for step, frame in enumerate(frames):
        assert abs(frame.astype(int) - 40 * step).max() <= 6


OFFSET = {"env_kwargs": {"offset": 1}}


@FULL
@pytest.mark.parametrize(
    ("env", "changes", "words", "code", "text"),
    [
        ("Drawn", OFFSET, [], 0, "(not as it was stored: obs differs from step 0 on)"),
        ("Drawn", {}, ["--episodes", "1"], 1, "videos: Is a directory; pass another --out"),
        ("Drawn", {}, ["--episodes", "7"], 2, "has no episode 7; it has 3"),
        ("Undrawn", {}, [], 2, "cannot be rendered: RuntimeError: no OpenGL context"),
        ("WithoutModes", {}, [], 2, 'WithoutModes cannot be made with render_mode="rgb_array": TypeError'),
    ],
)
def test_a_video_that_is_not_as_it_was_or_cannot_be_made_is_said(
    env: str, changes: Any, words: list[str], code: int, text: str, tmp_path: Path
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    run_job(job(env=f"{HERE}:{env}", episodes=3), tmp_path)
    change_job(tmp_path, **changes)
    (tmp_path / "videos/episode-000001.mp4").mkdir(parents=True)
    done = command("video", tmp_path, *words, "--allow-import", HERE)
    assert (done.code, text in done.out + done.error) == (code, True)


@FULL
def test_atari_runs_though_ale_py_was_not_imported(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    words = ["run", *PONG, "--episodes", "2", "--no-plot", "--out", str(tmp_path / "a")]
    with process("-m", "collector", *words) as running:
        _, error = running.communicate(timeout=300)
    assert running.returncode == 0, error
    assert Dataset(tmp_path / "a")[0].obs.shape == (31, 210, 160, 3)
    found = command("verify", tmp_path / "a", "--replay", 1)
    assert (found.code, "1 of 1 episodes, played again with the policy" in found.out) == (0, True)
