"""The table of messages: each refused call raises its error, the text names what the row says, and nothing changes.

The rows are in the other modules of this folder, one module per area.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.messages.rows import Row

HERE = Path(__file__).parent
AREAS = sorted(file.stem for file in HERE.glob("*.py") if not file.stem.startswith(("test_", "rows")))


def rows() -> list[object]:
    found = [(area, row) for area in AREAS for row in importlib.import_module(f"tests.messages.{area}").ROWS]
    return [pytest.param(row, id=f"{area}-{i}-{row.says[0][:40]}") for i, (area, row) in enumerate(found)]


@pytest.mark.parametrize("row", rows())
def test_a_refused_call_says_why_and_changes_nothing(row: Row) -> None:
    assert list(row.problems()) == []
