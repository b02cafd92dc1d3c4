"""Random programs of collectors agree with plain loops over single envs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tensordict")

from tests.fuzz.collectors import Fuzz
from tests.fuzz.driver import run
from tests.support.backends import BACKENDS, one_of
from vecenv import DummyVectorEnv


@pytest.mark.filterwarnings("ignore")
@pytest.mark.guarantee("G10.1", "G10.2", "G10.3", "G10.5", "G10.6", "G11.1", "G11.2", "G11.3")
@pytest.mark.parametrize("backend", one_of(BACKENDS))
@pytest.mark.parametrize("kind", ["sync", "async", "numbered"])
def test_collectors_agree_with_a_loop_over_single_envs(kind: str, backend: Any) -> None:
    program = type("Programs", (Fuzz,), {"kinds": (kind,), "backends": (backend,)})
    run(program, range(6) if backend is DummyVectorEnv else [0], count=5)
