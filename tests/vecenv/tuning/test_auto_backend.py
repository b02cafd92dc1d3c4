"""backend="auto": its choices, its additional env, and equal results for all choices. The choice of `tune`."""

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
from tests.support.tuned_envs import (
    CrashesWhenMade,
    Draws,
    HangsOnStep,
    ImportsForLong,
    Logged,
    NeverMade,
    OnlyIn,
    RaisesOnStep,
    SlowlyReset,
    lock_holder,
)
from vecenv import (
    AsyncVectorEnv,
    DummyVectorEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    SyncVectorEnv,
    ThreadVectorEnv,
    TuneRow,
    make_vec,
)
from vecenv.testing import CountingEnv
from vecenv.tuning import auto_backend, tune
from vecenv.tuning.auto_backend import (
    EnvCost,
    auto_vector_env,
    choose_backend,
    make_auto,
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
        (EnvCost(5e-3, 20e-6, 0), 8, 1, ("shmem", 8)),
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
    ("chosen", "arguments"),
    [("thread", {"copy": False, "num_workers": 3}), ("shmem", {"affinity": False, "copy": False, "num_workers": 3})],
)
def test_only_processes_get_arguments_of_processes(
    chosen: str, arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_backend, "choose_backend", lambda *_: (chosen, 3, ""))
    options = {"num_workers": None, "affinity": False, "copy": False}
    assert make_auto([CHEAP], options, {chosen: lambda fns, **own: own}) == arguments


@pytest.mark.parametrize(("env_fn", "workers"), [(CHEAP, 1), pytest.param(HEAVY, None, marks=FULL)])
def test_restarts_need_a_process_but_not_several(env_fn: Any, workers: int | None) -> None:
    with auto_vector_env([env_fn] * 4, on_error="restart", num_workers=None) as venv:
        assert type(venv) is ShmemVectorEnv
        assert venv.num_workers == (workers or min(4, len(os.sched_getaffinity(0))))


@pytest.mark.parametrize(("env_fn", "kind"), [(CHEAP, DummyVectorEnv), pytest.param(HEAVY, WORKERS, marks=FULL)])
def test_the_choice_is_made_and_logged(env_fn: Any, kind: type, caplog: pytest.LogCaptureFixture) -> None:
    defaults: dict[str, Any] = {"num_workers": None, "step_timeout": None, "affinity": False, "on_error": "raise"}
    with caplog.at_level(logging.INFO, "vecenv"), auto_vector_env([env_fn] * 4, **defaults, strict=True) as venv:
        assert type(venv) is kind
        assert len(venv.reset(seed=0)[0]) == 4
    (record,) = caplog.records
    assert re.search("backend='auto' chooses .* for 4 envs: a step takes", record.getMessage())


def test_arguments_that_ask_for_processes_get_them_without_a_measurement(tmp_path: Path) -> None:
    asking = {"num_workers": 1, "context": "fork", "start_timeout": 30.0, "step_timeout": 30.0, "affinity": True}
    for name, value in (asking | {"wait_num": 1, "timeout": 0.5}).items():
        env_fns = [partial(Logged, tmp_path / "log")] * 2
        assert choose_backend(env_fns, {name: value}) == ("shmem", None, f"{name}= asks for processes")
        assert make_auto(env_fns, {name: value}, {"shmem": lambda env_fns, **own: own}) == {name: value}
    assert not (tmp_path / "log").exists()


# The measurement.


