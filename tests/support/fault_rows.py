"""Rows of docs/tables/faults.toml, the table of what happens after a fault."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.support.backends import FULL
from tests.support.ledger import said
from tests.support.paths import ROOT

BACKENDS = {
    "all": ("dummy", "thread", "coroutines", "shmem", "subproc", "async", "command", "ray"),
    "workers": ("shmem", "subproc", "async", "command", "ray"),
    "here": ("dummy", "thread", "coroutines"),
    "workers, threads": ("thread", "shmem", "subproc", "async", "command", "ray"),
    "threads": ("thread",),
    "facades": ("next-step", "same-step", "disabled", "wrapped", "sb3", "sb3-wrapped", "gymnasium-dummy", "sb3-dummy"),
    "facades of workers": ("next-step", "same-step", "disabled", "wrapped", "sb3", "sb3-wrapped"),
    "collectors": ("sync", "async", "sync-dummy", "async-dummy"),
    "collectors of workers": ("sync", "async"),
    "jobs": ("shmem", "dummy"),
    "jobs of workers": ("shmem",),
}


class Row(NamedTuple):
    """One fault at one place."""

    fault: str
    place: str
    on: list[str]
    error: str
    says: list[str]
    others: str
    mend: str

    def texts(self, **names: Any) -> list[str]:
        """Return the texts of the error."""
        names = {"place": "__init__" if self.place == "construct" else self.place, "fault": self.fault} | names
        return [text.format(**names) for text in self.says]

    def check(self, error: BaseException, **names: Any) -> None:
        """Check the class and the text of an error."""
        assert type(error).__name__ == self.error
        assert [text for text in self.texts(**names) if text not in said(error)] == [], said(error)


def rows_of(part: str) -> list[Row]:
    """Return the rows of a part of the table: a row per fault and place."""
    parts = tomllib.loads((ROOT / "docs/tables/faults.toml").read_text("utf-8"))["part"]
    (found,) = [each["rows"] for each in parts if each["title"] == part]
    return [row for entry in found for row in _rows(entry)]


def _rows(entry: dict[str, Any]) -> list[Row]:
    on = [each for each in BACKENDS.get(entry["on"], (entry["on"],)) if each not in entry.get("but", ())]
    last = entry["error"], entry.get("says", []), entry["others"], entry["mend"]
    return [Row(fault, place, on, *last) for fault in entry["fault"] for place in entry["place"]]


def cases(part: str, marks_of: Callable[[Row, str], Any]) -> pytest.MarkDecorator:
    """Run a test for each row of a part and each kind in its column `on`. `marks_of` returns None to leave one out."""
    found = [(row, kind, marks_of(row, kind)) for row in rows_of(part) for kind in row.on]
    return pytest.mark.parametrize(
        ("row", "kind"),
        [
            pytest.param(row, kind, id=f"{kind}-{row.place}-{row.fault}".replace(" ", "-"), marks=marks)
            for row, kind, marks in found
            if marks is not None
        ],
    )


def marks_of_some(*quick: tuple[str, str]) -> Callable[[Row, str], Any]:
    """Return a function that puts these (kind, fault) into the quick tier, and a fault of each class into the full."""

    def marks_of(row: Row, kind: str) -> Any:
        if (kind, row.fault) in quick:
            return []
        return FULL if row.fault in ("raise", "SIGKILL", "wrong dtype") else pytest.mark.slow

    return marks_of
