"""dataset.json: what a data set is, written once, before its first episode."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from collector.store import schema
from collector.store.dataset_error import DatasetError
from collector.store.safe_folder import SafeFolder
from collector.store.space_forms import space_from_json, space_to_json

HEAD = "dataset.json"
FORMAT = {"format": "vecenv dataset", "version": 3}
LARGEST_HEAD = 2**24
COMPARED = ("observation_space", "action_space", "job")
"""Entries that must be the same for a writer to go on with a data set."""


def make_head(observation_space: Any = None, action_space: Any = None, job: Any = None, **more: Any) -> dict[str, Any]:
    """The head of a new data set: spaces of gymnasium, the job as JSON (None where no job writes it), and more entries.

    >>> make_head(gymnasium.spaces.Discrete(2), made_by="a test")["made_by"]
    'a test'
    """
    versions = {"python": platform.python_version(), "numpy": np.__version__, "gymnasium": gymnasium.__version__}
    spaces = {"observation_space": space_to_json(observation_space), "action_space": space_to_json(action_space)}
    return {**FORMAT, "job": job, **spaces, "versions": versions, **more}


def head_bytes(head: dict[str, Any]) -> bytes:
    """The content of the file. Raises `DatasetError` where it is no head, or has what JSON has not."""
    try:
        data = json.dumps(head, indent=2, allow_nan=False).encode() + b"\n"
        _check(schema.parse(data))
    except (TypeError, ValueError, DatasetError) as error:
        raise DatasetError(f"the head of a data set cannot be written: {error}; see make_head") from None
    return data


def read_head(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The head of a folder. Raises `DatasetError` where there is none, or one of another kind."""
    root = Path(folder)
    try:
        with SafeFolder(folder) as opened:
            head = schema.parse(opened.read(HEAD, LARGEST_HEAD))
        _check(head)
    except FileNotFoundError:
        raise DatasetError(f"{root} holds no collected episodes: there is no {HEAD}") from None
    except (DatasetError, ValueError) as error:
        raise DatasetError(f"{root / HEAD} cannot be read: {error}") from None
    found: dict[str, Any] = head
    return found


def _check(head: Any) -> None:
    """Raise `DatasetError` or ValueError where a value is no head of a data set that this version reads."""
    if type(head) is dict and head.get("format") == FORMAT["format"] and head.get("version") != FORMAT["version"]:
        raise DatasetError(
            f"it is of version {str(head.get('version'))[:40]}, and this vecenv reads {FORMAT['version']}: "
            "install the one that wrote it"
        )
    schema.convert(head, schema.Head)
    for key in COMPARED[:2]:
        space_from_json(head.get(key))


def changes(head: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Differences of two heads that keep a writer from going on, as "name: before -> now".

    >>> changes({"job": {"seed": 1, "env": "a"}}, {"job": {"seed": 0, "env": "a"}})
    ['job.seed: 0 -> 1']
    """
    # As JSON has it: tuples are lists there.
    ours, theirs = (json.loads(json.dumps({key: each.get(key) for key in COMPARED})) for each in (head, before))
    found: list[str] = []
    for key in COMPARED:
        now, then = ours[key], theirs[key]
        if key == "job" and isinstance(now, dict) and isinstance(then, dict):
            names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
            found += [f"job.{name}: {_short(then.get(name))} -> {_short(now.get(name))}" for name in names]
        elif now != then:
            found.append(f"{key}: {_short(then)} -> {_short(now)}")
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else text[:97] + "..."
