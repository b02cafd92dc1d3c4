"""Envs that keep state in their process: a process per env gives the numbers of the originals."""

from __future__ import annotations

import logging
import os
import re
import signal
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
from tests.support.backends import FULL, RAY
from tests.support.process_envs import SIMULATOR, CountsInModule, Emulators, OneEmulator
from vecenv import (
    AsyncVectorEnv,
    DummyVectorEnv,
    ParallelEnv,
    RayVectorEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    SyncVectorEnv,
    ThreadVectorEnv,
    WorkerDiedError,
    make_vec,
    ray_cluster,
    tune,
)
from vecenv.backends import system_limits
from vecenv.facades.make_vec import BACKENDS
from vecenv.tuning.auto_backend import auto_vector_env

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
N, STEPS = 4, 4
Make = Callable[..., Any]
REFUSED = "Cannot create multiple emulator instances per process"


def summed_rewards(env: Any) -> list[float]:
    """Return the sum of the envs' rewards in each step."""
    try:
        env.reset()
        return [float(np.sum(env.step(np.zeros(N, np.int64))[1])) for _ in range(STEPS)]
    finally:
        env.close()


def original_rewards(env_fns: list[Any]) -> list[float]:
    # Without shared memory, because gymnasium leaves its file open.
    return summed_rewards(gymnasium.vector.AsyncVectorEnv(env_fns, False, context="fork"))


def sb3_dummy(env_fns: list[Any]) -> Any:
    from vecenv.sb3 import DummyVecEnv

    return DummyVecEnv(env_fns)


def sb3_subproc(env_fns: list[Any], num_workers: int | None = None) -> Any:
    from vecenv.sb3 import SubprocVecEnv

    return SubprocVecEnv(env_fns, num_workers=num_workers)


def parallel_env(env_fns: list[Any], num_workers: int | None = None) -> Any:
    return ParallelEnv(N, env_fns, num_processes=num_workers)


def made_by_id(env_fns: list[Any], num_workers: int | None = None) -> Any:
    return make_vec(spec_of(env_fns[0]), N, venv_kwargs={"num_workers": num_workers})


def spec_of(env_fn: Any) -> Any:
    return gymnasium.envs.registration.EnvSpec("Counts-v0", entry_point=env_fn, disable_env_checker=True)


def collected(env_fns: list[Any], num_workers: int | None = None) -> Any:
    """Return a collector's vector env."""
    collector = SyncDataCollector(env_fns, frames_per_batch=N, backend="shmem", num_workers=num_workers)
    return collector.env


IN_PROCESSES = [
    AsyncVectorEnv,
    *(
        pytest.param(each, marks=FULL)
        for each in (ShmemVectorEnv, SubprocVectorEnv, sb3_subproc, parallel_env, made_by_id, collected)
    ),
    pytest.param(RayVectorEnv, marks=RAY),
]


@pytest.mark.parametrize("make", IN_PROCESSES)
def test_a_worker_per_env_counts_as_the_originals_do(make: Make) -> None:
    env_fns = [CountsInModule] * N
    original = original_rewards(env_fns)
    assert original == [N * (step + 1) for step in range(STEPS)]
    assert summed_rewards(make(env_fns, num_workers=1)) != original
    assert summed_rewards(make(env_fns, num_workers=N)) == original


@FULL
def test_a_worker_per_env_counts_as_sb3_does() -> None:
    from stable_baselines3.common import vec_env

    original = summed_rewards(vec_env.SubprocVecEnv([CountsInModule] * N, start_method="fork"))
    assert summed_rewards(sb3_subproc([CountsInModule] * N, num_workers=N)) == original


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


