"""Envs that fork their process: a copy that returns from the env's method ends, and does not answer for the worker."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.support.backends import FULL
from tests.support.faulty import Counter, boom
from tests.support.ledger import Column, columns
from tests.support.paths import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*threads.*:RuntimeWarning")

PLACES = ("__init__", "reset", "step", "method", "close")
STATUS = {"returns": 0, "raises": 1, "exits": 5, "exits with a text": 1}


class Forks(Counter):
    """Forks its process at `place`, and writes the exit status of the copy to the file `report`."""

    def __init__(self, id: int, place: str, end: str, report: Path) -> None:
        super().__init__(id)
        self.place, self.end, self.report = place, end, report
        self.fork("__init__")

    def fork(self, place: str) -> None:
        if place != self.place or self.report.exists():
            return
        copy = os.fork()
        if copy:
            self.report.write_text(str(status_of(copy)))
            return
        self.id, self.t = 1000, 1000
        if self.end == "raises":
            raise boom()
        if self.end.startswith("exits"):
            sys.exit("the end" if "text" in self.end else 5)

    def on_reset(self) -> None:
        self.fork("reset")

    def on_step(self) -> None:
        self.fork("step")

    def method(self) -> int:
        self.fork("method")
        return self.id

    def close(self) -> None:
        self.fork("close")


def status_of(copy: int) -> int | str:
    """Return the exit status of a copy. Kill a copy that continues."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        ended, status = os.waitpid(copy, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(copy, signal.SIGKILL)
    os.waitpid(copy, 0)
    return "continued"


@columns("blocks", dummy=False, quick=True)
def test_a_forked_copy_that_leaves_the_env_ends_without_an_answer(column: Column, tmp_path: Path) -> None:
    cases = list(itertools.product(PLACES, STATUS))
    reports = [tmp_path / f"{place} {end}" for place, end in cases]
    env_fns = [partial(Forks, i, *case, report) for i, (case, report) in enumerate(zip(cases, reports, strict=True))]
    with column.open(env_fns) as ledger:
        ledger.begin()
        assert ledger.venv.call("method") == [*range(len(cases))]
        assert ledger.round() == []
        ledger.reset()
        assert ledger.round() == []
    ends = {report.name: report.read_text() for report in reports}
    assert ends == {f"{place} {end}": str(STATUS[end]) for place, end in cases}


@columns("blocks", dummy=False, ray=False)
def test_a_copy_that_raises_prints_its_traceback(
    column: Column, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Forked workers write to the standard error of this process."""
    ends = {"step": "raises", "method": "exits with a text", "close": "exits"}
    env_fns = [partial(Forks, i, place, end, tmp_path / place) for i, (place, end) in enumerate(ends.items())]
    with column.open(env_fns, context="fork") as ledger:
        ledger.begin()
        ledger.venv.call("method")
    printed = capfd.readouterr().err
    assert printed.count("Traceback") == printed.count(f"ValueError: {boom()}") == printed.count("in on_step") == 1
    assert printed.endswith("the end\n")


THREADS = """
from functools import partial
from pathlib import Path
from tests.vecenv.engine.test_faults_copies import PLACES, Forks
from vecenv import ThreadVectorEnv
env_fns = [partial(Forks, i, place, "returns", Path({folder!r}, place)) for i, place in enumerate(PLACES)]
with ThreadVectorEnv(env_fns, num_workers=2) as venv:
    venv.reset()
    venv.step([0] * len(PLACES))
    print(venv.call("method"), venv.step([0] * len(PLACES))[0][:, 2])
"""


@FULL
def test_a_copy_of_a_thread_ends_too(tmp_path: Path) -> None:
    """The copy has no other thread, so it would wait for the next round without end."""
    program = [sys.executable, "-W", "ignore", "-c", THREADS.format(folder=str(tmp_path))]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[0, 1, 2, 3, 4] [2 2 2 2 2]\n", "")
    assert {(tmp_path / place).read_text() for place in PLACES} == {"0"}
