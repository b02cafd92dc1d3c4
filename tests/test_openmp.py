"""OpenMP threads of the caller: they are ended before rounds where that helps, and nothing else changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.backends import FULL
from tests.faulty import counters
from vecenv import ShmemVectorEnv, openmp
from vecenv.backends.pool import openmp_release
from vecenv.backends.pool.openmp_release import OpenMPRelease

torch = pytest.importorskip("torch")


def multiply() -> Any:
    """A parallel operation on two threads, whatever this thread has set."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        return torch.ones(512, 512) @ torch.ones(512, 512)
    finally:
        torch.set_num_threads(before)


def script(text: str, *args: str, **environment: str) -> str:
    """What a program of its own prints."""
    command = [sys.executable, "-c", text, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


needs_libgomp = pytest.mark.skipif(not openmp.can_release(), reason="this torch does not use libgomp")


@needs_libgomp
@FULL
class TestRelease:
    def test_it_ends_the_threads_of_the_pool_and_they_come_back(self):
        first, threads = multiply(), torch.get_num_threads()
        assert openmp.release_pool()
        assert torch.get_num_threads() == threads
        without = openmp.count_threads()
        multiply()
        assert openmp.count_threads() > without
        assert openmp.release_pool()
        assert openmp.count_threads() == without
        assert torch.equal(multiply(), first)

    @pytest.mark.timeout(900)  # threads that spin are slow where other programs are busy
    @pytest.mark.parametrize("rounds", [10, pytest.param(2000, marks=pytest.mark.slow)])
    def test_training_gives_the_same_weights(self, rounds):
        def train(release: bool) -> list[Any]:
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8))
            optimizer = torch.optim.Adam(net.parameters())
            x, y = torch.randn(512, 64), torch.randn(512, 8)
            for _ in range(rounds):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(net(x), y).backward()
                optimizer.step()
                if release:
                    openmp.release_pool()
            return [p.detach() for p in net.parameters()]

        for one, other in zip(train(False), train(True), strict=True):
            assert torch.equal(one, other)

    def test_the_pool_of_another_thread_goes_on(self):
        wrong, end = [], threading.Event()

        def work() -> None:
            expected = multiply()
            while not end.is_set():
                if not torch.equal(multiply(), expected):
                    wrong.append(1)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(50):
            multiply()
            assert openmp.release_pool()
        end.set()
        thread.join()
        assert wrong == []

    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("cycles", [100, pytest.param(20_000, marks=pytest.mark.slow)])
    def test_threads_and_memory_do_not_grow(self, cycles):
        def resident() -> int:
            return int(Path("/proc/self/statm").read_text().split()[1])

        for _ in range(50):
            multiply()
            openmp.release_pool()
        threads, pages = openmp.count_threads(), resident()
        for _ in range(cycles):
            multiply()
            openmp.release_pool()
        assert openmp.count_threads() == threads
        assert resident() - pages < 1000  # less than a page a cycle, and what the allocator rounds up

    @pytest.mark.timeout(900)
    @pytest.mark.slow  # torch.compile asks a C++ compiler for half a minute
    def test_a_compiled_policy_gives_the_same_actions(self):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 8))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of torch's own compiler
            compiled = torch.compile(net)
            obs = torch.randn(512, 512)
            with torch.no_grad():
                expected = compiled(obs)
                for _ in range(100):
                    assert openmp.release_pool()
                    assert torch.equal(compiled(obs), expected)

    def test_the_answer_of_an_error_switches_it_off(self, monkeypatch):
        asked = []
        monkeypatch.setattr(openmp, "_releases", [lambda kind: asked.append(kind) or 1])
        monkeypatch.setattr(openmp, "_usable", True)
        assert not openmp.release_pool()
        assert not openmp.release_pool()
        assert asked == [openmp.PAUSE_SOFT]
        assert not openmp.is_enabled()

    def test_a_profile_is_not_disturbed(self):
        with torch.profiler.profile():
            assert not openmp.release_pool()
        assert openmp.release_pool()

    def test_data_loaders_fork_afterwards(self):
        multiply()
        openmp.release_pool()
        loader = torch.utils.data.DataLoader(
            list(range(8)), batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of any fork with threads
            assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


FORK = """
import os, torch, numpy as np
from tests.faulty import counters
from vecenv import ShmemVectorEnv, openmp
torch.set_num_threads(2)
torch.ones(512, 512) @ torch.ones(512, 512)
print(openmp.can_release(), flush=True)
if (child := os.fork()) == 0:
    assert not openmp.release_pool() and not openmp.is_enabled()
    with ShmemVectorEnv(counters(2)) as venv:
        venv.reset()
        for _ in range(100):
            venv.step([0, 0])
        assert "openmp_active" not in venv.stats()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needs_libgomp
@FULL
def test_in_a_forked_child_it_is_off():
    assert script(FORK).split() == ["True", "7"]


@FULL
def test_the_environment_switches_it_off():
    text = "import torch; from vecenv import openmp; print(openmp.can_release(), openmp.is_enabled())"
    assert script(text, VECENV_RELEASE_OPENMP="0").split() == ["False", "False"]


@FULL
def test_the_argument_switches_it_off():
    with ShmemVectorEnv(counters(2), release_openmp=False) as venv:
        assert "openmp_active" not in venv.stats()


@FULL
def test_a_libgomp_without_the_call_is_left_alone(tmp_path):
    copy = tmp_path / "libgomp.so.1"
    shutil.copy(next(Path("/lib").glob("*/libm.so.6")), copy)
    text = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); from vecenv import openmp; print(openmp.release_pool())"
    assert script(text, str(copy)).split() == ["False"]


# When it is used: a program in simulated time, because gains on a test machine depend on what else it runs.


class Program:
    """A loop with a round of `round_s` seconds and `between_s` of the caller's work, whose pool spins if `spins`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cpus: int = 2, workers: int = 2) -> None:
        self.now = self.own = self.others = self.waited = 0.0
        self.spins, self.threads, self.slowdown, self.user_threads = True, 1, 3.0, 0.0
        self.offers = self.ends = True
        self.pool = False
        monkeypatch.setattr(openmp_release, "usable_cpus", lambda: cpus)
        monkeypatch.setattr(
            openmp_release,
            "time",
            SimpleNamespace(
                perf_counter=lambda: self.now,
                thread_time=lambda: self.own,
                process_time=lambda: self.own + self.others + self.user_threads * self.now,
            ),
        )
        monkeypatch.setattr(
            openmp_release,
            "openmp",
            SimpleNamespace(
                can_release=lambda: self.offers,
                release_pool=self.release,
                count_threads=lambda: 1 + self.pool,
                unknown_threads=lambda: [1],
                cpu_seconds=lambda threads: self.others,
            ),
        )
        monkeypatch.setattr(openmp_release, "_warned", False)
        self.release_pool = OpenMPRelease(workers)
        self.waits = 0

    def release(self) -> bool:
        self.pool = self.pool and not self.ends
        return True

    def rounds(self, count: int) -> int:
        """Run rounds; returns before how many of them the pool was released."""
        release, before = self.release_pool, self.release_pool.rounds
        for _ in range(count):
            self.pool = self.pool or self.spins  # the caller's parallel operation
            self.now += 1e-4
            self.own += 1e-4
            if release.engaged:
                release.before_round()
                release.wait_begins()
            wait = 3e-4 * (self.slowdown if self.pool else 1.0)
            self.now += wait
            self.waited += wait
            self.others += wait if self.pool else 0.0
            if release.engaged:
                release.wait_ends()
            self.waits += 1
            if self.waits % 8 == 0:
                release.review(self.waited)
        return release.rounds - before


class TestWhenItIsUsed:
    def test_a_loop_whose_pool_spins_has_it_released_in_nine_of_ten_rounds(self, monkeypatch):
        program = Program(monkeypatch)
        program.rounds(200)
        assert program.release_pool.stats()["openmp_active"]
        assert program.rounds(2000) >= 1800
        assert program.release_pool.gain > 2

    def test_it_ends_within_100_rounds_once_nothing_spins_and_begins_again(self, monkeypatch):
        program = Program(monkeypatch)
        program.rounds(200)
        program.spins = False
        program.rounds(100)
        assert not program.release_pool.engaged
        assert program.rounds(1000) == 0
        program.spins = True
        program.rounds(200)
        assert program.release_pool.stats()["openmp_active"]

    def test_a_loop_in_which_nothing_spins_is_left_alone_whatever_threads_of_the_user_do(self, monkeypatch):
        program = Program(monkeypatch)
        program.spins, program.user_threads = False, 1.0
        assert program.rounds(1000) == 0

    def test_spare_cpus_are_no_alarm(self, monkeypatch, recwarn):
        program = Program(monkeypatch, cpus=4)
        assert program.rounds(1000) == 0
        assert len(recwarn) == 0

    def test_where_it_makes_rounds_slower_it_stops(self, monkeypatch):
        program = Program(monkeypatch)
        program.slowdown = 0.9
        program.rounds(400)
        assert not program.release_pool.stats()["openmp_active"]
        assert program.rounds(2000) < 400

    def test_the_time_of_training_does_not_matter(self, monkeypatch):
        program = Program(monkeypatch)
        for _ in range(20):
            program.rounds(64)
            program.now += 5.0
            program.others += 5.0
        assert program.release_pool.stats()["openmp_active"]
        assert program.rounds(64) >= 56

    @pytest.mark.parametrize("offers", [False, True], ids=["no libgomp", "threads of OpenBLAS"])
    def test_one_warning_says_what_to_do_where_nothing_helps(self, offers, monkeypatch):
        program = Program(monkeypatch)
        program.offers, program.ends = offers, False
        with pytest.warns(RuntimeWarning, match=r"used 1\.0 CPUs.*set_num_threads\(1\)") as caught:
            program.rounds(20_000)
        assert len(caught) == 1
        assert not program.release_pool.stats()["openmp_active"]


@needs_libgomp
@pytest.mark.slow  # what is gained depends on what else the machine runs
def test_the_threads_of_a_real_loop_are_found(monkeypatch):
    monkeypatch.setattr(openmp_release, "usable_cpus", lambda: 2)
    with ShmemVectorEnv(counters(4), num_workers=2) as venv:
        venv.reset()
        deadline = time.monotonic() + 60
        while venv.stats()["openmp_rounds"] == 0 and time.monotonic() < deadline:
            multiply()
            venv.step(np.zeros(4, np.int64))
        assert venv.stats()["openmp_rounds"] > 0
