"""Library modules that env functions import are imported once for all workers."""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from tests.support.backends import FULL, full
from tests.support.ledger import gone, kill, pids
from vecenv import ShmemVectorEnv, WorkerDiedError, WorkerTimeoutError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or "VECENV_PORTABLE" in os.environ, reason="modules are imported once only on Linux"
)

ENVS = """
import os, {library}
from {library} import *
from vecenv.testing import CountingEnv
class Env(CountingEnv):
    def __init__(self):
        super().__init__()
        self.pid, self.seen = os.getpid(), ({library}.VALUE, os.environ.get("VECENV_TEST"))
"""


class Project:
    """Module of envs in the user's folder, and a library that logs the processes that import it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log, self.library = folder / "log", folder / "site-packages" / f"library_{folder.name}.py"
        self.library.parent.mkdir()
        self.write("")
        self.name = f"envs_{folder.name}"
        (folder / f"{self.name}.py").write_text(ENVS.format(library=self.library.stem))
        for path in (self.library.parent, folder):
            monkeypatch.syspath_prepend(path)
        self.env_fns = [importlib.import_module(self.name).Env] * 4

    def write(self, code: str) -> None:
        """Add code to the library that runs in other processes than this one."""
        log = f"import os\nVALUE = 1\nwith open({str(self.log)!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
        self.library.write_text(f"{log}if os.getpid() != {os.getpid()}:\n    {code or 'pass'}\n")

    def importers(self) -> list[int]:
        """Return the pids of the other processes that have imported the library, in order."""
        return [int(line) for line in self.log.read_text().split()][1:]

    def seen(self) -> tuple[Any, ...]:
        with ShmemVectorEnv(self.env_fns, num_workers=2) as venv:
            (found,) = set(venv.get_env_attr("seen"))
        return found


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
            venv.reset()
            kill(pids(venv)[0])
            with pytest.raises(WorkerDiedError):
                venv.step([0] * 4)
            venv.reset()
            assert len(project.importers()) == 1
            assert project.importers()[0] not in pids(venv)


def test_workers_see_changed_variables_and_changed_files(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in "ab":
        monkeypatch.setenv("VECENV_TEST", value)
        assert project.seen() == (1, value)
    project.write("VALUE = 22")
    for _ in range(2):
        assert project.seen() == (22, "b")
    assert len(project.importers()) == 3
    kill(project.importers()[-1])
    assert project.seen() == (22, "b")


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        ("import threading; threading.Event().wait()", WorkerTimeoutError, "start_timeout"),
        pytest.param("raise KeyError('broken')", KeyError, "broken", marks=FULL),
        pytest.param("os._exit(3)", WorkerDiedError, "exited with code 3", marks=FULL),
        pytest.param("raise SystemExit", Exception, "SystemExit", marks=FULL),
    ],
)
def test_a_module_that_cannot_be_imported_is_the_failure_of_its_envs(
    project: Project, code: str, error: type[Exception], says: str
) -> None:
    project.write(code)
    with pytest.raises(error, match=says):
        ShmemVectorEnv(project.env_fns, num_workers=2, start_timeout=1.5)
    assert all(gone(pid) for pid in project.importers())


UNFIT = {
    "thread": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "process": "import subprocess; CHILD = subprocess.Popen(['sleep', '100'], preexec_fn=lambda: None)",
    "socket": "import socket; SOCKET = socket.socket()",
    "file": "FILE = open(__file__ + '.log', 'w')",
    "random generator": "import numpy as np; RNG = np.random.default_rng()",  # which all workers would share
}


@pytest.mark.parametrize("left", full([*UNFIT]))
def test_workers_import_a_module_themselves_if_its_import_leaves_something_behind(project: Project, left: str) -> None:
    project.write(UNFIT[left])
    for _ in range(2):
        with ShmemVectorEnv(project.env_fns, num_workers=2) as venv:
            assert set(pids(venv)) <= set(project.importers())
            venv.reset()
            venv.step([0] * 4)
            assert all(gone(pid) for pid in project.importers() if pid not in pids(venv))
    assert len(project.importers()) == 1 + 4, "a second vector env starts no server"
