"""Fallbacks for other systems, tested on Linux without the Linux-only calls (`VECENV_PORTABLE=1`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import FULL
from tests.support.cases import playing
from tests.support.paths import ROOT
from vecenv import SharedMemoryError, ShmemVectorEnv

CONTRACT = """
import warnings
from functools import partial
import numpy as np
from vecenv import ShmemVectorEnv
from vecenv.testing import CountingEnv, check_vector_env

class HoldsArray(CountingEnv):
    def __init__(self, array):
        super().__init__()
        self.array = array
    def fill(self, value):
        self.array[:] = value
    def sum(self):
        return self.array.sum()

check_vector_env(ShmemVectorEnv)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with ShmemVectorEnv([CountingEnv] * 2, num_workers=2, context="spawn", affinity=True) as venv:
        venv.reset()
        venv.step([0, 0])
array = np.ones(40_000)
with ShmemVectorEnv([partial(HoldsArray, array) for _ in range(3)], num_workers=2) as venv:
    venv.call("fill", 2, id=1)
    assert venv.call("sum") == [40_000, 80_000, 40_000]
assert ["affinity=True has no effect" in str(warning.message) for warning in caught] == [True], caught
"""
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
    "VECENV_PORTABLE": "1",
    "PYTHONPATH": str(ROOT),
}
"""Environment of a process that uses the fallbacks."""


@FULL
@pytest.mark.timeout(300)
def test_shmem_keeps_the_contract_without_the_calls_of_linux(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONTRACT]
    done = subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_backends_survive_faults_without_the_calls_of_linux() -> None:
    files = ["tests/faults/test_vector_envs.py", *(f"tests/vecenv/backends/test_{k}.py" for k in ("start", "leaks"))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "worksteal", *files]
    done = subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-8000:]


def test_a_batch_larger_than_the_free_disk_space_is_refused_where_space_cannot_be_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vecenv.portability.PORTABLE", True)
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=256, f_frsize=4096))
    space = spaces.Box(0, 255, (2**20,), np.uint8)
    with pytest.raises(SharedMemoryError, match=r"^2\.0 MiB .* for 2 envs of 1\.01 MiB, but only 1\.0 MiB are free in"):
        ShmemVectorEnv(playing(space, *[[space.low]] * 2))
