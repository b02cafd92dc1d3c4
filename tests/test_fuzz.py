"""A short run of each fuzzer with fixed seeds; `make fuzz MINUTES=10` looks for more."""

from __future__ import annotations

import importlib

import pytest

from tests.fuzz.__main__ import FUZZERS
from tests.fuzz.driver import run

pytestmark = pytest.mark.full


@pytest.mark.parametrize("name", FUZZERS)
def test_random_programs_agree_with_their_oracle(name: str) -> None:
    run(importlib.import_module(f"tests.fuzz.{name}").Fuzz, [0])
