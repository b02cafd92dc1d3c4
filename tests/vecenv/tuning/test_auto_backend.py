"""backend="auto": its choices, its additional env, and equal results for all choices."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
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
    make_vec,
)
from vecenv.backends.free_threading import has_gil
from vecenv.backends.system_limits import usable_cpus
from vecenv.facades.make_vec import BACKENDS
from vecenv.testing import CountingEnv
from vecenv.tuning import auto_backend
from vecenv.tuning.auto_backend import (
    LOCKED,
    EnvCost,
    auto_vector_env,
    choose_backend,
    make_auto,
    predict,
    reason_against_threads,
    slow_steps,
    time_steps,
)

CHEAP, HEAVY = partial(Draws), partial(Draws, work=3e-3)
WORKERS, FACADE = (ShmemVectorEnv, AsyncVectorEnv) if has_gil() else (ThreadVectorEnv, BACKENDS["thread"])
"""Choice for pure Python envs that compute for long."""


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the choice assume two CPUs."""
    monkeypatch.setattr(auto_backend, "usable_cpus", lambda: 2)


@pytest.fixture
def _registered() -> Any:
    gymnasium.register("Cheap-v0", CHEAP, disable_env_checker=True)
    gymnasium.register("Heavy-v0", HEAVY, disable_env_checker=True)
    yield
    del gymnasium.registry["Cheap-v0"], gymnasium.registry["Heavy-v0"]


THEIR_DEFAULTS: dict[str, Any] = {"num_workers": None, "step_timeout": None, "affinity": False, "on_error": "raise"}
THEIR_DEFAULTS |= {"context": None, "wait_num": None, "strict": True}


def noted(log: Path) -> list[str]:
    """Return the first words of the log's lines."""
    return [line.split()[0] for line in log.read_text().splitlines()]


class Clocked(CountingEnv):
    """Env with steps of 3 ms, of which it computes 1 ms, by the clocks of `clocks`."""

    def step(self, action: Any) -> Any:
        clocks["wall"] += 3e-3
        clocks["cpu"] += 1e-3
        return super().step(action)


clocks = {"wall": 0.0, "cpu": 0.0}


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
    cost = auto_backend.time_steps(Clocked(0), 3.0)
    assert cost.wall == pytest.approx(3e-3)
    assert cost.cpu == pytest.approx(1e-3 if waits else 3e-3)


class TestTheChoice:
    @pytest.mark.parametrize(
        ("wall", "cpu", "n", "cpus", "choice"),
        [
            (10e-6, 10e-6, 8, 2, ("dummy", None)),
            (10e-6, 10e-6, 8, 64, ("dummy", None)),
            (100e-6, 100e-6, 8, 2, ("shmem", None)),
            (5e-3, 5e-3, 8, 2, ("shmem", None)),
            (5e-3, 5e-3, 8, 1, ("dummy", None)),
            (5e-3, 20e-6, 8, 1, ("shmem", 8)),
            (5e-3, 20e-6, 8, 2, ("shmem", 8)),
            (5e-3, 20e-6, 500, 2, ("shmem", 64)),
        ],
    )
    def test_it_follows_from_the_cost_of_a_step(self, wall, cpu, n, cpus, choice, monkeypatch):
        monkeypatch.setattr(auto_backend, "default_num_workers", lambda n, eager: min(n, cpus))
        assert predict(EnvCost(wall, cpu, 0), n, cpus)[:2] == choice

    @pytest.mark.parametrize(
        ("no_threads", "backend", "words"),
        [
            ("", "thread", "; in threads: "),
            (LOCKED, "shmem", "workers"),
            ("it draws", "shmem", "not in threads: it draws"),
        ],
    )
    def test_threads_take_the_place_of_workers_if_nothing_is_against_them(self, no_threads, backend, words):
        choice = predict(EnvCost(5e-3, 5e-3, 0, no_threads), 8, 2)
        assert choice[:2] == (backend, None)
        assert words in choice.reason
        assert predict(EnvCost(1e-6, 1e-6, 0, no_threads), 8, 2).backend == "dummy"

    def test_an_env_may_run_in_threads_if_it_is_pure_python_or_says_so(self, monkeypatch):
        env = Draws()
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

    def test_threads_get_no_arguments_of_processes(self, monkeypatch):
        monkeypatch.setattr(auto_backend, "choose_backend", lambda *arguments: ("thread", 3, ""))
        made = make_auto(
            [CHEAP], {"context": None, "affinity": False, "copy": False}, {"thread": lambda fns, **own: own}
        )
        assert made == {"copy": False, "num_workers": 3}

    def test_the_number_of_workers_replaces_none(self, monkeypatch):
        monkeypatch.setattr(auto_backend, "choose_backend", lambda *arguments: ("shmem", 3, ""))
        assert make_auto([CHEAP], {"num_workers": None}, {"shmem": lambda fns, **own: own}) == {"num_workers": 3}

    @pytest.mark.parametrize(("env_fn", "workers"), [(CHEAP, 1), pytest.param(HEAVY, None, marks=FULL)])
    def test_restarts_need_a_process_but_not_several(self, env_fn: Any, workers: int | None) -> None:
        with auto_vector_env([env_fn] * 4, on_error="restart", num_workers=None) as venv:
            assert type(venv) is ShmemVectorEnv
            assert venv.num_workers == (workers or min(4, usable_cpus()))

    @pytest.mark.parametrize("env_fns", [[CrashesWhenMade, CHEAP], [partial(OnlyIn, os.getpid()), CHEAP]])
    def test_restarts_keep_the_default_if_no_env_was_measured(self, env_fns: list[Any]) -> None:
        assert choose_backend(env_fns, {"on_error": "restart"})[:2] == ("shmem", None)

    @pytest.mark.parametrize(("env_fn", "kind"), [(CHEAP, DummyVectorEnv), pytest.param(HEAVY, WORKERS, marks=FULL)])
    def test_it_is_made_and_logged(self, env_fn: Any, kind: type, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "vecenv"), auto_vector_env([env_fn] * 4, **THEIR_DEFAULTS) as venv:
            assert type(venv) is kind
            assert len(venv.reset(seed=0)[0]) == 4
        (record,) = caplog.records
        assert "backend='auto' chooses" in record.getMessage()
        assert "for 4 envs: a step takes" in record.getMessage()

    def test_arguments_that_ask_for_processes_get_them_without_a_measurement(self, tmp_path: Path) -> None:
        asking = {"num_workers": 1, "context": "fork", "start_timeout": 30.0, "step_timeout": 30.0, "affinity": True}
        asking |= {"wait_num": 1, "timeout": 0.5}
        for name, value in asking.items():
            env_fns = [partial(Logged, tmp_path / "log")] * 2
            assert choose_backend(env_fns, {name: value}) == ("shmem", None, f"{name}= asks for processes")
            assert make_auto(env_fns, {name: value}, {"shmem": lambda env_fns, **own: own}) == {name: value}
        assert not (tmp_path / "log").exists()


