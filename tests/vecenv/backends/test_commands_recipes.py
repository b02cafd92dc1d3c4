"""The commands on the page "Envs in another Python, container or host" run envs."""

import re
import secrets
import subprocess
import sys

import pytest

from tests.support.commands import COMMAND
from tests.support.paths import ROOT
from tests.support.places import left_of, network, place, processes_with, ssh_server
from vecenv import SubprocVectorEnv, WorkerDiedError

pytestmark = pytest.mark.timeout(600)  # the first test in a chroot makes it
PAGE = (ROOT / "docs/guides/elsewhere.md").read_text()
PYTHON = COMMAND[:3]
"""Words that run the interpreter of the tests, with the path of this checkout."""
RECIPES = {
    "here": "/opt/libero",
    "bwrap": "bwrap",
    "chroot": "/srv/sim",
    "chroot of a user": "/srv/sim",
    "podman": "podman",
    "ssh": "gpu-7",
    "ssh to another network": "gpu-7",
}
"""A word of the recipe, by place."""


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
        elif name.startswith("ssh"):
            host = command.index("gpu-7")
            command = [*command[:host], *words[1:], *PYTHON, *command[-2:]]
        else:
            own = command[: command.index({"podman": "my-simulator"}.get(name, "--root=/srv/sim"))]
            assert set(own) <= set(words)
            command = [*words, *PYTHON, *command[-2:]]
        with SubprocVectorEnv(["CartPole-v1"] * 3, num_workers=1, worker_command=command) as venv:
            assert venv.reset(seed=0)[0].shape == (3, 4)
            assert venv.step([0, 1, 0])[1].tolist() == [1, 1, 1]


@pytest.mark.slow
def test_a_host_that_does_not_answer_ends_its_workers(tmp_path):
    """The envs start again as soon as the network is back, and the old worker has ended."""
    token = f"VECENV_TEST={secrets.token_hex(8)}"
    with network() as (address, inside), ssh_server(tmp_path, address, inside) as words:
        alive = ["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2"]
        command = [*words[:-1], *alive, address, "env", token, *COMMAND[1:]]
        with SubprocVectorEnv(["CartPole-v1"] * 2, num_workers=1, worker_command=command) as venv:
            venv.reset(seed=0)
            subprocess.run(["ip", "link", "set", inside[-1], "down"], check=True)
            with pytest.raises(WorkerDiedError, match="exited with code 255"):
                venv.step([0, 1])
            assert len(processes_with(token)) == 2  # worker and guard
            subprocess.run(["ip", "link", "set", inside[-1], "up"], check=True)
            assert left_of(token) == []
            venv.reset(seed=0)
            assert venv.step([0, 1])[1].tolist() == [1, 1]
