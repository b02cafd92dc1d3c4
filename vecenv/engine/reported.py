"""Properties of a vector env that its engine has: what the envs reported when they were made, and which are where."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def reported(name: str, doc: str, missing: str | None = None) -> Any:
    """The entry `name` of each env's report, as a list; AttributeError with the text `missing` if all are None."""

    def read(venv: Any) -> list[Any]:
        venv.engine.check_open()
        entries = [getattr(report, name) for report in venv.engine.reports]
        if missing is not None and all(entry is None for entry in entries):
            raise AttributeError(missing)
        return entries

    return property(read, doc=doc)


def env_ids(path: str, doc: str) -> Any:
    """The ids at `path` of an engine that is open."""

    def read(venv: Any) -> list[int]:
        venv.engine.check_open()
        ids: list[int] = attrgetter(path)(venv.engine)
        return ids

    return property(read, doc=doc)
