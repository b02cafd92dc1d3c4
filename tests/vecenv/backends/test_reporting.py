"""Workers filter log records and warnings as the program does."""

from __future__ import annotations

import logging
import os
import subprocess
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
from vecenv import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from vecenv.testing import CountingEnv

fork_may_warn = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*threads.*:RuntimeWarning")
CONTEXTS = [
    partial(ShmemVectorEnv, context="forkserver"),
    *full([partial(SubprocVectorEnv, context="spawn"), partial(ShmemVectorEnv, context="fork")]),
    ON_RAY,
]


class Reports(CountingEnv):
    """Env that tells which records and warnings pass in its process."""

    def pid(self) -> int:
        return os.getpid()

    def records(self) -> list[int]:
        return [
            sum(logging.getLogger(name).isEnabledFor(level) for level in range(10, 60, 10))
            for name in ("sim", "sim.part", "simple")
        ]

    def warnings(self) -> list[str]:
        return [_outcome("part 7 is old", DeprecationWarning), _outcome("slow", UserWarning), _outcome("x", Warning)]


def _outcome(text: str, category: type[Warning]) -> str:
    with warnings.catch_warnings(record=True) as caught:
        try:
            warnings.warn(text, category, stacklevel=1)
        except Warning:
            return "raised"
    return "shown" if caught else "ignored"


@pytest.fixture
def reporting() -> Iterator[None]:
    """Levels and filters of a program. One of the filters is for a class of a module that no worker can import."""
    levels = {name: logging.getLogger(name).level for name in ("", "sim", "sim.part")}
    missing = types.ModuleType("missing_in_workers")
    missing.Odd = type("Odd", (UserWarning,), {"__module__": missing.__name__})  # type: ignore[attr-defined]
    sys.modules[missing.__name__] = missing
    with warnings.catch_warnings():
        try:
            logging.root.setLevel(logging.DEBUG)
            logging.getLogger("sim").setLevel(logging.ERROR)
            logging.getLogger("sim.part").setLevel(logging.CRITICAL)
            logging.disable(logging.DEBUG)
            warnings.simplefilter("default")
            warnings.filterwarnings("error", r"part \d is old", DeprecationWarning)
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("error", missing.Odd)  # type: ignore[attr-defined]
            yield
        finally:
            del sys.modules[missing.__name__]
            logging.disable(logging.NOTSET)
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize("make", CONTEXTS)
@pytest.mark.usefixtures("reporting")
@fork_may_warn
def test_workers_use_the_levels_and_filters_of_the_program(make: Any) -> None:
    with DummyVectorEnv([Reports]) as here:
        expected = here.call("records") + here.call("warnings")
    assert expected == [[2, 1, 4], ["raised", "ignored", "shown"]]
    with make([Reports] * 2) as venv:
        assert [[*row] for row in zip(venv.call("records"), venv.call("warnings"), strict=True)] == [expected] * 2
        if make is RayVectorEnv:
            return
        logging.root.setLevel(logging.CRITICAL)
        warnings.simplefilter("error")
        kill(venv.call("pid")[0])
        wait_until(lambda: not venv.alive()[0])
        venv.reset()
        if make.keywords["context"] != "fork":  # a new worker gets what the first one got
            assert [venv.call("records")[0], venv.call("warnings")[0]] == expected


IMPORTS_WITH_A_WARNING = """
import sys, warnings
warnings.simplefilter("ignore", FutureWarning)
import old_sim, vecenv
with vecenv.ShmemVectorEnv([old_sim.Env] * 2, context=sys.argv[1]) as venv:
    print(venv.reset()[0].shape)
"""
OLD_SIM = """
import warnings
from vecenv.testing import CountingEnv as Env
class Env(Env): pass
warnings.warn("this simulator is old", FutureWarning)
"""


@pytest.mark.parametrize(
    ("set_later", "context"),
    [(True, "forkserver"), *(pytest.param(*each, marks=FULL) for each in ((False, "forkserver"), (True, "spawn")))],
)
def test_filters_also_hold_for_warnings_of_imports(set_later: bool, context: str, tmp_path: Path) -> None:
    """The default start method imports the module in a server. `spawn` imports it in each worker.

    A filter that raises errors, set after the program has imported the module, does not raise in workers.
    """
    (tmp_path / "old_sim.py").write_text(OLD_SIM)
    path = os.pathsep.join((str(ROOT), str(tmp_path)))
    later = 'import old_sim, vecenv\nwarnings.simplefilter("error")' if set_later else "import old_sim, vecenv"
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS_WITH_A_WARNING.replace("import old_sim, vecenv", later), context],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert (done.returncode, done.stdout) == (0, "(2, 5)\n"), done.stderr
    assert set_later or not done.stderr
