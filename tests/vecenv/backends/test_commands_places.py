"""Worker commands in other places, with the recipes of the page "Envs in another Python, container or host".

Envs run there, and no process stays when the program ends or closes the envs.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.backends import FULL
from tests.support.commands import COMMAND
from tests.support.ledger import wait_until
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


@pytest.fixture(
    scope="module", params=["here", *(pytest.param(name, marks=pytest.mark.slow) for name in [*RECIPES][1:])]
)
def somewhere(request, tmp_path_factory):
    """Return the name of a place, and the words that run a command there."""
    with place(request.param, tmp_path_factory.mktemp("place")) as words:
        yield request.param, words


def recipe(name, words):
    """Return the command of the page for this place, with the names of the tests in place of those of the page."""
    [block] = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.S) if RECIPES[name] in each]
    names = {"sys": sys}
    exec(block, names)
    command = names["command"]
    assert command[-2:] == ["-m", "vecenv.worker"]
    if name == "here":
        return [*PYTHON, *command[1:]]
    if name == "bwrap":
        return [*command[: command.index(sys.executable)], *PYTHON, *command[-2:]]
    if name.startswith("ssh"):
        return [*command[: command.index("gpu-7")], *words[1:], *PYTHON, *command[-2:]]
    own = command[: command.index({"podman": "my-simulator"}.get(name, "--root=/srv/sim"))]
    assert set(own) <= set(words)
    return [*words, *PYTHON, *command[-2:]]


def test_a_recipe_runs_envs(somewhere):
    fns = ["CartPole-v1", ("CartPole-v1", {"max_episode_steps": 7})]
    with SubprocVectorEnv(fns, num_workers=1, worker_command=recipe(*somewhere)) as venv:
        assert venv.reset(seed=0)[0].shape == (2, 4)
        assert venv.step([0, 1])[1].tolist() == [1, 1]
        assert [spec.max_episode_steps for spec in venv.get_env_attr("spec")] == [500, 7]


PROGRAM = """
import json, os, sys
from vecenv import SubprocVectorEnv
command, what = json.loads(sys.argv[1])
fns = [("tests.support.command_envs:Elsewhere", {"what": what})] * 2
venv = SubprocVectorEnv(fns, num_workers=2, worker_command=command, wait_num=1)
venv.reset()
for _ in range(2):
    venv.send([0, 0])
    if what != "hangs" or not _:
        while venv.waiting_id:
            venv.recv()
os.write(1, b"ready\\n")  # in one piece, because the envs print too
sys.stdin.readline()
venv.close()
os.write(1, b"closed\\n")
"""


def read_until(file, lines):
    """Read until each of these lines has come."""
    while lines:
        line = file.readline()
        assert line, f"the program ended before it printed {lines}"
        if line.strip() in lines:
            lines.remove(line.strip())


@contextmanager
def running(command, what):
    """Run the program until its envs have done `what`."""
    arguments, environ = json.dumps([command, what]), {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, arguments], text=True, env=environ, **pipes) as program:
        read_until(program.stdout, ["ready"] + ["hangs"] * 2 * (what == "hangs"))
        yield program
        program.kill()


MORE_ENDS = [("SIGTERM", "starts"), ("close", "hangs"), ("SIGKILL of the command", "starts")]


@pytest.mark.parametrize(
    ("end", "what"), [("SIGKILL", "hangs"), *(pytest.param(*each, marks=FULL) for each in MORE_ENDS)]
)
def test_no_process_is_left(somewhere, end, what):
    before = somewhere[1]
    token = f"VECENV_TEST={secrets.token_hex(8)}"
    with running([*before, "env", token, *COMMAND[1:]], what) as program:
        assert len(processes_with(token)) >= 6  # per worker: worker, guard, child of the env
        if end == "close":
            program.stdin.write("\n")
            program.stdin.flush()
            read_until(program.stdout, ["closed"])
        elif end == "SIGKILL of the command":
            children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
            for pid in children:
                if token in Path(f"/proc/{pid}/cmdline").read_text() or not before:
                    os.kill(int(pid), signal.SIGKILL)
        else:
            program.send_signal(getattr(signal, end))
            program.wait()
        assert left_of(token) == []


LATE_GUARD = """
import os, sys, time
import vecenv.worker
def wait():  # in the guard, which is the first process that the worker forks
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
os.register_at_fork(after_in_child=wait)
vecenv.worker.main([])
"""


def test_a_guard_that_starts_late_ends_the_processes_of_envs(tmp_path):
    """The worker ends first, and has asked its process group to end by SIGTERM, which the group ignores."""
    token, path = f"VECENV_TEST={secrets.token_hex(8)}", tmp_path / "guard may start"
    with running(["env", token, *COMMAND[1:3], "-c", LATE_GUARD, str(path)], "ignores") as program:
        program.kill()
        program.wait()
        wait_until(lambda: len(processes_with(token)) == 4, 60)  # two guards, two children of envs
        path.touch()
        assert left_of(token) == []


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
