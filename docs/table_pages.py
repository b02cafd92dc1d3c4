"""Tables of pages, from the files in `docs/tables`: `surprises.toml`, `packages.toml` and `faults.toml`."""

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
FAULTS = {
    "raise": "raises an exception",
    "too much memory": "allocates too much memory",
    "sys.exit": "calls `sys.exit`",
    "wrong shape": "returns an observation of another shape",
    "wrong dtype": "returns an observation of another dtype",
    "unpicklable error": "raises an exception that cannot be pickled",
    **dict.fromkeys(("KeyError", "UnicodeDecodeError", "StopIteration"), "raises another exception"),
    **dict.fromkeys(("FileNotFoundError", "OSError", "EnvContractError"), "raises another exception"),
    "Local": "raises an exception of a local class",
    "KeywordOnly": "raises an exception whose class needs keyword arguments",
    "RaisesWhenRebuilt": "raises an exception that raises when it is unpickled",
    "BufferError": "raises an exception with a text of megabytes",
    "NoAttributes": "raises an exception that takes no attributes",
    "StopAsyncIteration": "raises another exception",
    **dict.fromkeys(("KeyboardInterrupt", "CancelledError"), "raises another `BaseException`"),
    "OwnBase": "raises a `BaseException`",
    "unpicklable result": "returns an object that cannot be pickled",
    "pickle raises": "returns an object that raises when it is pickled",
    "pickle exits": "returns an object that exits when it is pickled",
    "unpickle raises": "returns an object that raises when it is unpickled",
    "unpickle exits": "returns an object that exits when it is unpickled",
    "gets unpicklable result": "gets an object that cannot be pickled",
    "gets unpickle raises": "gets an object that raises when it is unpickled",
    "gets unpickle exits": "gets an object that exits when it is unpickled",
    "exit": "calls `os._exit`",
    "SIGKILL": "is killed",
    "SIGSEGV": "crashes in C",
    **dict.fromkeys(("SIGTERM", "SIGBUS", "SIGABRT", "signal 40"), "ends by another signal"),
    **dict.fromkeys(("code 0", "code 255"), "exits with another code"),
    "closed descriptors": "closes the file descriptors of its process",
    "hang in Python": "hangs in Python",
    "hang in C": "hangs in C and holds the interpreter lock",
}
PLACES = {"construct": "constructor", "idle": "between two calls", "options": "`reset(options=...)`"}
HOSTS = {
    "all": "all",
    "here": "Dummy, threads",
    "workers": "workers",
    "workers, threads": "workers, threads",
    "threads": "threads",
    "coroutines": "coroutine envs",
    "subproc": "Subproc",
}
OWN_ERRORS = {"": "none", **dict.fromkeys(("own", "ValueError", "HoldsLock"), "the env's exception")}
OTHERS = {
    "rows": "complete: `error.partial`",
    "lost": "lost if in the same worker, else complete: `error.partial`",
    "unchanged": "unchanged",
    "closed": "closed",
    "killed": "not closed if in the same worker",
    "batch": "begin new episodes, as the batch is discarded",
    "episodes": "keep their episodes",
    "folder": "no folder is made",
}
MENDS = {
    "reset": "reset the env",
    "restart": "reset the lost envs: a new worker starts",
    "nothing": "nothing",
    "code": "correct the env",
    "batch": "collect the next batch",
    "retry": "nothing: the job repeats the episode",
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


def faults() -> Iterator[str]:
    """Yield a section per layer. Faults with the same outcome share a row."""
    for part in read("faults")["part"]:
        yield from (f"### {part['title']}", "")
        rows: dict[tuple[str, ...], list[str]] = {}
        for row in part["rows"]:
            place = ", ".join(PLACES.get(each, f"`{each}`") for each in row["place"])
            host = HOSTS.get(row["on"], "workers" if row["on"].endswith("workers") else "all")
            host += f" except {' and '.join(each.capitalize() for each in row['but'])}" if "but" in row else ""
            error = "a warning" if row["error"] == "warning" else f"`{row['error']}`"
            error = OWN_ERRORS.get(row["error"], error)
            outcome = place, host, error, OTHERS[row["others"]], MENDS[row["mend"]]
            rows.setdefault(outcome, []).extend(FAULTS[each] for each in row["fault"])
        cells = (("; ".join(dict.fromkeys(names)), *outcome) for outcome, names in rows.items())
        heads = "the env", "in", "backend", "error", "the other envs", "what to do"
        yield from table(heads, cells, "24 14 12 16 19 15")


def env(row: dict[str, Any]) -> str:
    """Return the line that makes an env, or the import."""
    if row["status"] in ("adapter", "fails"):
        return ""
    return f"`{row['env']}`" if "env" in row else f"`import {row['import']}`"


def result(row: dict[str, Any]) -> str:
    python = f"Python {row['python']}" if "python" in row else ""
    return "; ".join(part for part in (STATUSES[row["status"]], row.get("note", ""), python) if part)


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    for name, lines in (("surprises", surprises), ("packages", packages), ("faults", faults)):
        block = f"```{{{name}}}\n```\n"
        if block in source[0]:
            app.env.note_dependency(str(DATA / f"{name}.toml"))
            source[0] = source[0].replace(block, "\n".join(lines()) + "\n")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "version": "1"}
