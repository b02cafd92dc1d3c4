"""Workers filter log records and warnings as the program does."""

from __future__ import annotations

import logging
import os
import sys
import types
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.backends import FULL, ON_RAY, full
from tests.support.ledger import kill, wait_until
from tests.support.paths import ROOT
from tests.support.programs import run_python
from vecenv import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from vecenv.testing import CountingEnv

LOGGERS = ("sim", "sim.part", "simple")


class Reports(CountingEnv):
    """Env that tells which records and warnings pass in its process."""

    def pid(self) -> int:
        return os.getpid()

    def passes(self) -> list[Any]:
        levels = range(10, 60, 10)
        records = [sum(logging.getLogger(name).isEnabledFor(level) for level in levels) for name in LOGGERS]
        kinds = {"part 7 is old": DeprecationWarning, "slow": UserWarning, "x": Warning}
        return [*records, *(_outcome(text, kind) for text, kind in kinds.items())]


def _outcome(text: str, category: type[Warning]) -> str:
    with warnings.catch_warnings(record=True) as caught:
        try:
            warnings.warn(text, category, stacklevel=1)
        except Warning:
            return "raised"
    return "shown" if caught else "ignored"


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Levels and filters of a program. One of the filters is for a class of a module that no worker can import."""
    levels = {"": logging.DEBUG, "sim": logging.ERROR, "sim.part": logging.CRITICAL}
    before = {name: logging.getLogger(name).level for name in levels}
    missing: Any = types.ModuleType("missing_in_workers")
    missing.Odd = type("Odd", (UserWarning,), {"__module__": missing.__name__})
    monkeypatch.setitem(sys.modules, missing.__name__, missing)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.disable(logging.DEBUG)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.filterwarnings("error", r"part \d is old", DeprecationWarning)
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", missing.Odd)
        yield
    logging.disable(logging.NOTSET)
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize(
    "make",
    [
        partial(ShmemVectorEnv, context="forkserver"),
        *full([partial(SubprocVectorEnv, context="spawn"), partial(ShmemVectorEnv, context="fork")]),
        ON_RAY,
    ],
)
@pytest.mark.usefixtures("reporting")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*threads.*:RuntimeWarning")
def test_workers_use_the_levels_and_filters_of_the_program(make: Any) -> None:
    expected = [2, 1, 4, "raised", "ignored", "shown"]
    with DummyVectorEnv([Reports]) as here:
        assert here.call("passes") == [expected]
    with make([Reports] * 2) as venv:
        assert venv.call("passes") == [expected] * 2
        if make is RayVectorEnv or make.keywords["context"] == "fork":
            return
        logging.root.setLevel(logging.CRITICAL)
        warnings.simplefilter("error")
        kill(venv.call("pid")[0])
        wait_until(lambda: not venv.alive()[0])
        venv.reset()
        assert venv.call("passes")[0] == expected, "a new worker gets what the first one got"


OLD_SIM = """
import warnings
from vecenv.testing import CountingEnv as Env
class Env(Env): pass
warnings.warn("this simulator is old", FutureWarning)
"""
IMPORTS_WITH_A_WARNING = """
import sys, warnings
warnings.simplefilter("ignore", FutureWarning)
import old_sim, vecenv
if sys.argv[2] == "set later":
    warnings.simplefilter("error")
with vecenv.ShmemVectorEnv([old_sim.Env] * 2, context=sys.argv[1]) as venv:
    print(venv.reset()[0].shape)
"""


@pytest.mark.parametrize(
    ("context", "filters"),
    [
        ("forkserver", "set later"),
        pytest.param("forkserver", "set before", marks=FULL),
        pytest.param("spawn", "set later", marks=FULL),
    ],
)
def test_filters_also_hold_for_warnings_of_imports(context: str, filters: str, tmp_path: Path) -> None:
    """The default start method imports the module in a server. `spawn` imports it in each worker.

    A filter that raises errors, set after the program has imported the module, does not raise in workers.
    """
    (tmp_path / "old_sim.py").write_text(OLD_SIM)
    path = os.pathsep.join((str(ROOT), str(tmp_path)))
    done = run_python("-c", IMPORTS_WITH_A_WARNING, context, filters, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (0, "(2, 5)\n"), done.stderr
    assert filters == "set later" or not done.stderr
