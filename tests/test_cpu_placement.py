"""Workers that take turns on one CPU are moved apart, and nothing else is."""

import os
import subprocess
import sys

import pytest

from vecenv.backends.ipc.control_block import BUSY_NS, Control
from vecenv.backends.pool import cpu_placement
from vecenv.backends.pool.cpu_placement import CPU_FIELD, Placement, spread
from vecenv.backends.pool.cpu_placement import REVIEW_WAITS as ROUNDS
from vecenv.portability import PORTABLE

SPIN = "import os\nprint(flush=True)\nwhile True: os.sched_yield()"


class Worker:
    pid = 1

    def __init__(self, index):
        self.index = index


@pytest.fixture
def moves(monkeypatch):
    """Every call of `spread`."""
    calls = []
    monkeypatch.setattr(cpu_placement, "spread", calls.append)
    return calls


def rounds(busy, waited, count):
    """Rounds of so many seconds, in which each worker was busy for so long."""
    control = Control(len(busy))
    watch = Placement(control)
    workers = [Worker(index) for index in range(len(busy))]
    for done in range(1, count + 1):
        for worker, seconds in zip(workers, busy, strict=True):
            control.line(worker.index)[BUSY_NS] += round(1e9 * seconds)
        if done % ROUNDS == 0:
            watch.review(done * waited, workers)
    os.close(control.fd)


@pytest.mark.parametrize(
    ("busy", "waited", "expected"),
    [
        pytest.param((50e-6, 50e-6), 110e-6, 1, id="one after the other"),
        pytest.param((50e-6, 50e-6), 60e-6, 0, id="side by side"),
        pytest.param((90e-6, 10e-6), 95e-6, 0, id="unequal and side by side"),
        pytest.param((50e-6, 50e-6, 50e-6), 105e-6, 1, id="two of three"),
        pytest.param((2e-6, 2e-6), 5e-6, 0, id="not worth a move"),
    ],
)
def test_workers_are_moved_only_if_they_take_turns(moves, busy, waited, expected):
    rounds(busy, waited, count=2 * ROUNDS)
    assert len(moves) == expected


def test_moves_that_do_not_help_become_rare(moves, monkeypatch):
    now = 0.0

    def clock():
        nonlocal now
        now += 1e-3
        return now

    monkeypatch.setattr(cpu_placement.time, "perf_counter", clock)
    rounds((50e-6, 50e-6), 110e-6, count=100 * ROUNDS)
    assert 3 <= len(moves) <= 10


def cpu_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[CPU_FIELD])


@pytest.mark.skipif(PORTABLE, reason="there is nothing to move them with")
def test_processes_on_one_cpu_are_moved_apart_and_may_still_run_anywhere():
    allowed = os.sched_getaffinity(0)
    crowded = min(allowed)
    spinners = [subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        pids = [spinner.pid for spinner in spinners]
        for spinner in spinners:
            spinner.stdout.readline()
            os.sched_setaffinity(spinner.pid, {crowded})
        for pid in pids:
            os.sched_setaffinity(pid, allowed)
        spread(pids)
        assert len({cpu_of(pid) for pid in pids}) == min(2, len(allowed))
        assert [os.sched_getaffinity(pid) for pid in pids] == [allowed, allowed]
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.communicate()


def test_processes_that_have_ended_are_left_out():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    spread([ended.pid, ended.pid])
    assert ended.returncode == 0
