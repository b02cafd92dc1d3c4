"""backend="auto": its choices, its additional env, and equal results for all choices."""

from __future__ import annotations

import logging
import os
import re
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import TimeLimit

from collector import AsyncDataCollector, SyncDataCollector
from tests.support.backends import FULL
from tests.support.collector_envs import arrays, assert_equal
from tests.support.tuned_envs import Draws, Fails, Logged, OnlyIn, lock_holder
from vecenv import (
    AsyncVectorEnv,
    DummyVectorEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    SyncVectorEnv,
    ThreadVectorEnv,
    make_vec,
)
from vecenv.testing import CountingEnv
from vecenv.tuning import auto_backend
from vecenv.tuning.auto_backend import (
    EnvCost,
    auto_vector_env,
    choose_backend,
    predict,
    reason_against_threads,
    time_steps,
)

CHEAP, HEAVY = partial(Draws), partial(Draws, work=3e-3)
WORKERS = ShmemVectorEnv if auto_backend.has_gil() else ThreadVectorEnv
"""Choice for pure Python envs that compute for long."""


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the choice assume two CPUs."""
    monkeypatch.setattr(auto_backend, "usable_cpus", lambda: 2)


@pytest.mark.parametrize(
    ("cost", "n", "cpus", "choice"),
    [
        (EnvCost(10e-6, 10e-6, 0), 8, 64, ("dummy", None)),
        (EnvCost(100e-6, 100e-6, 0), 8, 2, ("shmem", None)),
        (EnvCost(5e-3, 5e-3, 0), 8, 1, ("dummy", None)),
        (EnvCost(5e-3, 20e-6, 0), 500, 2, ("shmem", 64)),
        (EnvCost(5e-3, 5e-3, 0, no_threads=""), 8, 2, ("thread", None)),
        (EnvCost(1e-6, 1e-6, 0, no_threads=""), 8, 2, ("dummy", None)),
        (EnvCost(5e-3, 5e-3, 0, no_threads="it draws"), 8, 2, ("shmem", None)),
    ],
)
def test_the_choice_follows_from_the_cost_of_a_step(
    cost: EnvCost, n: int, cpus: int, choice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_backend, "default_num_workers", lambda n, eager: min(n, cpus))
    backend, workers, reason = predict(cost, n, cpus)
    assert (backend, workers) == choice
    assert ("not in threads: it draws" in reason) == (cost.no_threads == "it draws")


def test_an_env_may_run_in_threads_if_it_is_pure_python_or_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    env: Any = Draws()
    monkeypatch.delattr(Draws, "thread_safe")
    monkeypatch.setattr(auto_backend, "has_gil", lambda: False)
    monkeypatch.setattr(auto_backend, "SAFE_PACKAGES", {"everything"})
    assert "extension module" in reason_against_threads(env)
    env.thread_safe = True
    assert reason_against_threads(TimeLimit(env, 9)) == ""
    env.thread_safe = False
    assert reason_against_threads(env) == "the env's attribute thread_safe is not True"
    monkeypatch.setattr(auto_backend, "has_gil", lambda: True)
    monkeypatch.setattr(auto_backend, "gil_modules", ["cv2"])
    assert reason_against_threads(env) == "importing 'cv2' has turned the interpreter lock on"


@pytest.mark.parametrize(
    ("env_fn", "options", "kind", "workers"),
    [
        (CHEAP, {"step_timeout": None, "affinity": False, "on_error": "raise", "strict": True}, DummyVectorEnv, None),
        (CHEAP, {"on_error": "restart"}, ShmemVectorEnv, 1),
        pytest.param(HEAVY, {}, WORKERS, None, marks=FULL),
        pytest.param(HEAVY, {"on_error": "restart"}, ShmemVectorEnv, min(4, len(os.sched_getaffinity(0))), marks=FULL),
    ],
    ids=["cheap", "cheap, restarts", "heavy", "heavy, restarts"],
)
def test_the_choice_is_made_and_logged(
    env_fn: Any, options: Any, kind: type, workers: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Restarts need a process, but not several."""
    with caplog.at_level(logging.INFO, "vecenv"), auto_vector_env([env_fn] * 4, num_workers=None, **options) as venv:
        assert type(venv) is kind
        assert workers in (None, venv.num_workers)
        assert len(venv.reset(seed=0)[0]) == 4
    (record,) = caplog.records
    assert re.search("backend='auto' chooses .* for 4 envs: a step takes", record.getMessage())


def test_arguments_that_ask_for_processes_get_them_without_a_measurement(tmp_path: Path) -> None:
    asking = {"num_workers": 1, "context": "fork", "start_timeout": 30.0, "step_timeout": 30.0, "affinity": True}
    for name, value in (asking | {"wait_num": 1, "timeout": 0.5}).items():
        choice = choose_backend([partial(Logged, tmp_path / "log")] * 2, {name: value})
        assert choice == ("shmem", None, f"{name}= asks for processes")
    assert not (tmp_path / "log").exists()


# The measurement.


