"""Threads of OpenMP and OpenBLAS that spin beside workers are ended if this saves time. Results do not change."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.backends import FULL
from tests.support.faulty import counters
from tests.support.ledger import wait_until
from vecenv import ShmemVectorEnv, spinning_threads
from vecenv.backends.ipc import waiting
from vecenv.portability import PORTABLE
from vecenv.spinning_threads import PAUSE_SOFT, SpinningThreads, can_release, is_enabled, release_pool

torch = pytest.importorskip("torch")


def multiply() -> Any:
    """Run a parallel operation on two threads, whatever number this thread has set."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        return torch.ones(512, 512) @ torch.ones(512, 512)
    finally:
        torch.set_num_threads(before)


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def script(text: str, *args: str, **environment: str) -> list[str]:
    """Run a program and return the words that it prints."""
    command = [sys.executable, "-c", text, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


needs_libgomp = pytest.mark.skipif(not can_release(), reason="this torch does not use libgomp")


@needs_libgomp
@FULL
class TestOpenMP:
    @pytest.mark.timeout(900)  # spinning threads are slow if other programs are busy
    @pytest.mark.parametrize("cycles", [100, pytest.param(20_000, marks=pytest.mark.slow)])
    def test_the_threads_end_and_come_back_with_the_same_results_and_nothing_grows(self, cycles):
        def pages() -> int:
            return int(Path("/proc/self/statm").read_text().split()[1])

        first, number = multiply(), torch.get_num_threads()
        for _ in range(50):
            multiply()
            assert release_pool()
        before, resident = threads(), pages()
        for _ in range(cycles):
            assert torch.equal(multiply(), first)
            started = threads() - before
            assert started
            assert release_pool()
            wait_until(
                lambda gone=started: gone.isdisjoint(threads())
            )  # the system removes an ended thread a little later
        assert torch.get_num_threads() == number
        assert pages() - resident < 1000  # less than a page per cycle, plus rounding by the allocator

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
            assert release_pool()
        end.set()
        thread.join()
        assert wrong == []

    @pytest.mark.timeout(900)
    @pytest.mark.slow  # torch.compile runs a C++ compiler for half a minute
    def test_a_compiled_policy_gives_the_same_actions(self):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 8))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of torch's compiler
            compiled = torch.compile(net)
            obs = torch.randn(512, 512)
            with torch.no_grad():
                expected = compiled(obs)
                for _ in range(100):
                    assert release_pool()
                    assert torch.equal(compiled(obs), expected)

    def test_the_answer_of_an_error_switches_it_off(self, monkeypatch):
        asked = []
        monkeypatch.setattr(spinning_threads, "_releases", [lambda kind: asked.append(kind) or 1])
        monkeypatch.setattr(spinning_threads, "_usable", True)
        assert not release_pool()
        assert not release_pool()
        assert asked == [PAUSE_SOFT]
        assert not is_enabled()

    def test_a_profile_is_not_disturbed(self):
        with torch.profiler.profile():
            assert not release_pool()
        assert release_pool()

    def test_data_loaders_fork_afterwards(self):
        multiply()
        release_pool()
        loader = torch.utils.data.DataLoader(
            list(range(8)), batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of any fork with threads
            assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


FORK = """
import os, torch, numpy as np
from tests.support.faulty import counters
from vecenv import ShmemVectorEnv
from vecenv.spinning_threads import can_release, is_enabled, release_pool, shorten_openblas_spin
torch.set_num_threads(2)
torch.ones(512, 512) @ torch.ones(512, 512)
print(can_release(), flush=True)
if (child := os.fork()) == 0:
    assert not release_pool() and not shorten_openblas_spin() and not is_enabled()
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
    assert script(FORK) == ["True", "7"]


@FULL
def test_the_argument_switches_it_off():
    with ShmemVectorEnv(counters(2), release_openmp=False) as venv:
        assert "openmp_active" not in venv.stats()


def test_a_library_whose_file_is_not_there_any_more_is_left_alone(monkeypatch):
    """For example after an upgrade while the program runs."""
    monkeypatch.setattr(spinning_threads, "_releases", [])
    monkeypatch.setattr(spinning_threads, "system_file", lambda path: "0-1 r-xp 0 08:01 1 /libgomp.so.1 (deleted)\n")
    assert not can_release()


@FULL
def test_a_libgomp_without_the_call_is_left_alone(tmp_path):
    copy = tmp_path / "libgomp.so.1"
    shutil.copy(next(Path("/lib").glob("*/libm.so.6")), copy)
    text = """
import ctypes, sys
from vecenv.spinning_threads import release_pool
ctypes.CDLL(sys.argv[1])
print(release_pool())
"""
    assert script(text, str(copy)) == ["False"]


OPENBLAS = """
import os, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from vecenv.spinning_threads import cpu_seconds, is_enabled, shorten_openblas_spin, unknown_threads

matrix = np.random.default_rng(0).normal(size=(600, 600))

def used():
    # By OpenBLAS's threads, in 30 ms of this one after a product.
    product, before = matrix @ matrix, time.thread_time()
    start = cpu_seconds(unknown_threads())
    while time.thread_time() < before + 0.03:
        pass
    return product, cpu_seconds(unknown_threads()) - start

case = sys.argv[1]
if case == "pool":
    keep = ThreadPoolExecutor(1)
    keep.submit(used).result()
elif case == "thread":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
elif case == "scipy":
    from scipy.linalg.blas import dgemm
    assert np.allclose(dgemm(1.0, matrix, matrix), matrix @ matrix)
for _ in range(50):  # beside other programs the threads may not get a CPU in that time
    product, before = used()
    if before > 0.002:
        break
print(is_enabled(), shorten_openblas_spin(), shorten_openblas_spin())
again, after = used()
assert np.array_equal(product, again), "another product"
assert "OPENBLAS_THREAD_TIMEOUT" not in os.environ or case == "set"
children = subprocess.check_output([sys.executable, "-c", "import os; print(os.getenv('OPENBLAS_THREAD_TIMEOUT'))"])
print(children.decode().strip(), before > 0.002, after > before / 4)
if (child := os.fork()) == 0:
    os._exit(7 if np.array_equal(matrix @ matrix, product) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert np.array_equal(matrix @ matrix, product)
"""
TWO = {"OPENBLAS_NUM_THREADS": "2"}


def has_openblas() -> bool:
    text = "import numpy as np; np.ones((9, 9)) @ np.ones((9, 9)); print('openblas' in open('/proc/self/maps').read())"
    return sys.platform == "linux" and not PORTABLE and script(text) == ["True"]


class TestOpenBLAS:
    """The programs print these words: enabled; shortened at first, and later; in a child; spins before, and afterwards;
    exit code of a fork.
    """

    @pytest.mark.parametrize("case", ["alone", pytest.param("scipy", marks=FULL)])
    def test_threads_sleep_after_a_product_which_stays_the_same(self, case):
        if not has_openblas():
            pytest.skip("this numpy does not use OpenBLAS")
        if case == "scipy":
            pytest.importorskip("scipy")
        assert script(OPENBLAS, case, **TWO) == ["True", "True", "False", "None", "True", "False", "7"]

    @FULL
    @pytest.mark.skipif(PORTABLE, reason="threads are observed through /proc")
    @pytest.mark.parametrize(
        ("case", "environment", "enabled"),
        [
            ("thread", {}, True),
            ("pool", {}, True),
            ("set", {"OPENBLAS_THREAD_TIMEOUT": "26"}, True),
            ("off", {"VECENV_RELEASE_OPENMP": "0"}, False),
        ],
    )
    def test_it_is_left_alone(self, case, environment, enabled):
        words = script(OPENBLAS, case, **TWO, **environment)
        assert words[:3] == [str(enabled), "False", "False"]
        assert words[-1] == "7"


# Programs run in simulated time, because gains on a test machine depend on other programs.


class Program:
    """Simulated loop with rounds of 0.3 ms and 0.1 ms of the caller's work. Beside a spinning pool, a round takes 0.9
    ms.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cpus: int = 2) -> None:
        self.now = self.own = self.others = self.user_threads = 0.0
        self.spins = self.offers = self.ends = True
        self.pool = self.openblas = False
        self.start_seconds, self.started, self.ending = 0.0, 1, list[int]()
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
        self.waits = 0

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

    def rounds(self, count: int) -> int:
        """Run rounds, and return the number of rounds before which the pool was released."""
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
        return spinning.rounds - before


class TestWhenItIsUsed:
    def test_a_loop_whose_pool_spins_has_it_released_in_nine_of_ten_rounds_until_nothing_spins(self, monkeypatch):
        program = Program(monkeypatch)
        program.rounds(200)
        assert program.spinning.stats()["openmp_active"]
        assert program.rounds(2000) >= 1800
        program.spins = False
        program.rounds(200)
        assert program.rounds(1000) == 0
        program.spins = True
        program.rounds(200)
        assert program.rounds(160) >= 144

    @pytest.mark.parametrize(
        ("cpus", "state"),
        [(2, {"openblas": True}), (2, {"spins": False, "user_threads": 1.0}), (4, {})],
        ids=["OpenBLAS is made to sleep", "only threads of the user run", "CPUs are spare"],
    )
    def test_no_pool_is_released_where_there_is_no_need(self, cpus, state, monkeypatch, recwarn):
        program = Program(monkeypatch, cpus)
        vars(program).update(state)
        assert program.rounds(1000) == 0
        assert not program.openblas
        assert len(recwarn) == 0

    def test_the_pool_stays_where_its_new_threads_cost_more_than_they_spun(self, monkeypatch):
        program = Program(monkeypatch)
        program.start_seconds = 2e-3  # other programs use the CPUs
        assert 0 < program.rounds(10_000) < 1_000
        program.start_seconds = 0.0
        program.rounds(200)
        assert program.rounds(2000) >= 1800

    def test_the_time_of_training_does_not_matter(self, monkeypatch):
        program = Program(monkeypatch)
        for _ in range(20):
            program.rounds(64)
            program.now += 5.0
            program.others += 5.0
        assert program.rounds(640) >= 560

    @pytest.mark.parametrize("offers", [False, True], ids=["no libgomp", "threads of another library"])
    def test_one_warning_says_what_to_do_where_nothing_helps(self, offers, monkeypatch):
        program = Program(monkeypatch)
        program.offers, program.ends = offers, False
        with pytest.warns(RuntimeWarning, match=r"used 1\.0 CPUs.*set_num_threads\(1\)") as caught:
            program.rounds(20_000)
        assert len(caught) == 1
        assert not program.spinning.stats()["openmp_active"]


class TestSpinWait:
    @staticmethod
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

    def test_it_looks_on_an_idle_machine_and_sleeps_beside_programs_that_compute(self, monkeypatch):
        assert self.slept(monkeypatch, lambda wait: False) == 0
        assert self.slept(monkeypatch, lambda wait: True) > 0.99

    def test_the_callers_own_work_after_each_batch_is_no_program_beside_it(self, monkeypatch):
        assert self.slept(monkeypatch, lambda wait: wait % 64 == 0) < 0.3


LOOP = """
import sys, time
import numpy as np, torch
from tests.support.faulty import counters
from vecenv import ShmemVectorEnv
from vecenv import spinning_threads
spinning_threads.usable_cpus = lambda: 2
torch.set_num_threads(2)
tensor, matrix = torch.ones(512, 512), np.ones((512, 512))
with ShmemVectorEnv(counters(4), num_workers=2) as venv:
    venv.reset()
    deadline = time.monotonic() + 60
    while not venv.stats()["openmp_rounds" if sys.argv[1] == "torch" else "openblas_shortened"]:
        assert time.monotonic() < deadline
        _ = tensor @ tensor if sys.argv[1] == "torch" else matrix @ matrix
        venv.step(np.zeros(4, np.int64))
print("found")
"""


@pytest.mark.slow  # the length of spinning depends on other programs
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_the_threads_of_a_real_loop_are_found(library):
    """In a program of its own, because Python threads of other tests would protect OpenBLAS."""
    if library == "torch" and not can_release():
        pytest.skip("this torch does not use libgomp")
    assert script(LOOP, library, **TWO) == ["found"]
