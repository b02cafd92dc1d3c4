"""The command line with envs, policies and wrappers of one's own, and the size of what a job writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector import Dataset
from collector.jobs.cli import main
from tests.backends import FULL
from tests.job_envs import HERE, ROOT

PONG = ["--env", "ALE/Pong-v5", "--num-envs", "2", "--max-episode-steps", "30"]


def collect(folder: Path, *arguments: str) -> Dataset:
    """What `run` with these arguments writes."""
    assert main(["run", *arguments, "--no-plot", "--out", str(folder)]) == 0
    return Dataset(folder)


def fresh(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, in which nothing is imported yet."""
    command = [sys.executable, "-m", "collector", *arguments]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


@FULL
class TestAtari:
    def test_it_runs_though_ale_py_was_not_imported(self, tmp_path: Path, capsys: Any) -> None:
        pytest.importorskip("ale_py")
        done = fresh("run", *PONG, "--episodes", "2", "--no-plot", "--out", str(tmp_path / "a"))
        assert done.returncode == 0, done.stderr
        data = Dataset(tmp_path / "a")
        assert data[0].obs.shape == (31, 210, 160, 3)
        assert main(["verify", str(tmp_path / "a"), "--replay", "1"]) == 0
        assert "1 of 1 episodes, played again with the policy, are the same bit for bit" in capsys.readouterr().out

    def test_without_ale_py_it_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        monkeypatch.setitem(sys.modules, "ale_py", None)
        assert main(["run", *PONG, "--episodes", "2", "--out", str(tmp_path / "a")]) == 2
        assert "ALE/Pong-v5 needs ale-py: pip install 'vecenv[atari]'" in capsys.readouterr().err

    @pytest.mark.slow
    def test_pictures_are_compressed_on_demand(self, tmp_path: Path) -> None:
        pytest.importorskip("ale_py")
        many = [*PONG, "--episodes", "4", "--backend", "dummy", "--shard-bytes", str(2**21)]
        plain, small = collect(tmp_path / "plain", *many), collect(tmp_path / "small", *many, "--compress", "true")
        assert plain.nbytes > 4 * 30 * 210 * 160 * 3
        assert small.nbytes < plain.nbytes / 50
        for one, other in zip(plain, small, strict=True):
            np.testing.assert_array_equal(one.obs, other.obs)


class TestSize:
    @FULL
    def test_a_dry_run_says_how_much_would_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        monkeypatch.chdir(tmp_path)
        arguments = ["--env", "CartPole-v1", "--num-envs", "2", "--backend", "dummy"]
        assert main(["run", *arguments, "--steps", "5000", "--dry-run"]) == 0
        assert list(tmp_path.iterdir()) == [], "and nothing is"
        size = json.loads(capsys.readouterr().out)["size"]
        data = collect(tmp_path / "a", *arguments, "--steps", "5000")
        assert data.nbytes == pytest.approx(size["bytes"], rel=0.25)  # heads of shards are left out
        assert size["bytes_per_step"] == size["plain_bytes_per_step"] > size["compressed_bytes_per_step"]
        assert size["bytes_per_hour"] == pytest.approx(
            size["steps_per_second"] * size["bytes_per_step"] * 3600, rel=0.01
        )
        assert re.fullmatch(
            r"about 1\d\d\.\d KiB for the job: \d\d bytes a step, .* an hour at .* steps/s", size["in_words"]
        )
        arguments = ["--env", "Pendulum-v1", "--backend", "dummy", "--max-episode-steps", "50", "--episodes", "40"]
        assert "note: about" not in capsys.readouterr().out, "it is small"
        assert main(["run", *arguments, "--dry-run", "--compress", "true"]) == 0
        size = json.loads(capsys.readouterr().out)["size"]
        assert size["bytes"] == pytest.approx(40 * 50 * size["compressed_bytes_per_step"], rel=0.01)
        data = collect(tmp_path / "b", *arguments, "--compress", "true")
        assert data.nbytes == pytest.approx(size["bytes"], rel=0.3)

    def test_an_env_that_cannot_be_made_is_found(self, capsys: Any) -> None:
        failing = ["--env", f"{HERE}:Counting", "--env-kwargs", '{"every": 1}']
        for env, message in (
            (["--env", "CartPoll-v1"], "there is no env CartPoll-v1"),
            (failing, "fails in its first steps: OverflowError"),
        ):
            assert main(["run", *env, "--steps", "9", "--backend", "dummy", "--on-error", "raise", "--dry-run"]) == 2
            assert message in capsys.readouterr().err

    @FULL
    def test_a_large_job_says_so_when_it_begins(self, tmp_path: Path, capsys: Any) -> None:
        large = ["--env", f"{HERE}:Large", "--num-envs", "1", "--backend", "dummy", "--on-error", "raise"]
        with pytest.raises(OverflowError, match="enough"):  # the env itself ends the job
            main(["run", *large, "--episodes", str(20_000), "--no-plot", "--out", str(tmp_path / "a")])
        [note] = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: "))
        assert note.startswith("note: about 1.5 GiB for 20,000 episodes, 78.1 KiB a step; ")
        assert "compress = true makes it smaller" in note

    def test_a_disk_without_room_is_said(self) -> None:
        from collector import Job
        from collector.jobs.report import size_note
        from collector.jobs.run import JobState

        state = JobState(Job(env="CartPole-v1", steps=1000, compress=True), Path("a"), bytes_of_step=1024.0)
        assert size_note(state, free=2e6) == ""
        assert size_note(state, free=2**19) == (
            "note: about 1,000.0 KiB for 1,000 steps, 1.0 KiB a step; only 512.0 KiB are free there"
        )


