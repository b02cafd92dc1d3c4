"""The command line with the user's envs, policies and wrappers, and the size of data sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector import Dataset
from collector.__main__ import main
from tests.support.backends import FULL
from tests.support.paths import ROOT

PONG = ["--env", "ALE/Pong-v5", "--num-envs", "2", "--max-episode-steps", "30"]


def collect(folder: Path, *arguments: str) -> Dataset:
    """Return the output of `run` with these arguments."""
    assert main(["run", *arguments, "--no-plot", "--out", str(folder)]) == 0
    return Dataset(folder)


def fresh(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the command in a new process without imported modules."""
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


class TestHelp:
    def test_it_names_the_command_and_flags_of_no_other(self, capsys: Any) -> None:
        with pytest.raises(SystemExit):
            main(["run", "--help"])
        out = capsys.readouterr().out
        assert out.startswith("usage: python -m collector run [-h] ")
        for text in (
            "--num-envs N     Number of parallel envs. [8]",
            "--wrapper JSON",
            "auto|dummy|ray|shmem|subproc|thread",
        ):
            assert text in out
        assert "{None}" not in out
        assert "(default: True)" not in out
        with pytest.raises(SystemExit):
            main(["run", "--episode", "3"])
        error = capsys.readouterr().err
        assert error.count("--episodes N") == 1
        assert "run python -m collector run --help" in error
        for nothing in ([], ["--help"]):
            with pytest.raises(SystemExit) as ended:
                main(nothing)
            assert ended.value.code == 0
            assert "resume  Resume the job of a folder." in capsys.readouterr().out


class TestOwnCode:
    """Code in a module of the current folder, which users try first."""

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
        assert "which is code: if you trust the folder, pass --allow-import mine" in capsys.readouterr().err

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
                "there is no wrapper 'Shifted' in the list of gymnasium.wrappers; name any other class as",
            ),
            (["--transform", "VecNom"], "in the list of vecenv.transforms; did you mean 'VecNorm'?"),
            (["--env-kwargs", "3"], "env_kwargs: Expected `object`, got `int`"),
            (["--env-kwargs", '{"gravity": 3}'], "unexpected keyword argument 'gravity'"),
        ):
            assert main(["run", *flags, *wrong]) == 2
            assert message in capsys.readouterr().err
