"""Threads of OpenMP and OpenBLAS that spin beside workers are ended if this saves time. Results do not change."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.backends import FULL
from tests.support.faulty import counters
from vecenv import ShmemVectorEnv, spinning_threads
from vecenv.backends.ipc import waiting
from vecenv.spinning_threads import SpinningThreads, can_release, release_pool

torch = pytest.importorskip("torch")
TWO = {"OPENBLAS_NUM_THREADS": "2"}


def multiply() -> Any:
    """Run a parallel operation on two threads, whatever number this thread has set."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        return torch.ones(512, 512) @ torch.ones(512, 512)
    finally:
        torch.set_num_threads(before)


def script(text: str, *args: str) -> list[str]:
    """Run a program and return the words that it prints."""
    command = [sys.executable, "-c", text, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **TWO})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@FULL
@pytest.mark.skipif(not can_release(), reason="this torch does not use libgomp")
def test_openmp_threads_end_and_come_back_with_the_same_results() -> None:
    """Meanwhile, another thread uses a pool of its own. A profile is not disturbed."""
    wrong, end = [], threading.Event()

    def work() -> None:
        expected = multiply()
        while not end.is_set():
            if not torch.equal(multiply(), expected):
                wrong.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    first, number = multiply(), torch.get_num_threads()
    for _ in range(50):
        assert torch.equal(multiply(), first)
        assert release_pool()
    with torch.profiler.profile():
        assert not release_pool()
    end.set()
    thread.join()
    assert wrong == []
    assert torch.get_num_threads() == number


FORK = """
import os, torch
from tests.support.faulty import counters
from vecenv import ShmemVectorEnv
torch.set_num_threads(2)
torch.ones(512, 512) @ torch.ones(512, 512)
if (child := os.fork()) == 0:
    with ShmemVectorEnv(counters(2)) as venv:
        venv.reset()
        for _ in range(100):
            venv.step([0, 0])
        assert "openmp_active" not in venv.stats()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("options", [{}, {"release_openmp": False}, {"wait_num": 1}, {"timeout": 5.0}], ids=str)
def test_arguments_switch_it_off(options: dict[str, Any]) -> None:
    with ShmemVectorEnv(counters(2), **options) as venv:
        assert ("openmp_active" in venv.stats()) == (not options and spinning_threads.is_enabled())


@FULL
def test_in_a_forked_child_it_is_off() -> None:
    assert script(FORK) == ["7"]


LOOP = """
import os, subprocess, sys, time
import numpy as np, torch
from tests.support.faulty import counters
from vecenv import ShmemVectorEnv
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
torch.set_num_threads(2)
tensor, matrix = torch.ones(512, 512), np.random.default_rng(0).normal(size=(512, 512))
first = matrix @ matrix
with ShmemVectorEnv(counters(4), num_workers=2) as venv:
    venv.reset()
    deadline = time.monotonic() + 60
    while not venv.stats()["openmp_rounds" if sys.argv[1] == "torch" else "openblas_shortened"]:
        assert time.monotonic() < deadline
        _ = tensor @ tensor if sys.argv[1] == "torch" else matrix @ matrix
        venv.step(np.zeros(4, np.int64))