class TestOwnCode:
    """A module in the current folder, as the first thing that a user tries."""

    MODULE = """
import gymnasium
import numpy as np

def always_left(obs):
    return np.zeros(len(obs), np.int64)

class Shifted(gymnasium.ObservationWrapper):
    def __init__(self, env, by=1.0):
        super().__init__(env)
        self.by = by
        box = env.observation_space
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, box.shape, box.dtype)

    def observation(self, obs):
        return obs + self.by

def make_env(**kwargs):
    return gymnasium.make("CartPole-v1", **kwargs)
"""

    @pytest.fixture
    def here(self, tmp_path: Path) -> Path:
        (tmp_path / "mine.py").write_text(self.MODULE)
        return tmp_path

    @FULL
    def test_policy_wrapper_and_kwargs(self, here: Path, capsys: Any) -> None:
        flags = ["--env", "mine:make_env", "--env-kwargs", '{"sutton_barto_reward": true}']
        flags += ["--policy", "mine:always_left"]
        done = fresh("run", *flags, "--wrapper", "mine:Shifted", "--episodes", "9", "--no-plot", "--out", "a", cwd=here)
        assert done.returncode == 0, done.stderr
        data = Dataset(here / "a")
        assert data.head["job"]["wrappers"] == ["mine:Shifted"]
        every = data.transitions()
        assert not every.action.any()
        assert abs(every.obs[every.step == 0] - 1).max() <= 0.05
        assert set(every.reward) == {0.0, -1.0}
        assert main(["resume", str(here / "a")]) == 2
        assert "which is code: where you trust the folder, pass --allow-import mine" in capsys.readouterr().err

    def test_several_of_them_and_with_arguments(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        wrappers = '["gymnasium.wrappers:FlattenObservation", {"call": "mine:Shifted", "kwargs": {"by": 5.0}}]'
        flags = ["--env", "CartPole-v1", "--episodes", "3", "--wrappers", wrappers, "--transform", "StepCounter"]
        monkeypatch.syspath_prepend(str(here))
        data = collect(here / "a", *flags, "--backend", "dummy", "--max-episode-steps", "7")
        assert data.lengths.max() == 7
        every = data.transitions()
        assert abs(every.obs["observation"][every.step == 0] - 5).max() <= 0.05
        assert every.obs["step_count"][:, 0].tolist() == every.step.tolist()

    def test_what_is_missing_is_named(self, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        monkeypatch.syspath_prepend(str(here))
        flags = ["--env", "CartPole-v1", "--episodes", "3", "--backend", "dummy", "--no-plot", "--out", str(here / "a")]
        for wrong, message in (
            (["--policy", "mine:always_right"], "there is no 'always_right' in mine, which the job names"),
            (["--policy", "nine:policy"], "nine:policy cannot be imported: No module named 'nine'"),
            (["--wrapper", "mine:Shifter"], "there is no 'Shifter' in mine, which the job names"),
            (
                ["--wrapper", "Shifted"],
                "there is no wrapper 'Shifted' in gymnasium.wrappers that goes by its name alone; any other is",
            ),
            (["--transform", "VecNom"], "that goes by its name alone; did you mean 'VecNorm'?"),
            (["--env-kwargs", "3"], "env_kwargs: Expected `object`, got `int`"),
            (["--env-kwargs", '{"gravity": 3}'], "unexpected keyword argument 'gravity'"),
        ):
            assert main(["run", *flags, *wrong]) == 2
            assert message in capsys.readouterr().err