@FULL
def test_one_env_more_is_made_in_a_worker_and_closed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with auto_vector_env([partial(Logged, log) for _ in range(4)]) as venv:
        assert type(venv) is DummyVectorEnv
        words, pids = zip(*(line.split() for line in log.read_text().splitlines()), strict=True)
        assert [*words] == ["made", "closed"] + ["made"] * 4
        assert pids[0] == pids[1] != str(os.getpid())
        assert set(pids[2:]) == {str(os.getpid())}


@FULL
@pytest.mark.parametrize(
    ("env_fns", "options", "backend", "reason"),
    [
        ([partial(Fails, "is never made"), CHEAP], {}, "shmem", "was not made in 0.3 s"),
        ([partial(Fails, "hangs"), CHEAP], {}, "shmem", "or not stepped and closed in 1.0 s"),
        ([partial(Fails, "crashes"), CHEAP], {}, "shmem", "could not be measured: .* exited with code 7"),
        ([partial(Fails, "raises"), CHEAP], {}, "shmem", "could not be measured: OverflowError: the env broke"),
        ([partial(OnlyIn, os.getpid()), CHEAP], {}, "dummy", "RuntimeError: not made here"),
        ([partial(OnlyIn, os.getpid()), CHEAP], {"on_error": "restart"}, "shmem", "RuntimeError: not made here"),
        ([CHEAP, partial(lock_holder, threading.Lock())], {}, "dummy", r"env_fns\[1\] cannot be sent to a worker"),
        # A worker may import for seconds, for example torch by the Monitor of SB3.
        ([partial(Fails, "imports for long"), CHEAP], {}, "dummy", "a step takes"),
    ],
)
def test_what_cannot_be_measured_has_a_choice_too(
    env_fns: Any, options: Any, backend: str, reason: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "0.3 s" in reason:
        monkeypatch.setattr(auto_backend, "MAKE_TIMEOUT", 0.3)
    with caplog.at_level(logging.INFO, "vecenv"):
        assert choose_backend(env_fns, options).backend == backend
    assert re.search(f"chooses '{backend}' for 2 envs: .*{reason}", caplog.text)


def test_the_cost_of_a_step_has_rare_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is simulated: a step takes 1 ms, a reset 200 ms."""
    now = 0.0

    class SlowlyReset(CountingEnv):
        def reset(self, **kwargs: Any) -> Any:
            nonlocal now
            now += 0.2
            return super().reset(**kwargs)

        def step(self, action: Any) -> Any:
            nonlocal now
            now += 1e-3
            return super().step(action)

    clock = SimpleNamespace(perf_counter=lambda: now, thread_time=lambda: now)
    monkeypatch.setattr(auto_backend, "time", clock)
    monkeypatch.setattr(auto_backend, "_preempted_seconds", lambda: None)
    cost = time_steps(SlowlyReset(length=300), 3.0)
    assert cost.wall == pytest.approx(1e-3 + 0.2 / 300, rel=0.1)


# Facades and collectors.


@FULL
@pytest.mark.parametrize(
    ("env_fn", "options", "kind", "engine", "workers"),
    [
        (CHEAP, {"autoreset_mode": "SameStep", "step_timeout": None, "daemon": True}, SyncVectorEnv, None, None),
        (HEAVY, {}, AsyncVectorEnv if WORKERS is ShmemVectorEnv else None, WORKERS, None),
        (CHEAP, {"max_concurrency": 1}, AsyncVectorEnv, ShmemVectorEnv, 1),
        (CHEAP, {"shared_memory": False, "num_workers": 2}, AsyncVectorEnv, SubprocVectorEnv, 2),
    ],
    ids=["cheap", "heavy", "max_concurrency", "num_workers"],
)
def test_make_vec_makes_either_facade_with_its_arguments(
    env_fn: Any, options: Any, kind: Any, engine: Any, workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Auto-v0", entry_point=env_fn, disable_env_checker=True)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    envs = make_vec("Auto-v0", 4, backend="auto", venv_kwargs=options)
    assert kind in (type(envs), None)
    assert engine in (type(envs.venv), None)
    assert workers in (envs.venv.num_workers, None)
    assert envs.spec.kwargs["backend"] == "auto"
    envs.close()


@FULL
def test_batches_do_not_depend_on_the_choice() -> None:
    batches, kinds = [], []
    for env_fn, backend in [(CHEAP, "auto"), (HEAVY, "auto"), (CHEAP, "shmem"), (CHEAP, "thread")]:
        with SyncDataCollector([env_fn] * 3, frames_per_batch=30, backend=backend) as collector:
            collector.set_seed(0)
            batches.append(arrays(collector.rollout()))
            kinds.append(type(collector.env))
    assert kinds == [DummyVectorEnv, WORKERS, ShmemVectorEnv, ThreadVectorEnv]
    for batch in batches[1:]:
        assert_equal(batch, batches[0])


@FULL
def test_async_collectors_choose_too() -> None:
    for options, kind in (
        ({}, ShmemVectorEnv),
        ({"backend": "auto"}, DummyVectorEnv),
        ({"backend": "auto", "wait_num": 1}, ShmemVectorEnv),
        ({"backend": "subproc", "num_workers": 1}, SubprocVectorEnv),
    ):
        with AsyncDataCollector([CHEAP] * 2, frames_per_batch=20, **options) as collector:
            assert type(collector.env) is kind
            assert collector.rollout().frames == 20