@FULL
class TestTheMeasurement:
    @pytest.mark.parametrize(("n", "extra"), [(1, 0), (4, 1)])
    def test_it_makes_one_env_more_at_most_in_a_worker_and_closes_it(self, n: int, extra: int, tmp_path: Path) -> None:
        log = tmp_path / "log"
        with auto_vector_env([partial(Logged, log) for _ in range(n)]) as venv:
            assert type(venv) is DummyVectorEnv
            assert noted(log) == ["made", "closed"] * extra + ["made"] * n
            pids = [int(line.split()[1]) for line in log.read_text().splitlines()]
            assert (pids[0] == os.getpid()) == (not extra)
            assert set(pids[2 * extra :]) == {os.getpid()}

    @pytest.mark.parametrize(
        ("env_fns", "backend", "reason"),
        [
            ([NeverMade, CHEAP], "shmem", "was not made in 0.3 s"),
            ([HangsOnStep, CHEAP], "shmem", "or not stepped and closed in 1.0 s"),
            ([CrashesWhenMade, CHEAP], "shmem", "could not be measured: .* exited with code 7"),
            ([RaisesOnStep, CHEAP], "shmem", "could not be measured: OverflowError: the env broke"),
            ([partial(OnlyIn, os.getpid()), CHEAP], "dummy", "RuntimeError: not made here"),
            ([CHEAP, partial(lock_holder, threading.Lock())], "dummy", r"env_fns\[1\] cannot be sent to a worker"),
        ],
        ids=["hangs when made", "hangs in a step", "crashes", "raises in a step", "only here", "not picklable"],
    )
    def test_what_cannot_be_measured_has_a_choice_too(self, env_fns, backend, reason, caplog, monkeypatch):
        if env_fns[0] is NeverMade:
            monkeypatch.setattr(auto_backend, "MAKE_TIMEOUT", 0.3)
        with caplog.at_level(logging.INFO, "vecenv"):
            assert choose_backend(env_fns, {}).backend == backend
        assert re.search(f"chooses '{backend}' for 2 envs: .*{reason}", caplog.text)

    def test_what_an_env_imports_is_not_part_of_its_steps(self) -> None:
        """A worker may import for seconds, for example torch by the Monitor of SB3."""
        assert choose_backend([ImportsForLong, CHEAP], {}).backend == "dummy"

    def test_the_first_steps_may_be_slow(self) -> None:
        assert 16 <= slow_steps([5e-3] * 20 + [1e-5] * 40) <= 20
        assert time_steps(Draws(slow_steps=20), 0.5).wall < 0.005

    def test_time_in_resets_counts(self) -> None:
        class SlowReset(Draws):
            def reset(self, **options: Any) -> Any:
                threading.Event().wait(7e-3)
                return super().reset(**options)

        cost = time_steps(SlowReset(), 0.2)
        assert cost.wall >= 1e-3  # 7 ms in 7 steps
        assert cost.cpu <= cost.wall

    @pytest.mark.parametrize("length", [20, 300])
    def test_resets_count_that_are_rare_and_slow(self, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(auto_backend, "system_file", lambda path: "0 0 0")
        cost = time_steps(SlowlyReset(0.2, length), 0.15)
        assert cost.wall >= 0.9 * 0.2 / length
        assert cost.waits
        assert predict(cost, 4, cpus=2)[:2] == ("shmem", 4)

    def test_steps_count_that_are_slow_now_and_then(self) -> None:
        class Saves(Draws):
            def step(self, action: Any) -> Any:
                if self.total % 20 == 19:
                    threading.Event().wait(0.05)
                return super().step(action)

        assert time_steps(Saves(), 0.15).wall >= 0.9 * 0.05 / 20

    @pytest.mark.parametrize(("options", "waits"), [({"work": 2e-3}, False), ({"sleep": 2e-3}, True)])
    def test_waiting_is_told_from_computing(self, options: Any, waits: bool) -> None:
        assert time_steps(Draws(**options), 0.1).waits == waits


@FULL
@pytest.mark.usefixtures("_registered")
class TestMakeVec:
    @pytest.mark.parametrize(("env_id", "facade"), [("Cheap-v0", SyncVectorEnv), ("Heavy-v0", FACADE)])
    def test_it_makes_either_facade_with_its_arguments(self, env_id: str, facade: type) -> None:
        options = {"autoreset_mode": "SameStep", "step_timeout": None, "shared_memory": True, "daemon": True}
        envs = make_vec(env_id, 4, backend="auto", venv_kwargs=options)
        assert type(envs) is facade
        assert envs.spec.kwargs["backend"] == "auto"
        assert repr(envs) == f"{facade.__name__}({env_id}, num_envs=4)"
        envs.close()

    def test_arguments_that_only_processes_have_get_them(self) -> None:
        for options, engine, workers in (
            ({"max_concurrency": 1}, ShmemVectorEnv, 1),
            ({"shared_memory": False, "step_timeout": 30.0, "num_workers": 2}, SubprocVectorEnv, 2),
        ):
            envs = make_vec("Cheap-v0", 2, backend="auto", venv_kwargs=options)
            assert (type(envs.venv), envs.venv.num_workers) == (engine, workers)
            envs.close()


@FULL
class TestCollectors:
    def test_batches_do_not_depend_on_the_choice(self) -> None:
        batches, kinds = [], []
        for env_fn, backend in [(CHEAP, "auto"), (HEAVY, "auto"), (CHEAP, None), (CHEAP, "shmem"), (CHEAP, "thread")]:
            with SyncDataCollector([env_fn] * 3, frames_per_batch=30, backend=backend) as collector:
                collector.set_seed(0)
                batches.append(arrays(collector.rollout()))
                kinds.append(type(collector.env).__name__.removesuffix("VectorEnv"))
        assert kinds == ["Dummy", WORKERS.__name__.removesuffix("VectorEnv"), "Dummy", "Shmem", "Thread"]
        for batch in batches[1:]:
            assert_equal(batch, batches[0])

    def test_async_collectors_choose_too(self) -> None:
        for options, kind in (
            ({}, ShmemVectorEnv),
            ({"backend": "auto"}, DummyVectorEnv),
            ({"backend": "auto", "wait_num": 1}, ShmemVectorEnv),
            ({"backend": "subproc", "num_workers": 1}, SubprocVectorEnv),
        ):
            with AsyncDataCollector([CHEAP] * 2, frames_per_batch=20, **options) as collector:
                assert type(collector.env) is kind
                assert collector.rollout().frames == 20

    @pytest.mark.parametrize("kind", [SyncDataCollector, AsyncDataCollector])
    def test_a_backend_that_does_not_exist_is_refused(self, kind: Any) -> None:
        with pytest.raises(ValueError, match=r"backend must be one of .*'auto'.*, or None for .*; got 'threads'"):
            kind([CHEAP] * 2, frames_per_batch=20, backend="threads")


def test_a_delay_that_began_before_the_measurement_leaves_the_cost_of_the_cpu(monkeypatch):
    delays = iter(["0 0 0", f"0 {9e9:.0f} 0"])
    monkeypatch.setattr(auto_backend, "system_file", lambda path: next(delays))
    cost = time_steps(Draws(), 0.05)
    assert 0 < cost.cpu == cost.wall
    assert not cost.waits


def test_an_env_that_other_programs_preempt_costs_no_more(monkeypatch):
    steps = []

    class Timed(Draws):
        def step(self, action: Any) -> Any:
            begin = time.process_time()
            result = super().step(action)
            steps.append(time.process_time() - begin)
            return result

    # As with a tenth of a CPU. Both clocks stand still between steps, so that they agree when they are read in turn.
    monkeypatch.setattr(time, "perf_counter", lambda: 10 * sum(steps))
    monkeypatch.setattr(auto_backend, "system_file", lambda path: f"0 {9e9 * sum(steps):.0f} 0")
    begin = time.process_time()
    cost = time_steps(Timed(), 0.05)
    assert 0 < cost.wall == cost.cpu <= (time.process_time() - begin) / len(steps)
