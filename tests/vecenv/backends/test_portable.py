"""Fallbacks for other systems, tested on Linux without the Linux-only calls (`VECENV_PORTABLE=1`)."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import FULL
from tests.support.cases import playing
from tests.support.paths import ROOT
from tests.support.programs import run_python
from vecenv import SharedMemoryError, ShmemVectorEnv

BIND = """
from vecenv import ShmemVectorEnv
from vecenv.testing import CountingEnv
with ShmemVectorEnv([CountingEnv] * 2, num_workers=2, context="spawn", affinity=True) as venv:
    venv.reset()
    venv.step([0, 0])
"""
CONTRACT = "(keep_the_contract and ShmemVectorEnv and not Shares) or array_arrives or restarted_worker"


def run_without_the_calls_of_linux(*arguments: str) -> None:
    """Run tests in a process that uses the fallbacks."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environ |= {"VECENV_PORTABLE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, env=environ, text=True, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-8000:]


@FULL
@pytest.mark.timeout(300)
def test_shmem_keeps_the_contract() -> None:
    files = ["tests/vecenv/test_testing.py", "tests/vecenv/backends/test_large_env_fns.py"]
    run_without_the_calls_of_linux(*files, "-m", "not full and not slow and not ray", "-k", CONTRACT)


@FULL
def test_affinity_warns_that_it_has_no_effect() -> None:
    done = run_python("-c", BIND, VECENV_PORTABLE="1")
    assert done.returncode == 0
    assert done.stderr.count("RuntimeWarning: affinity=True has no effect") == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_backends_survive_faults() -> None:
    files = ["tests/faults/test_vector_envs.py", *(f"tests/vecenv/backends/test_{k}.py" for k in ("start", "leaks"))]
    run_without_the_calls_of_linux("-n", "2", "--dist", "worksteal", *files)


def test_a_batch_larger_than_the_free_disk_space_is_refused_where_space_cannot_be_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vecenv.portability.PORTABLE", True)
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=256, f_frsize=4096))
    space = spaces.Box(0, 255, (2**20,), np.uint8)
    with pytest.raises(SharedMemoryError, match=r"^2\.0 MiB .* for 2 envs of 1\.01 MiB, but only 1\.0 MiB are free in"):
        ShmemVectorEnv(playing(space, *[[space.low]] * 2))
