"""Threads of OpenMP and OpenBLAS that spin beside workers are ended. Results do not change."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.faulty import counters
from vecenv import ShmemVectorEnv, spinning_threads

pytest.importorskip("torch")


@pytest.mark.parametrize("options", [{}, {"release_openmp": False}, {"wait_num": 1}, {"timeout": 5.0}], ids=str)
def test_arguments_switch_it_off(options: dict[str, Any]) -> None:
    with ShmemVectorEnv(counters(2), **options) as venv:
        assert ("openmp_active" in venv.stats()) == (not options and spinning_threads.is_enabled())


def step_often(venv: Any) -> None:
    for _ in range(1000):
        venv.step([0, 0])


def test_one_warning_says_what_to_do_if_threads_of_another_library_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is simulated: between two looks, one unknown thread uses the CPU all the time."""
    now = 0.0

    def look() -> float:
        nonlocal now
        now += 0.1
        return now

    clock = SimpleNamespace(perf_counter=look, process_time=look, thread_time=lambda: 0.0)
    fakes = {"time": clock, "usable_cpus": lambda: 2, "unknown_threads": lambda: [1], "cpu_seconds": lambda tids: now}
    for name, fake in (fakes | {"_usable": True, "can_release": lambda: False, "_warned": False}).items():
        monkeypatch.setattr(spinning_threads, name, fake)
    monkeypatch.setattr(spinning_threads, "shorten_openblas_spin", lambda: False)
    with ShmemVectorEnv(counters(2), num_workers=2) as venv:
        venv.reset()
        with pytest.warns(RuntimeWarning, match=r"used 1\.0 CPUs.*set_num_threads\(1\)") as caught:
            step_often(venv)
        assert len(caught) == 1
        assert not venv.stats()["openmp_active"]


PROGRAM = """
import os, subprocess, sys, threading, time
import numpy as np, torch
from tests.support.faulty import counters
from vecenv import ShmemVectorEnv
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
torch.set_num_threads(2)
library = sys.argv[1]
own = torch.ones(512, 512) if library == "torch" else np.random.default_rng(0).normal(size=(512, 512))
first, wrong, end = own @ own, [], threading.Event()
def work():  # with an OpenMP pool of its own. Python threads protect OpenBLAS.
    torch.set_num_threads(2)
    while not end.wait(0.01):
        if not (own @ own == first).all():
            wrong.append(1)
thread = threading.Thread(target=work)
if library == "torch":
    thread.start()
def rounds(venv):
    venv.reset()
    deadline = time.monotonic() + 60
    while not venv.stats().get("openmp_rounds" if library == "torch" else "openblas_shortened"):
        assert time.monotonic() < deadline
        assert (own @ own == first).all()
        venv.step(np.zeros(4, np.int64))
with ShmemVectorEnv(counters(4), num_workers=2) as venv:
    rounds(venv)
end.set()
if library == "torch":
    thread.join()
assert (own @ own == first).all() and not wrong
if (child := os.fork()) == 0:
    with ShmemVectorEnv(counters(2)) as venv:
        venv.reset()
        for _ in range(100):
            venv.step([0, 0])
        os._exit(7 if "openmp_active" not in venv.stats() else 8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
code = "import os; print(os.getenv('OPENBLAS_THREAD_TIMEOUT'))"
print(subprocess.check_output([sys.executable, "-c", code], text=True).strip())
"""


@pytest.mark.slow  # the length of spinning depends on other programs
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_the_threads_of_a_real_loop_are_ended_and_results_stay_equal(library: str) -> None:
    """A forked child does not end threads. Children do not inherit the shorter spin time."""
    if library == "torch" and not spinning_threads.can_release():
        pytest.skip("this torch does not use libgomp")
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, library]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)
    assert (done.returncode, done.stdout.split()) == (0, ["7", "None"]), done.stderr
