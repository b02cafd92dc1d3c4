"""Rows of docs/tables/faults.toml, the table of what happens after a fault."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.support.backends import FULL, RAY
from tests.support.ledger import said
from tests.support.paths import ROOT

BACKENDS = {
    "all": ("dummy", "thread", "coroutines", "shmem", "subproc", "async", "command", "ray"),
    "workers": ("shmem", "subproc", "async", "command", "ray"),
    "here": ("dummy", "thread", "coroutines"),
    "workers, threads": ("thread", "shmem", "subproc", "async", "command", "ray"),
    "threads": ("thread",),
    "coroutines": ("coroutines",),
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

    def check_class(self, error: BaseException) -> None:
        assert type(error).__name__ == (self.fault if self.error == "own" else self.error)

    def check(self, error: BaseException, **names: Any) -> None:
        """Check the class and the text of an error."""
        self.check_class(error)
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


TIERS: dict[str, Any] = {"quick": [], "full": FULL, "slow": pytest.mark.slow, "ray": RAY}


def cases(part: str, tier_of: Callable[[Row, str], str | None]) -> pytest.MarkDecorator:
    """Run a test for each kind in the column `on` and each place, with the rows of this place.

    `tier_of` returns the tier of a row on a kind, or None to leave it out. Rows of different tiers have separate tests.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows_of(part):
        for kind in row.on:
            if (tier := tier_of(row, kind)) is not None:
                groups.setdefault((kind, row.place, tier), []).append(row)
    return pytest.mark.parametrize(
        ("rows", "kind"),
        [
            pytest.param(rows, kind, id=f"{kind}-{place}-{tier}", marks=TIERS[tier])
            for (kind, place, tier), rows in groups.items()
        ],
    )


def tier_of_some(*quick: tuple[str, str]) -> Callable[[Row, str], str]:
    """Return a function that puts these (kind, fault) into the quick tier, and some faults into the full tier."""

    def tier_of(row: Row, kind: str) -> str:
        if (kind, row.fault) in quick:
            return "quick"
        return "full" if row.fault in ("raise", "SIGKILL") else "slow"

    return tier_of
