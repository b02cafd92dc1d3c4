"""Tables of pages, from the files in `docs/tables`: `surprises.toml` and `packages.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DATA = Path(__file__).resolve().parent / "tables"
STATUSES = {
    "equal": "equal bit for bit",
    "first": "runs; only the first episode of a seed repeats",
    "random": "runs; does not repeat by itself",
    "global": "runs; draws from the generators of its process",
    "one": "one env per process",
    "adapter": "needs an adapter",
    "fails": "no env",
}


def read(name: str) -> dict[str, Any]:
    return tomllib.loads((DATA / f"{name}.toml").read_text("utf-8"))


def table(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]], widths: str) -> Iterator[str]:
    """Yield a list-table, whose columns keep their widths."""
    yield from ("```{list-table}", ":header-rows: 1", f":widths: {widths}", ":class: wide", "")
    for row in (heads, *rows):
        yield from (f"{'*' if i == 0 else ' '} - {cell}".rstrip() for i, cell in enumerate(row))
    yield from ("```", "")


def surprises() -> Iterator[str]:
    """Yield a section per library."""
    for library in read("surprises")["library"]:
        yield from (f"## {library['name']} {library['version']}".rstrip(), "")
        rows = (
            (row["does"], row["expected"], f"**{row['state']}**" + (f": {row['text']}" if "text" in row else ""))
            for row in library["row"]
        )
        yield from table(("what it does", "what you expect", "with vecenv"), rows, "45 22 33")


def packages() -> Iterator[str]:
    """Yield a section per field."""
    for field in read("packages")["field"]:
        yield from (f"### {field['name']}", "")
        rows = sorted(field["rows"], key=lambda row: row["package"].lower())
        cells = ((row["package"], row["version"], env(row), result(row)) for row in rows)
        yield from table(("package", "version", "env", "with vecenv"), cells, "20 10 38 32")


def env(row: dict[str, Any]) -> str:
    """Return the line that makes an env, or the import."""
    if row["status"] in ("adapter", "fails"):
        return ""
    return f"`{row['env']}`" if "env" in row else f"`import {row['import']}`"


def result(row: dict[str, Any]) -> str:
    python = f"Python {row['python']}" if "python" in row else ""
    return "; ".join(part for part in (STATUSES[row["status"]], row.get("note", ""), python) if part)


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    for name, lines in (("surprises", surprises), ("packages", packages)):
        block = f"```{{{name}}}\n```\n"
        if block in source[0]:
            app.env.note_dependency(str(DATA / f"{name}.toml"))
            source[0] = source[0].replace(block, "\n".join(lines()) + "\n")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "version": "1"}
