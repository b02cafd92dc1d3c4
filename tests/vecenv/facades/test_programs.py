"""Thirty random programs per facade and autoreset mode return the same as with the original vector env."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.fuzz.driver import run
from tests.fuzz.facades import GYMNASIUM_WRAPPERS, MODES, SB3_WRAPPERS, Gymnasium, StableBaselines
from tests.support.backends import FULL

pytestmark = pytest.mark.filterwarnings("ignore")
HERE = ("sync", "views", "wrapper", "own reset", "native", "dummy", "own workers")
"""Kinds of vector envs in this process."""


def play(program: Any, seeds: Sequence[int], count: int, **choices: Any) -> None:
    run(type("Fuzz", (program,), choices), seeds, count=count)


@pytest.mark.guarantee("G6.1", "G7.7", "G7.11", "G7.12")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kinds", [("sync", "views"), ("wrapper", "own workers", "native")], ids=" ".join)
def test_gymnasium(kinds: tuple[str, ...], mode: str) -> None:
    play(Gymnasium, range(len(kinds)), 10, kinds=kinds, modes=[mode])


@pytest.mark.guarantee("G7.10", "G7.11")
@pytest.mark.parametrize("kinds", [("dummy", "views"), ("wrapper", "own reset"), ("sync", "own workers")], ids=" ".join)
def test_sb3(kinds: tuple[str, ...]) -> None:
    play(StableBaselines, range(len(kinds)), 10, kinds=kinds)


@pytest.mark.parametrize("wrapper", GYMNASIUM_WRAPPERS)
def test_gymnasiums_wrappers(wrapper: str) -> None:
    mode = next(mode for mode in ("SameStep", "NextStep") if mode in GYMNASIUM_WRAPPERS[wrapper].modes)
    play(Gymnasium, [0], 4, kinds=["sync", "views"], modes=[mode], wraps=[wrapper])


@pytest.mark.parametrize("wrapper", SB3_WRAPPERS)
def test_wrappers_of_sb3(wrapper: str) -> None:
    play(StableBaselines, [0], 4, kinds=["dummy", "wrapper"], wraps=[wrapper])


@FULL
@pytest.mark.parametrize("program", [Gymnasium, StableBaselines])
def test_facades_of_threads_and_workers(program: Any) -> None:
    kinds = [kind for kind in program.kinds if kind not in HERE]
    play(program, [1], 2 * len(kinds), kinds=kinds, patience=100.0)
