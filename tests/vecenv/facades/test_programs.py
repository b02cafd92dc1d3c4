"""Thirty random programs per facade and autoreset mode return the same as with the original vector env."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz import gymnasium, sb3
from tests.fuzz.driver import run
from tests.support.backends import FULL

pytestmark = pytest.mark.filterwarnings("ignore")
HERE = ("sync", "views", "wrapper", "native")
SB3_HERE = ("dummy", "views", "wrapper", "sync", "own workers", "own reset")
"""Kinds of vector envs in this process."""


def play(program: Any, seed: int, count: int, **choices: Any) -> None:
    run(type("Fuzz", (program,), choices), [seed], count=count)


@pytest.mark.guarantee("G6.1", "G7.7", "G7.11", "G7.12")
@pytest.mark.parametrize("mode", gymnasium.Fuzz.modes)
def test_gymnasium(mode: str) -> None:
    play(gymnasium.Fuzz, 0, 30, kinds=HERE, modes=[mode])


@pytest.mark.guarantee("G7.10", "G7.11")
def test_sb3() -> None:
    play(sb3.Fuzz, 0, 40, kinds=SB3_HERE)


@FULL
@pytest.mark.parametrize("program", [gymnasium.Fuzz, sb3.Fuzz])
def test_facades_of_threads_and_workers(program: Any) -> None:
    kinds = [kind for kind in program.kinds if kind not in (*HERE, *SB3_HERE)]
    play(program, 1, 3 * len(kinds), kinds=kinds)
