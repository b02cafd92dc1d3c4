"""Library modules that env functions import are imported once for all workers."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from tests.support.backends import full
from tests.support.ledger import gone, kill, pids
from tests.support.paths import ROOT
from vecenv import ShmemVectorEnv, WorkerDiedError, WorkerTimeoutError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or "VECENV_PORTABLE" in os.environ, reason="modules are imported once only on Linux"
)

LIBRARY = """
import os, threading
VALUE = 1
threads = [threading.Thread(target=bytearray, args=(9,)) for _ in range(20)]
for thread in threads:
    thread.start()
    thread.join()  # returns before the system removes the thread
with open({log!r}, "a") as file:
    print(os.getpid(), file=file)
"""
ENVS = """
import os, threading, gymnasium, {library}
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self):
        import {library} as library
        self.pid = os.getpid()
        self.seen = library.VALUE, os.environ.get("VECENV_TEST"), threading.active_count(), {library}.__file__
    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {{}}
    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {{}}
"""


class Project:
    """Module of envs in the user's folder, and a library that logs its imports."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log, self.library = folder / "log", folder / "site-packages" / f"library_{folder.name}.py"
        self.library.parent.mkdir()
        self.write()
        envs = folder / f"envs_{folder.name}.py"
        envs.write_text(ENVS.format(library=self.library.stem))
        for path in (self.library.parent, folder):
            monkeypatch.syspath_prepend(path)
        self.name = envs.stem

    def write(self, code: str = "") -> None:
        self.library.write_text(LIBRARY.format(log=str(self.log)) + code)

    @functools.cached_property
    def env_fns(self) -> list[Callable[[], Any]]:
        return [importlib.import_module(self.name).Env] * 4

    def importers(self) -> list[int]:
        """Return the pids of the processes that have imported the library, in order."""
        return [int(line) for line in self.log.read_text().split()]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