assert np.array_equal(matrix @ matrix, first)
code = "import os; print(os.getenv('OPENBLAS_THREAD_TIMEOUT'))"
print(subprocess.check_output([sys.executable, "-c", code], text=True).strip())
"""


@pytest.mark.slow  # the length of spinning depends on other programs
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_the_threads_of_a_real_loop_are_found(library: str) -> None:
    """In a program of its own, because Python threads of other tests would protect OpenBLAS."""
    if library == "torch" and not can_release():
        pytest.skip("this torch does not use libgomp")
    assert script(LOOP, library) == ["None"], "children do not inherit the shorter spin time"


# Programs run in simulated time, because gains on a test machine depend on other programs.


class Program:
    """Simulated loop with rounds of 0.3 ms and 0.1 ms of the caller's work. Beside a spinning pool, a round takes 0.9
    ms.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cpus: int = 2, **state: Any) -> None:
        self.now = self.own = self.others = self.user_threads = self.training = 0.0
        self.spins = self.offers = self.ends = True
        self.pool = self.openblas = False
        self.start_seconds, self.started, self.ending, self.waits = 0.0, 1, list[int](), 0
        vars(self).update(state)
        fakes = {
            "usable_cpus": lambda: cpus,
            "time": SimpleNamespace(
                perf_counter=lambda: self.now,
                thread_time=lambda: self.own,
                process_time=lambda: self.own + self.others + self.user_threads * self.now,
            ),
            "can_release": lambda: self.offers,
            "release_pool": self.release,
            "shorten_openblas_spin": self.shorten,
            "unknown_threads": lambda: [self.started] * self.pool + self.ending,
            "cpu_seconds": lambda threads: self.others,
            "_warned": False,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(spinning_threads, name, fake)
        self.spinning = SpinningThreads(2)

    def release(self) -> bool:
        if self.ends:
            self.ending = [self.started] * self.pool
            self.pool, self.started = False, self.started + 1
        return True

    def shorten(self) -> bool:
        shortened, self.openblas = self.openblas, False
        if shortened:
            self.spins = self.pool = False
        return shortened

    def rounds(self, count: int) -> float:
        """Run rounds, and return the share of rounds before which the pool was released."""
        spinning, before = self.spinning, self.spinning.rounds
        for _ in range(count):
            self.now += 1e-4 if self.pool or not self.spins else 1e-4 + self.start_seconds
            self.pool = self.pool or self.spins  # the caller's parallel operation
            self.ending.clear()  # the system removes ended threads with a delay
            self.own += 1e-4
            if spinning.engaged:
                spinning.before_round()
            wait = 9e-4 if self.pool else 3e-4
            self.now += wait
            self.others += wait if self.pool else 0.0
            self.waits += 1
            if spinning.engaged:
                spinning.after_round()
            elif self.waits % 8 == 0:
                spinning.review(8)
            if self.waits % 64 == 0:
                self.now, self.others = self.now + self.training, self.others + self.training
        return (spinning.rounds - before) / count


@pytest.mark.parametrize(
    ("cpus", "state", "low", "high"),
    [
        (2, {}, 0.85, 1),
        (2, {"training": 5.0}, 0.85, 1),
        (2, {"openblas": True}, 0, 0),
        (2, {"spins": False, "user_threads": 1.0}, 0, 0),
        (4, {}, 0, 0),
        (2, {"start_seconds": 2e-3}, 0.001, 0.1),
    ],
    ids=[
        "the pool spins",
        "between batches the caller trains",
        "OpenBLAS is made to sleep",
        "only threads of the user run",
        "CPUs are spare",
        "new threads cost more than they spun",
    ],
)
def test_the_pool_is_released_while_this_saves_time(
    cpus: int, state: dict[str, Any], low: float, high: float, monkeypatch: pytest.MonkeyPatch, recwarn: Any
) -> None:
    program = Program(monkeypatch, cpus, **state)
    assert low <= program.rounds(4000) <= high
    assert not program.openblas
    assert len(recwarn) == 0
    if low > 0:
        program.spins, program.start_seconds = False, 0.0
        program.pool = False
        program.rounds(400)
        assert program.rounds(1000) == 0
        program.spins = True
        program.rounds(200)
        assert program.rounds(160) >= 0.85


@pytest.mark.parametrize("offers", [False, True], ids=["no libgomp", "threads of another library"])
def test_one_warning_says_what_to_do_where_nothing_helps(offers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch, offers=offers, ends=False)
    with pytest.warns(RuntimeWarning, match=r"used 1\.0 CPUs.*set_num_threads\(1\)") as caught:
        program.rounds(20_000)
    assert len(caught) == 1
    assert not program.spinning.stats()["openmp_active"]


def slept(monkeypatch: pytest.MonkeyPatch, slow: Callable[[int], bool]) -> float:
    """Return the share of 20,000 waits that sleep. `slow` tells before which waits a yield takes 3 ms."""
    wait, now = 0, 0.0

    def sched_yield() -> None:
        nonlocal now
        now += 3e-3 if slow(wait) else 1e-6

    monkeypatch.setattr(waiting.os, "sched_yield", sched_yield)
    monkeypatch.setattr(waiting.time, "perf_counter", lambda: now)
    looking, sleeps = waiting.SpinWait(50), 0
    for wait in range(20_000):  # noqa: B007  (`sched_yield` reads it)
        looks = iter([False, False])  # the third look finds an answer
        sleeps += not looking.until(lambda looks=looks: next(looks, True))  # type: ignore[misc]
    return sleeps / 20_000


def test_the_caller_looks_for_answers_on_an_idle_machine_and_sleeps_beside_programs_that_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert slept(monkeypatch, lambda wait: False) == 0
    assert slept(monkeypatch, lambda wait: True) > 0.99
    assert slept(monkeypatch, lambda wait: wait % 64 == 0) < 0.3, "the caller's own work is not another program"
