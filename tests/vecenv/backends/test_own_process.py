"""Envs that keep state in their process: a process per env gives the numbers of the originals."""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from collector import Dataset, Job, JobError, SyncDataCollector, run_job
from tests.support import process_envs
from tests.support.backends import FULL, RAY, full
from tests.support.ledger import kill, pids
from tests.support.process_envs import SIMULATOR, OneEmulator
from vecenv import (
    AsyncVectorEnv,
    DummyVectorEnv,
    ParallelEnv,
    RayVectorEnv,
    ShmemVectorEnv,
    SyncVectorEnv,
    ThreadVectorEnv,
    WorkerDiedError,
    make_vec,
    tune,
)
from vecenv.testing import CountingEnv

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
N, STEPS = 4, 4
Make = Callable[..., Any]


def summed_rewards(env: Any) -> list[float]:
    """Return the sum of the envs' rewards in each step."""
    try:
        env.reset()
        return [float(np.sum(env.step(np.zeros(N, np.int64))[1])) for _ in range(STEPS)]
    finally:
        env.close()


def of_sb3(name: str, env_fns: list[Any]) -> Any:
    return getattr(importlib.import_module("vecenv.sb3"), name)(env_fns)


def made_by_id(env_fns: list[Any], **options: Any) -> Any:
    spec = gymnasium.envs.registration.EnvSpec("Counts-v0", entry_point=env_fns[0], disable_env_checker=True)
    return make_vec(spec, len(env_fns), **options)


def collected(env_fns: list[Any], **options: Any) -> Any:
    """Return the vector env that a collector chooses."""
    return SyncDataCollector(env_fns, frames_per_batch=N, backend="auto", **options).env


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Function that makes an env of a stand-in for the package bluesky_gym."""
    (tmp_path / "bluesky_gym").mkdir()
    (tmp_path / "bluesky_gym/__init__.py").write_text("import bluesky_gym.envs\n")
    (tmp_path / "bluesky_gym/envs.py").write_text(SIMULATOR)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield partial(gymnasium.make, "bluesky_gym:Simulated-v0")
    gymnasium.registry.pop("Simulated-v0", None)
    for name in ("bluesky_gym", "bluesky_gym.envs"):
        sys.modules.pop(name, None)


@pytest.fixture
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the default for other envs be two workers."""
    monkeypatch.setattr("vecenv.backends.system_limits.usable_cpus", lambda: 2)
    monkeypatch.setattr("vecenv.ray_cluster.free_places", lambda options: 2)


@pytest.mark.guarantee("G6.5")
@pytest.mark.usefixtures("two_cpus")
@pytest.mark.parametrize(
    "make",
    [
        AsyncVectorEnv,
        *full([ShmemVectorEnv, partial(of_sb3, "SubprocVecEnv"), partial(ParallelEnv, N), made_by_id, collected]),
        pytest.param(RayVectorEnv, marks=RAY),
    ],
)
def test_envs_of_a_package_with_one_simulator_get_a_process_each(
    make: Make, simulated: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Without shared memory, because gymnasium leaves its file open.
    original = summed_rewards(gymnasium.vector.AsyncVectorEnv([simulated] * N, False, context="fork"))
    assert original == [N * (step + 1) for step in range(STEPS)]
    with caplog.at_level(logging.INFO, "vecenv"):
        assert summed_rewards(make([simulated] * N)) == original
    assert "bluesky-gym" in caplog.text


@FULL
@pytest.mark.parametrize(
    ("env", "backend"), [("tests.support.process_envs:OneEmulator", "auto"), ("bluesky_gym:Simulated-v0", "shmem")]
)
def test_the_envs_of_a_job_get_a_process_each(env: str, backend: str, simulated: Any, tmp_path: Path) -> None:
    run_job(Job(env=env, episodes=4, num_envs=2, backend=backend, device="cpu"), tmp_path / "data")
    assert Dataset(tmp_path / "data").head["ran_on"]["num_workers"] == 2


def test_too_few_workers_for_envs_with_one_simulator_are_refused(simulated: Any) -> None:
    text = "env 0 is from bluesky-gym, whose envs share state in their process, and its worker runs 2 envs: "
    text += r"leave num_workers \(num_processes, max_concurrency\) out, or pass 2"
    with pytest.raises(ValueError, match=f"^{text}$"):
        ShmemVectorEnv([simulated] * 2, num_workers=1)
    job = Job(env="bluesky_gym:Simulated-v0", episodes=2, num_envs=2, backend="shmem", num_workers=1)
    with pytest.raises(JobError, match=f"^bluesky_gym:Simulated-v0 cannot be made: {text}$"):
        run_job(job, "data")
    assert not Path("data").exists()


@pytest.mark.parametrize(
    "make", [DummyVectorEnv, *full([ThreadVectorEnv, SyncVectorEnv, partial(of_sb3, "DummyVecEnv")])]
)
def test_envs_with_one_simulator_in_this_process_warn(make: Make, simulated: Any, recwarn: Any) -> None:
    make([simulated]).close()
    make([CountingEnv] * 2).close()
    assert not recwarn.list
    with pytest.warns(RuntimeWarning, match="^2 envs are from bluesky-gym, .* ShmemVectorEnv, AsyncVectorEnv") as seen:
        make([simulated] * 2).close()
    assert [warning.filename for warning in seen] == [__file__]


@FULL
def test_tune_measures_only_a_process_per_env_with_one_simulator(simulated: Any) -> None:
    result = tune([simulated] * 2, seconds=0.1)
    assert [(row.backend, row.num_workers) for row in result.rows] == [("shmem", 2)]


@pytest.fixture(autouse=True)
def no_open_emulators() -> Iterator[None]:
    yield
    process_envs.open_emulators = 0


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (partial(ShmemVectorEnv, num_workers=1), "Pass num_workers=2 for a process per env."),
        pytest.param(partial(RayVectorEnv, num_workers=1), "Pass num_workers=2 for a process per env.", marks=RAY),
        (DummyVectorEnv, "Use ShmemVectorEnv, AsyncVectorEnv or SubprocVecEnv with num_workers=2"),
        pytest.param(partial(ThreadVectorEnv, num_workers=1), "Use ShmemVectorEnv, AsyncVectorEnv", marks=FULL),
    ],
)
def test_a_constructor_that_fails_beside_another_env_hints_at_a_process_per_env(make: Make, hint: str) -> None:
    with pytest.raises(RuntimeError, match="Cannot create multiple emulator") as raised:
        make([OneEmulator] * 2)
    assert hint in raised.value.__notes__[-1]


