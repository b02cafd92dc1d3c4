"""Run the code of two pages with published packages: docs/guides/readers.md with the data sets of make_data.py, and
docs/guides/agent-envs.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = "".join((ROOT / f"docs/guides/{page}.md").read_text("utf-8") for page in ("readers", "agent-envs"))
BLOCKS = re.findall(r"^```py\n(.*?)^```$", PAGES, re.M | re.S)


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of the page names data/cartpole."""
    monkeypatch.chdir(ROOT / "build/readers")


@pytest.fixture
def run() -> Callable[[str], dict[str, Any]]:
    """A function that runs the only block with a text. It returns the names of the block."""

    def of(text: str) -> dict[str, Any]:
        (block,) = [each for each in BLOCKS if text in each]
        names: dict[str, Any] = {}
        exec(block, names)
        return names

    return of
