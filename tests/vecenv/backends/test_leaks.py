"""Repeated opening and closing, also after failures, leaves no process, descriptor, thread or name behind."""

from __future__ import annotations

import gc
import os
import resource
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.support.backends import FULL, PROCESS_BACKENDS, full, one_of
from tests.support.faulty import RaisesInInit, RaisesOnStep, counters
from tests.support.ledger import Ledger, kill, pids
from vecenv import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, WorkerDiedError

SLOPE = 20 * 1024
"""Bytes that this process may grow per cycle, because of rounding by the system and caches of the interpreter."""


def mappings(pid: int | str = "self") -> list[str]:
    return Path(f"/proc/{pid}/maps").read_text().splitlines()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc/PID/maps")
def test_close_unmaps_all_memory_without_the_garbage_collector() -> None:
    def mapped() -> int:
        return sum("memfd:vecenv" in line for line in mappings())

    gc.collect()
    gc.disable()
    try:
        before = mapped()
        venv = ShmemVectorEnv(counters(2), num_workers=2)
        venv.reset(seed=0)
        assert mapped() > before
        venv.close()
        assert mapped() == before
    finally:
        gc.enable()


def cycle(venv_class: Any, k: int) -> None:
    """Open, use and close a vector env. Four of five cycles have a failure."""
    fault = k % 5
    bad = [{}, {"env2": RaisesInInit}, {"env1": RaisesOnStep}, {}, {}][fault]
    options: dict[str, Any] = {} if venv_class is DummyVectorEnv else {"num_workers": 1 + k % 2}
    if fault == 1:
        with pytest.raises(ValueError, match="boom"):
            venv_class(counters(3, **bad), **options)
        return
    venv = venv_class(counters(3, **bad), **options)
    ledger = Ledger(venv)
    ledger.begin()
    if fault == 2:
        ledger.fails(ValueError)
    if fault == 3 and venv_class is not DummyVectorEnv:
        kill(pids(venv)[0])
        with pytest.raises(WorkerDiedError):
            venv.step([0] * 3)
        venv.reset()
        venv.step([0] * 3)
    if fault == 4:
        venv.send([0] * 3)
        del ledger
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del venv
            gc.collect()
        return
    venv.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [5, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("venv_class", one_of([DummyVectorEnv, *PROCESS_BACKENDS]))
def test_cycles_leave_nothing_and_in_many_memory_does_not_grow(venv_class: Any, count: int) -> None:
    """The fixtures of all tests look for processes, descriptors, threads and shared memory that remain."""
    for k in range(max(5, count // 20)):
        cycle(venv_class, k)
    before, memory = os.listdir(tempfile.gettempdir()), []
    for k in range(count):
        cycle(venv_class, k)
        if k % 20 == 0:
            gc.collect()
            memory.append((k, psutil.Process().memory_info().rss))
    assert os.listdir(tempfile.gettempdir()) == before
    if count == 1000:
        growth = np.polyfit(*np.array(memory, float).T, 1)[0]
        print(f"{venv_class.__name__}: {growth:.0f} bytes a cycle")
        assert growth < SLOPE


@FULL
@pytest.mark.guarantee("G13.13")
@pytest.mark.parametrize("context", ["forkserver", "fork"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*threads.*:RuntimeWarning")
def test_nothing_that_is_open_has_a_name(context: str) -> None:
    """A killed process cannot remove names. Other users cannot find or occupy memory without a name."""
    with ShmemVectorEnv(counters(4), num_workers=2, context=context) as venv:
        Ledger(venv).begin()
        for pid in {os.getpid(), *pids(venv)}:
            lines = mappings(pid)
            assert [line for line in lines if "/dev/shm/" in line and not line.endswith("(deleted)")] == []


@FULL
def test_a_failed_start_for_want_of_descriptors_is_reported_and_leaves_nothing() -> None:
    SubprocVectorEnv(counters(1)).close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(fd) for fd in os.listdir("/proc/self/fd")}
    free = [fd for fd in range(1000) if fd not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[20], hard))
    try:
        with pytest.raises(OSError, match=r"[Tt]oo many open files|ulimit"):
            SubprocVectorEnv(counters(64), num_workers=64)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with SubprocVectorEnv(counters(4)) as venv:
        Ledger(venv).begin()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", full(PROCESS_BACKENDS))
def test_stepping_for_long_with_infos_and_faults_does_not_grow(backend: Any) -> None:
    """The parent frees frames, extras and errors of earlier rounds."""
    with backend(counters(4, env3=partial(RaisesOnStep, at=50)), num_workers=2) as venv:
        ledger = Ledger(venv)
        ledger.begin()
        blocks = []
        for k in range(2000):
            if ledger.t[3] == 49:
                ledger.fails(ValueError)
                ledger.reset([3])
            else:
                assert ledger.round() == []
            if k in (1200, 1999):  # the vector env keeps the times of the last 1,024 rounds
                gc.collect()
                blocks.append(sys.getallocatedblocks())
        assert blocks[1] - blocks[0] < 500
