"""dataset.json: what a data set is, written once, before its first episode."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from collector.store.errors import DatasetError
from collector.store.files import strict_json
from collector.store.files.safe_folder import SafeFolder
from collector.store.space_json import space_from_json, space_to_json

HEAD = "dataset.json"
FIRST_MANIFEST = "manifest.json"
"""What folders of the first form have in its place."""
FORMAT = {"format": "vecenv dataset", "version": 2}
LARGEST_HEAD = 2**24
COMPARED = ("observation_space", "action_space", "job")
"""What must be the same for a writer to go on with a data set."""


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
        check_head(strict_json.parse(data))
    except (TypeError, ValueError, DatasetError) as error:
        raise DatasetError(f"the head of a data set cannot be written: {error}; see make_head") from None
    return data


def read_head(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The head of a folder. Raises `DatasetError` where there is none, or one of another kind."""
    root = Path(folder)
    try:
        with SafeFolder(folder) as opened:
            head = strict_json.parse(opened.read(HEAD, LARGEST_HEAD))
        check_head(head)
    except FileNotFoundError:
        if (root / FIRST_MANIFEST).exists():
            raise first_form_error(root) from None
        raise DatasetError(f"{root} holds no collected episodes: there is no {HEAD}") from None
    except (DatasetError, ValueError) as error:
        raise DatasetError(f"{root / HEAD} cannot be read: {error}") from None
    found: dict[str, Any] = head
    return found


def first_form_error(folder: Path) -> DatasetError:
    """What to raise where no folder of the first form will do."""
    return DatasetError(
        f"{folder} holds episodes of the first form ({FIRST_MANIFEST}): Dataset and load_episodes read them, and no "
        "job goes on with them; choose another folder"
    )


def check_head(head: Any) -> None:
    """Raise `DatasetError` where a value is no head of a data set that this version reads."""
    if type(head) is not dict or head.get("format") != FORMAT["format"]:
        raise DatasetError(f"it is not the head of a {FORMAT['format']}")
    if type(head.get("version")) is not int or head["version"] != FORMAT["version"]:
        raise DatasetError(
            f"it is of version {str(head.get('version'))[:40]}, and this vecenv reads {FORMAT['version']}: "
            "install the one that wrote it"
        )
    if not isinstance(head.get("job"), (dict, type(None))) or not isinstance(head.get("versions", {}), dict):
        raise DatasetError("its job or its versions are no objects")
    for key in ("observation_space", "action_space"):
        space_from_json(head.get(key))


def changes(head: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """What of two heads differs though it must not, as "name: before -> now".

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
