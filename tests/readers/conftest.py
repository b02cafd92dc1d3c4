"""Run the code of docs/guides/readers.md, and compare what arrives with the data sets of make_data.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```py\n(.*?)^```$", (ROOT / "docs/guides/readers.md").read_text("utf-8"), re.M | re.S)


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