def test_a_constructor_that_fails_first_or_in_a_restart_has_no_hint(tmp_path: Path) -> None:
    process_envs.open_emulators = 1
    with pytest.raises(RuntimeError, match="Cannot create multiple emulator") as first:
        DummyVectorEnv([OneEmulator] * 2)
    flag = tmp_path / "down"

    class Connects(CountingEnv):
        def __init__(self, id: int) -> None:
            if id and flag.exists():
                raise ConnectionError("server is down")
            super().__init__(id)
            self.pid = os.getpid()

    with ShmemVectorEnv([partial(Connects, 0), partial(Connects, 1)], num_workers=1) as venv:
        venv.reset()
        flag.touch()
        kill(pids(venv)[0])
        with pytest.raises(WorkerDiedError):
            venv.step([0, 0])
        with pytest.raises(ConnectionError, match="server is down") as later:
            venv.reset()
    assert not any("num_workers" in note for error in (first, later) for note in error.value.__notes__)


@pytest.mark.parametrize(
    "make",
    [
        collected,
        *full([partial(made_by_id, backend="auto"), partial(collected, step_timeout=60)]),
    ],
)
def test_auto_tries_again_with_a_process_per_env(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vecenv"):
        env = make([OneEmulator] * N)
    assert getattr(env, "venv", env).num_workers == N
    env.close()
    assert f"so {N} workers run one env each: RuntimeError: Cannot create multiple emulator" in caplog.text


def missing() -> Any:
    raise FileNotFoundError("assets of level 2 are missing")


@pytest.mark.usefixtures("two_cpus")
@pytest.mark.parametrize("in_workers", [False, pytest.param(True, marks=FULL)])
def test_the_first_error_remains_if_a_process_per_env_fails_too(in_workers: bool) -> None:
    """A lock cannot be pickled, so `auto` chooses this process, and no worker can host the env."""
    lock = threading.Lock()
    options = {"step_timeout": 60} if in_workers else {}
    env_fns: list[Any] = [CountingEnv if in_workers else lambda: lock and CountingEnv()] * 3 + [missing]
    again = "FileNotFoundError: assets" if in_workers else r"TypeError: env_fns\[0\] cannot be sent to a worker"
    with pytest.raises(FileNotFoundError, match=r"^assets of level 2 are missing") as raised:
        collected(env_fns, **options)
    assert "missing" in "".join(traceback.format_exception(raised.value))
    assert re.search(f"4 workers that run one env each fail too: {again}", raised.value.__notes__[-1])