@FULL
@pytest.mark.parametrize(("n", "extra"), [(1, 0), (4, 1)])
def test_one_env_more_at_most_is_made_in_a_worker_and_closed(n: int, extra: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with auto_vector_env([partial(Logged, log) for _ in range(n)]) as venv:
        assert type(venv) is DummyVectorEnv
        words, pids = zip(*(line.split() for line in log.read_text().splitlines()), strict=True)
        assert [*words] == ["made", "closed"] * extra + ["made"] * n
        assert (int(pids[0]) == os.getpid()) == (not extra)
        assert set(pids[2 * extra :]) == {str(os.getpid())}


@FULL
@pytest.mark.parametrize(
    ("env_fns", "options", "backend", "reason"),
    [
        ([NeverMade, CHEAP], {}, "shmem", "was not made in 0.3 s"),
        ([HangsOnStep, CHEAP], {}, "shmem", "or not stepped and closed in 1.0 s"),
        ([CrashesWhenMade, CHEAP], {}, "shmem", "could not be measured: .* exited with code 7"),
        ([RaisesOnStep, CHEAP], {}, "shmem", "could not be measured: OverflowError: the env broke"),
        ([partial(OnlyIn, os.getpid()), CHEAP], {}, "dummy", "RuntimeError: not made here"),
        ([partial(OnlyIn, os.getpid()), CHEAP], {"on_error": "restart"}, "shmem", "RuntimeError: not made here"),
        ([CHEAP, partial(lock_holder, threading.Lock())], {}, "dummy", r"env_fns\[1\] cannot be sent to a worker"),
        # A worker may import for seconds, for example torch by the Monitor of SB3.
        ([ImportsForLong, CHEAP], {}, "dummy", "a step takes"),
    ],
    ids=["hangs when made", "hangs in a step", "crashes", "raises", "only here", "restarts", "no pickle", "imports"],
)
def test_what_cannot_be_measured_has_a_choice_too(
    env_fns: Any, options: Any, backend: str, reason: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if env_fns[0] is NeverMade:
        monkeypatch.setattr(auto_backend, "MAKE_TIMEOUT", 0.3)
    with caplog.at_level(logging.INFO, "vecenv"):
        assert choose_backend(env_fns, options).backend == backend
    assert re.search(f"chooses '{backend}' for 2 envs: .*{reason}", caplog.text)


class Saves(Draws):
    """Env that writes a file now and then."""

    def step(self, action: Any) -> Any:
        if self.total % 20 == 19:
            threading.Event().wait(0.05)
        return super().step(action)


@FULL
@pytest.mark.parametrize(
    ("env", "seconds", "least", "waits"),
    [
        (Draws(work=2e-3), 0.1, 2e-3, False),
        (Draws(sleep=2e-3), 0.1, 2e-3, True),
        (Saves(), 0.15, 0.9 * 0.05 / 20, None),
        (SlowlyReset(0.2, 20), 0.15, 0.9 * 0.2 / 20, True),
        (SlowlyReset(0.2, 300), 0.15, 0.9 * 0.2 / 300, True),
    ],
    ids=["computes", "waits", "rare waits", "slow resets", "rare resets"],
)
def test_the_cost_of_a_step_has_rare_waits_and_resets(
    env: Any, seconds: float, least: float, waits: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_backend, "system_file", lambda path: "0 0 0")
    cost = time_steps(env, seconds)
    assert cost.wall >= least
    assert waits in (cost.waits, None)


def test_slow_first_steps_do_not_count() -> None:
    assert time_steps(Draws(slow_steps=20), 0.5).wall < 0.005


clocks = {"wall": 0.0, "cpu": 0.0}


class Clocked(CountingEnv):
    """Env with steps of 3 ms, of which it computes 1 ms, by the clocks of `clocks`."""

    def step(self, action: Any) -> Any:
        clocks["wall"] += 3e-3
        clocks["cpu"] += 1e-3
        return super().step(action)


@pytest.mark.parametrize(
    ("delay", "yields", "waits"), [(0.0, 0, False), (0.0, 1, True), (None, 1, False), (None, 900, True)]
)
def test_an_env_that_never_yields_its_cpu_does_not_wait(
    delay: float | None, yields: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps take longer than its computing, because the host takes the CPU from a virtual machine."""

    def usage(who: int) -> Any:
        return SimpleNamespace(ru_utime=clocks["cpu"], ru_stime=0.0, ru_nvcsw=yields * (clocks["wall"] > begin))

    begin = clocks["wall"]
    times = {"perf_counter": lambda: clocks["wall"], "thread_time": lambda: clocks["cpu"]}
    monkeypatch.setattr(auto_backend, "time", SimpleNamespace(**times))
    monkeypatch.setattr(auto_backend, "resource", SimpleNamespace(getrusage=usage, RUSAGE_SELF=0))
    monkeypatch.setattr(auto_backend, "_preempted_seconds", lambda: delay)
    cost = time_steps(Clocked(0), 3.0)
    assert cost.wall == pytest.approx(3e-3)
    assert cost.cpu == pytest.approx(1e-3 if waits else 3e-3)


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
    for env_fn, backend in [(CHEAP, "auto"), (HEAVY, "auto"), (CHEAP, None), (CHEAP, "shmem"), (CHEAP, "thread")]:
        with SyncDataCollector([env_fn] * 3, frames_per_batch=30, backend=backend) as collector:
            collector.set_seed(0)
            batches.append(arrays(collector.rollout()))
            kinds.append(type(collector.env))
    assert kinds == [DummyVectorEnv, WORKERS, DummyVectorEnv, ShmemVectorEnv, ThreadVectorEnv]
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


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({"dummy": 100, "shmem": 104}, "dummy"),
        ({"dummy": 100, "shmem": 110}, "shmem"),
        ({"shmem": 200, "dummy": 100, "thread": 210}, "shmem"),
        ({"dummy": 100, "thread": 110}, "dummy"),
        ({"dummy": 100, "thread": 120}, "thread"),
        ({"dummy": None, "thread": 50}, "thread"),
    ],
)
def test_tune_chooses_the_simplest_that_is_as_fast_as_the_fastest(rates: dict[str, float | None], best: str) -> None:
    rows = [TuneRow(name, None if name == "dummy" else 2, rate, "") for name, rate in rates.items()]
    assert tune.choose(rows).backend == best


@pytest.mark.parametrize(
    ("rounds", "waits", "rate"),
    [([3e-3] * 4 + [33e-3], False, 100), ([3e-3] * 5, False, 300), ([3e-3] * 4 + [33e-3], True, 1000 / 3)],
    ids=["interrupted", "parallel", "waiting"],
)
def test_threads_gain_at_most_in_processor_time(rounds: list[float], waits: bool, rate: float) -> None:
    """On a busy machine, Dummy's rounds take longer than their processor time. Threads get more of the CPUs."""
    dummy, thread = (tune._Candidate(name, None, 0.0) for name in ("dummy", "thread"))
    dummy.plain, dummy.cpu_seconds = [10e-3] * 5, [9e-3] * 5
    thread.plain = rounds
    tune._rate([dummy, thread], 1, waits)
    assert (dummy.rate, thread.rate) == (pytest.approx(100), pytest.approx(rate))
