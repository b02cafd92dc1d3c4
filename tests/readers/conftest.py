"""Run the code of pages with other libraries, and compare what arrives with the data sets of make_data.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["readers", "batched-simulators", "agent-envs"]
TEXTS = [(ROOT / f"docs/guides/{page}.md").read_text("utf-8") for page in PAGES]
BLOCKS = [block for text in TEXTS for block in re.findall(r"^```py\n(.*?)^```$", text, re.M | re.S)]


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of the page names data/cartpole."""
    folder = ROOT / "build/readers"
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(folder)


@pytest.fixture
def run() -> Callable[[str], dict[str, Any]]:
    """A function that runs the only block with a text, with some names given. It returns the names of the block."""

    def of(text: str, **names: Any) -> dict[str, Any]:
        (block,) = [each for each in BLOCKS if text in each]
        exec(block, names)
        return names

    return of