@pytest.mark.parametrize("form", ["class", *full(["name", "registered id"])])
def test_the_workers_of_all_vector_envs_share_one_import(
    project: Project, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec("Pre/Loaded-v0", entry_point=f"{project.name}:Env")
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    env_fns = project.env_fns
    if form != "class":
        env_fns = [partial(gymnasium.make, spec.id if form == "registered id" else spec, disable_env_checker=True)] * 4
    for num_workers in (2, 4):
        with ShmemVectorEnv(env_fns, num_workers=num_workers) as venv:
            seen = [each[:3] for each in venv.get_env_attr("seen")]
            assert seen == [(1, os.environ.get("VECENV_TEST"), 2)] * 4
            venv.reset()
            kill(pids(venv)[0])  # the same server forks the next worker
            with pytest.raises(WorkerDiedError):
                venv.step([0] * 4)
            venv.reset()
            (server,) = set(project.importers()) - {os.getpid()}
            assert project.importers().count(server) == 1
            assert server not in pids(venv)


def test_a_server_that_was_killed_is_replaced(project: Project) -> None:
    with ShmemVectorEnv(project.env_fns, num_workers=2) as venv:
        venv.reset()
        workers = pids(venv)
        (server,) = set(project.importers()) - {os.getpid()}
        kill(server)
        assert all(map(gone, workers))
        with pytest.raises(WorkerDiedError):
            venv.step([0] * 4)
        venv.reset()
        with ShmemVectorEnv(project.env_fns, num_workers=2) as other:
            other.reset()
    assert len(project.importers()) >= 3


UNFIT = {
    "threads": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "processes": "import subprocess; CHILD = subprocess.Popen(['sleep', '100'], preexec_fn=lambda: None)",
    "leaves .* open": "import socket; SOCKET = socket.socket()",
    "leaves .*log open": "FILE = open(__file__ + '.log', 'w')",
    "random generator": "import numpy as np; RNG = np.random.default_rng()",
}


@pytest.mark.parametrize("reason", [next(iter(UNFIT)), *full([*UNFIT][1:])])
def test_what_an_import_leaves_behind_is_not_inherited(project: Project, reason: str) -> None:
    """The workers then import the modules themselves, as without a server."""
    generator = reason == "random generator"  # vecenv looks for it in the packages of the env functions
    code = UNFIT[reason] if generator else f"if os.getpid() != {os.getpid()}:\n    {UNFIT[reason]}"
    if generator:
        with open(project.library.parent.parent / f"{project.name}.py", "a") as file:
            file.write(f"\n{code}\n")
    else:
        project.write(code)
    for _ in range(2):
        with ShmemVectorEnv(project.env_fns, num_workers=2) as venv:
            assert set(pids(venv)) <= set(project.importers())
            venv.reset()
            venv.step([0] * 4)
            for pid in project.importers()[1:]:
                if pid not in pids(venv):
                    assert gone(pid)
    assert len(project.importers()) == 1 + 1 + 4, "a second vector env starts no server"


@pytest.mark.parametrize("code", ["raise KeyError('broken')", *full(["os._exit(3)", "raise SystemExit"])])
def test_a_module_that_cannot_be_imported_is_the_failure_of_its_envs(project: Project, code: str) -> None:
    project.write(f"if os.getpid() != {os.getpid()}:\n    {code}")
    with pytest.raises(Exception, match=r"broken|exited with code 3|SystemExit"):
        ShmemVectorEnv(project.env_fns, num_workers=2)


def test_an_import_that_hangs_ends_with_start_timeout(project: Project) -> None:
    project.write(f"if os.getpid() != {os.getpid()}:\n    import threading; threading.Event().wait()")
    with pytest.raises(WorkerTimeoutError, match="start_timeout"):
        ShmemVectorEnv(project.env_fns, num_workers=2, start_timeout=1.5)
    assert all(gone(pid) for pid in project.importers()[1:])


def test_workers_see_changed_variables_and_changed_files(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> set[tuple[Any, ...]]:
        with ShmemVectorEnv(project.env_fns, num_workers=2) as venv:
            return {each[:2] for each in venv.get_env_attr("seen")}

    monkeypatch.setenv("VECENV_TEST", "a")
    assert seen() == {(1, "a")}
    monkeypatch.setenv("VECENV_TEST", "b")
    assert seen() == {(1, "b")}
    assert len(project.importers()) == 3
    project.write("VALUE = 22")
    assert seen() == {(22, "b")}
    assert seen() == {(22, "b")}
    assert len(project.importers()) == 4


def test_servers_that_are_no_longer_kept_end_with_their_workers(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vecenv.backends.pool.preloading.MOST_SERVERS", 0)
    with ShmemVectorEnv(project.env_fns, num_workers=2) as venv:
        server = project.importers()[1]
        venv.reset()
        venv.step([0] * 4)
        assert not gone(server, 0)
        workers = pids(venv)
    del venv
    assert all(gone(pid) for pid in [server, *workers])


PROGRAM = """
import subprocess, sys, time, {name} as envs, vecenv
class Spawns(envs.Env):
    def __init__(self):
        super().__init__()
        self.child = subprocess.Popen(["sleep", "100"]).pid
venv = vecenv.ShmemVectorEnv([Spawns] * 2, num_workers=2)
print(*venv.get_env_attr("child"), *venv.get_env_attr("pid"), flush=True)
time.sleep(100)
"""


@pytest.mark.guarantee("G9.5")
def test_nothing_outlives_a_program_that_was_killed(project: Project) -> None:
    path = os.pathsep.join([*sys.path[:2], str(ROOT)])
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(name=project.name)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert program.stdout is not None
    with program, program.stdout:
        started = [int(pid) for pid in program.stdout.readline().split()]
        assert len(started) == 4
        program.kill()
    assert all(gone(pid) for pid in [*started, *project.importers()[1:]])
