"""Rows of docs/tables/faults.toml, the table of what happens after a fault."""

from __future__ import annotations

import tomllib
from typing import Any, NamedTuple

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


def rows_of(part: str) -> list[Row]:
    """Return the rows of a part of the table: a row per fault and place."""
    parts = tomllib.loads((ROOT / "docs/tables/faults.toml").read_text("utf-8"))["part"]
    (found,) = [each["rows"] for each in parts if each["title"] == part]
    return [row for entry in found for row in _rows(entry)]


def _rows(entry: dict[str, Any]) -> list[Row]:
    on = [each for each in BACKENDS.get(entry["on"], (entry["on"],)) if each not in entry.get("but", ())]
    last = entry["error"], entry.get("says", []), entry["others"], entry["mend"]
    return [Row(fault, place, on, *last) for fault in entry["fault"] for place in entry["place"]]
