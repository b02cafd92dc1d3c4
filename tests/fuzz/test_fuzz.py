"""A short run of each fuzzer with a fixed seed. `make fuzz MINUTES=10` runs longer."""

from __future__ import annotations

import importlib

import pytest

from tests.fuzz.__main__ import FUZZERS
from tests.fuzz.driver import run

ELSEWHERE = ("engine", "interrupts", "threads", "stress")
"""Fuzzers whose programs depend on time, so that a fixed seed is not one program. `engine` is in the quick tier."""


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("forkserver_ends")
@pytest.mark.parametrize("name", [name for name in FUZZERS if name not in ELSEWHERE])
def test_random_programs_agree_with_their_oracle(name: str) -> None:
    if name == "tianshou":
        pytest.importorskip("tianshou", reason="the development extra leaves tianshou out, which brings numba")
    run(importlib.import_module(f"tests.fuzz.{name}").Fuzz, [0], count=1 if name == "jobs" else 5)