@pytest.mark.guarantee("G6.5")
@pytest.mark.parametrize("make", [*IN_PROCESSES, pytest.param(auto_vector_env, marks=FULL)])
def test_envs_of_a_package_with_one_simulator_get_a_process_each(
    make: Make, simulated: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The default for other envs is then two workers.
    monkeypatch.setattr(system_limits, "usable_cpus", lambda: 2)
    monkeypatch.setattr(ray_cluster, "free_places", lambda options: 2)
    original = original_rewards([simulated] * N)
    with caplog.at_level(logging.INFO, "vecenv"):
        assert summed_rewards(make([simulated] * N)) == original
    assert "bluesky-gym" in caplog.text


@FULL
@pytest.mark.parametrize("backend", ["auto", "subproc"])
def test_a_job_tries_again_with_a_process_per_env(backend: str, tmp_path: Path) -> None:
    env = "tests.support.process_envs:OneEmulator"
    run_job(Job(env=env, episodes=4, num_envs=2, backend=backend, device="cpu"), tmp_path / "data")
    assert Dataset(tmp_path / "data").head["ran_on"]["num_workers"] == 2


@FULL
def test_the_envs_of_a_job_with_one_simulator_get_a_process_each(simulated: Any, tmp_path: Path) -> None:
    job = Job(env="bluesky_gym:Simulated-v0", episodes=4, num_envs=2, backend="shmem", device="cpu")
    run_job(job, tmp_path / "data")
    assert Dataset(tmp_path / "data").head["ran_on"]["num_workers"] == 2


def test_too_few_workers_for_envs_with_one_simulator_are_refused(simulated: Any) -> None:
    text = "env 0 is from bluesky-gym, whose envs share state in their process, and its worker hosts 2 envs: "
    text += r"leave num_workers \(num_processes, max_concurrency\) out, or pass 2"
    with pytest.raises(ValueError, match=f"^{text}$"):
        ShmemVectorEnv([simulated] * 2, num_workers=1)
    with pytest.raises(ValueError, match=f"^{text}$"):
        ParallelEnv(2, simulated, num_processes=1, lazy=False)
    job = Job(env="bluesky_gym:Simulated-v0", episodes=2, num_envs=2, backend="shmem", num_workers=1)
    with pytest.raises(JobError, match=f"^bluesky_gym:Simulated-v0 cannot be made: {text}$"):
        run_job(job, "data")
    assert not Path("data").exists()


@pytest.mark.parametrize(
    "make", [DummyVectorEnv, *(pytest.param(each, marks=FULL) for each in (ThreadVectorEnv, SyncVectorEnv, sb3_dummy))]
)
def test_envs_with_one_simulator_in_this_process_warn(make: Make, simulated: Any, recwarn: Any) -> None:
    make([simulated]).close()
    make([CountsInModule] * 2).close()
    assert not recwarn.list
    with pytest.warns(RuntimeWarning, match="^2 envs are from bluesky-gym, .* ShmemVectorEnv, AsyncVectorEnv") as seen:
        make([simulated] * 2).close()
    assert [warning.filename for warning in seen] == [__file__]


def test_tune_measures_only_a_process_per_env_with_one_simulator(simulated: Any) -> None:
    result = tune([simulated] * 2, seconds=0.1)
    assert [(row.backend, row.num_workers) for row in result.rows] == [("shmem", 2)]


@pytest.fixture(autouse=True)
def no_open_emulators() -> Iterator[None]:
    yield
    process_envs.open_emulators = 0


@pytest.mark.parametrize(
    "make", [ShmemVectorEnv, pytest.param(sb3_subproc, marks=FULL), pytest.param(RayVectorEnv, marks=RAY)]
)
def test_a_constructor_that_fails_beside_another_env_hints_at_a_process_per_env(make: Make) -> None:
    with pytest.raises(RuntimeError, match=REFUSED) as raised:
        make([OneEmulator] * 2, num_workers=1)
    assert "Pass num_workers=2 for a process per env." in raised.value.__notes__[-1]
    make([OneEmulator] * 2, num_workers=2).close()


@pytest.mark.parametrize(
    "make",
    [
        DummyVectorEnv,
        pytest.param(partial(ThreadVectorEnv, num_workers=1), marks=FULL),
        pytest.param(sb3_dummy, marks=FULL),
    ],
)
def test_a_constructor_that_fails_in_this_process_hints_at_processes(make: Make) -> None:
    with pytest.raises(RuntimeError, match=REFUSED) as raised:
        make([OneEmulator] * 2)
    assert "Use ShmemVectorEnv, AsyncVectorEnv or SubprocVecEnv with num_workers=2" in raised.value.__notes__[-1]


def test_a_constructor_that_fails_first_has_no_hint() -> None:
    process_envs.open_emulators = 1
    with pytest.raises(RuntimeError, match=REFUSED) as raised:
        DummyVectorEnv([OneEmulator] * 2)
    assert not any("num_workers" in note for note in raised.value.__notes__)


def test_a_constructor_that_fails_in_a_restart_has_no_hint(tmp_path: Path) -> None:
    flag = tmp_path / "down"

    def env_fn() -> Any:
        if flag.exists():
            raise ConnectionError("server is down")
        return CountsInModule()

    with ShmemVectorEnv([CountsInModule, env_fn], num_workers=1) as venv:
        venv.reset()
        flag.touch()
        os.kill(venv.engine.backend.workers[0].pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError):
            venv.step([0, 0])
        with pytest.raises(ConnectionError, match="server is down") as raised:
            venv.reset()
        assert not any("num_workers" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("kind", ["vector env", *(pytest.param(each, marks=FULL) for each in ("facade", "processes"))])
def test_auto_tries_again_with_a_process_per_env(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make = BACKENDS["auto"] if kind == "facade" else auto_vector_env
    options = {"step_timeout": 60} if kind == "processes" else {}
    with caplog.at_level(logging.INFO, "vecenv"):
        env = make([Emulators(tmp_path)] * N, **options)
    assert getattr(env, "venv", env).num_workers == N
    env.close()
    assert f"so {N} workers host one env each: RuntimeError: Cannot create multiple emulator" in caplog.text


def missing() -> Any:
    raise FileNotFoundError("assets of level 2 are missing")


@pytest.mark.parametrize("in_workers", [False, pytest.param(True, marks=FULL)])
def test_the_first_error_remains_if_a_process_per_env_fails_too(
    in_workers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock cannot be pickled, so `auto` chooses this process, and no worker can host the env."""
    lock = threading.Lock()
    options = {"step_timeout": 60} if in_workers else {}
    env_fns: list[Any] = [CountsInModule if in_workers else lambda: lock and CountsInModule()] * 3 + [missing]
    again = "FileNotFoundError: assets" if in_workers else r"TypeError: env_fns\[0\] cannot be sent to a worker"
    monkeypatch.setattr(system_limits, "usable_cpus", lambda: 2)
    with pytest.raises(FileNotFoundError, match=r"^assets of level 2 are missing") as raised:
        auto_vector_env(env_fns, **options)
    assert "missing" in "".join(traceback.format_exception(raised.value))
    assert re.search(f"4 workers that host one env each fail too: {again}", raised.value.__notes__[-1])


def test_auto_does_not_try_again_for_other_errors(tmp_path: Path) -> None:
    env_fn = Emulators(tmp_path)
    process_envs.open_emulators = 1
    with pytest.raises(RuntimeError, match=REFUSED):
        auto_vector_env([env_fn] * 2)
    assert env_fn.count() == 2  # with the measurement
