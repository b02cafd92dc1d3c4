"""The commands on the page "Envs in another Python, container or host" run envs."""

import re
import sys

import pytest

from tests.support.commands import COMMAND
from tests.support.paths import ROOT
from tests.support.places import place
from vecenv import SubprocVectorEnv

PAGE = (ROOT / "docs/guides/elsewhere.md").read_text()
PYTHON = COMMAND[:3]
"""Words that run the interpreter of the tests, with the path of this checkout."""
RECIPES = {"here": "/opt/libero", "bwrap": "bwrap", "podman": "podman", "ssh": "gpu-7"}


def recipe(word):
    """Return the command of the block on the page that has this word."""
    [block] = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.S) if word in each]
    names = {"sys": sys}
    exec(block, names)
    return names["command"]


@pytest.mark.parametrize("name", ["here", *(pytest.param(each, marks=pytest.mark.slow) for each in list(RECIPES)[1:])])
def test_a_recipe_runs_envs(name, tmp_path):
    command = recipe(RECIPES[name])
    assert command[-2:] == ["-m", "vecenv.worker"]
    with place(name, tmp_path) as words:
        if name == "here":
            command = [*PYTHON, *command[1:]]
        elif name == "bwrap":
            command = [*command[: command.index(sys.executable)], *PYTHON, *command[-2:]]
        elif name == "podman":
            assert set(command[: command.index("my-simulator")]) <= set(words)
            command = [*words, *PYTHON, *command[-2:]]
        else:
            host = command.index("gpu-7")
            command = [*command[:host], *words[1:], *PYTHON, *command[-2:]]
        with SubprocVectorEnv(["CartPole-v1"] * 3, num_workers=1, worker_command=command) as venv:
            assert venv.reset(seed=0)[0].shape == (3, 4)
            assert venv.step([0, 1, 0])[1].tolist() == [1, 1, 1]
