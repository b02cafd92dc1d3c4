"""A short run, with a fixed seed, of each fuzzer that no other test plays. `make fuzz MINUTES=10` runs longer."""

from __future__ import annotations

import importlib

import pytest

from tests.fuzz.driver import run
from tests.support.backends import FULL


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("forkserver_ends")
@pytest.mark.parametrize(
    "name", [pytest.param("jobs", marks=pytest.mark.guarantee("G11.4")), pytest.param("tianshou", marks=FULL)]
)
def test_random_programs_agree_with_their_oracle(name: str) -> None:
    if name == "tianshou":
        pytest.importorskip("tianshou", reason="the development extra leaves tianshou out, which brings numba")
    run(importlib.import_module(f"tests.fuzz.{name}").Fuzz, [0], count=2 if name == "jobs" else 5)
