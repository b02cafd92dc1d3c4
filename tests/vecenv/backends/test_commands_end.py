"""No process of a worker command stays when the program ends or closes the envs, wherever the command runs."""

import json
import os
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
from tests.support.places import PLACES, left_of, place, processes_with

pytestmark = pytest.mark.timeout(600)  # the first test in a chroot makes it
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


@pytest.fixture(
    scope="module", params=[PLACES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in PLACES[1:])]
)
def before(request, tmp_path_factory):
    """Return the words that run a command in a place."""
    with place(request.param, tmp_path_factory.mktemp("place")) as words:
        yield words


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


@pytest.mark.parametrize(
    ("end", "what"),
    [
        ("SIGKILL", "hangs"),
        *(
            pytest.param(end, what, marks=FULL)
            for end, what in (("SIGTERM", "starts"), ("close", "hangs"), ("SIGKILL of the command", "starts"))
        ),
    ],
)
def test_no_process_is_left(before, end, what):
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
