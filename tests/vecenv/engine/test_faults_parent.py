"""A program that is killed, or drops its vector envs, leaves no process. test_program_ends.py has programs that end."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.backends import FULL, full
from tests.support.faulty import Counter, HangsOnStep
from tests.support.ledger import CLOSED, Column, appears, column_params, gone, pids
from tests.support.paths import ROOT
from tests.support.places import left_of, processes_with
from vecenv import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv


@contextmanager
def driver(folder: Path, *args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a driver of `tests.support.drivers`, and a token in the environment of all its processes.

    The driver has a process group of its own, as in a terminal. All its processes are ended after the test.
    """
    command = [sys.executable, "-m", "tests.support.drivers", args[0], str(folder), *args[1:]]
    name = f"of {folder}"
    environ = {**os.environ, "VECENV_TEST": name}
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, text=True, stderr=subprocess.PIPE, start_new_session=True
    ) as program:
        try:
            yield program, f"VECENV_TEST={name}\0"
        finally:
            for pid, _ in processes_with(name):
                os.kill(int(pid), signal.SIGKILL)


@pytest.mark.guarantee("G9.5")
@pytest.mark.parametrize(
    ("context", "names", "number"),
    [
        ("forkserver", ["Shmem"], signal.SIGKILL),
        pytest.param("fork", ["Subproc"], signal.SIGTERM, marks=FULL),
        pytest.param("fork", ["Shmem"], signal.SIGHUP, marks=FULL),
        pytest.param("spawn", ["Subproc", "Shmem"], signal.SIGKILL, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_workers_in_any_state_and_their_children_die_with_the_program(
    context: str, names: list[str], number: int, tmp_path: Path
) -> None:
    """SIGTERM goes to the program (as from a scheduler), SIGHUP to its group (as from a terminal)."""
    with driver(tmp_path, "every_state", context, *names) as (program, token):
        appears(tmp_path / "ready", within=60)
        states = json.loads((tmp_path / "ready").read_text())
        assert all(os.getsid(pid) == program.pid for pids in states.values() for pid in pids)
        (os.killpg if number == signal.SIGHUP else os.kill)(program.pid, number)
        left = left_of(token)
        assert program.wait(5) < 0
        assert program.stderr is not None
        noise = program.stderr.read()
    assert left == []
    assert noise == ""


@pytest.mark.parametrize("context", ["forkserver", *full(["fork", "spawn"])])
def test_a_forked_copy_of_the_program_keeps_no_worker_alive(context: str, tmp_path: Path) -> None:
    with driver(tmp_path, "forked_after_a_thread_started_workers", context) as (program, token):
        appears(tmp_path / "ready", within=60)
        ready = json.loads((tmp_path / "ready").read_text())
        program.kill()
        assert all(map(gone, ready["workers"]))
        assert psutil.pid_exists(ready["copy"])
        os.kill(ready["copy"], signal.SIGKILL)
        program.wait()
        assert left_of(token) == []


# Dropped.


@pytest.mark.guarantee("G9.4")
@pytest.mark.parametrize(
    ("column", "errors"),
    [
        (Column(ShmemVectorEnv, "blocks", {"num_workers": 2}), False),
        (Column(SubprocVectorEnv, "async", {"wait_num": 1}), True),
        *(
            pytest.param(*case.values, False, marks=case.marks)
            for case in column_params("blocks", "async", only=RayVectorEnv)
        ),
    ],
)
def test_a_vector_env_that_is_dropped_warns_and_leaves_nothing(
    column: Column, errors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bounded time, even if envs hang in async mode, or if warnings are errors."""
    monkeypatch.setattr("vecenv.engine.lifetime.CLOSE_TIMEOUT", 0.3)
    unraisable: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda reported: unraisable.append(str(reported.exc_value)))
    monkeypatch.setattr(sys, "excepthook", lambda kind, value, trace: unraisable.append(str(value)))
    kind: Any = partial(HangsOnStep, at=1) if column.is_async else Counter
    venv = column.backend([partial(kind, i) for i in range(4)], **column.options)
    venv.reset()
    processes = set(pids(venv))
    if column.is_async:
        venv.send([0] * 4)
    begin, text = time.monotonic(), f"unclosed {column.backend.__name__}"
    if errors:  # warnings are errors in all tests
        venv = gc.collect()
        assert [each for each in unraisable if text in each]
    else:
        with pytest.warns(ResourceWarning, match=text):
            venv = gc.collect()  # dropped, and collected
    assert time.monotonic() - begin < CLOSED
    assert all(gone(pid) for pid in processes)


@pytest.mark.guarantee("G9.4")
def test_a_dummy_vector_env_that_is_dropped_closes_its_envs_and_warns_of_nothing() -> None:
    """Because it holds no process (as gymnasium's SyncVectorEnv)."""
    closed: list[int] = []

    class Closes(Counter):
        def close(self) -> None:
            closed.append(self.id)

    venv = DummyVectorEnv([partial(Closes, i) for i in range(2)])
    venv.reset()
    del venv
    gc.collect()
    assert closed == [0, 1]
