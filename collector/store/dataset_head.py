"""Read and write dataset.json, the head of a data set: spaces, job and versions."""

from __future__ import annotations

import json
import math
import os
import platform
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from collector.store import schema
from collector.store.safe_folder import DatasetError, SafeFolder
from collector.store.schema import SpaceForm

HEAD = "dataset.json"
FORMAT = {"format": "vecenv dataset", "version": 3}
LARGEST_HEAD = 2**24
COMPARED = ("observation_space", "action_space")
"""Entries that, like the job, must not change when a data set is resumed."""
MOST_ELEMENTS = 2**24
LONGEST_TEXT = 1000
"""Maximum length in the Text space that stands for a space of texts without limits."""


def make_head(observation_space: Any = None, action_space: Any = None, job: Any = None, **more: Any) -> dict[str, Any]:
    """Return the head of a new data set. `job` and `more` are JSON values.

    >>> make_head(spaces.Discrete(2), made_by="a test")["made_by"]
    'a test'
    """
    versions = {"python": platform.python_version(), "numpy": np.__version__, "gymnasium": gymnasium.__version__}
    forms = {"observation_space": space_to_json(observation_space), "action_space": space_to_json(action_space)}
    return {**FORMAT, "job": job, **forms, "versions": versions, **more}


def head_bytes(head: dict[str, Any]) -> bytes:
    try:
        data = json.dumps(head, indent=2, allow_nan=False).encode() + b"\n"
        if len(data) > LARGEST_HEAD:
            raise DatasetError(f"it has {len(data):,} bytes, but at most {LARGEST_HEAD:,} are allowed")
        _checked(data)
    except (TypeError, ValueError, DatasetError) as error:
        raise DatasetError(f"the head of a data set cannot be written: {error}; see make_head") from None
    return data


def read_head(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the head of a data set. Raises `DatasetError` if it is missing or invalid."""
    root = Path(folder)
    try:
        with SafeFolder(folder) as opened:
            return _checked(opened.read(HEAD, LARGEST_HEAD))
    except FileNotFoundError:
        raise DatasetError(
            f"{root} holds no collected episodes: there is no {HEAD}; if a job ended before its first episodes were "
            f"stored, start it again: python -m collector run FILE --out {root} --resume"
        ) from None
    except (DatasetError, ValueError) as error:
        raise DatasetError(f"{root / HEAD} cannot be read: {error}") from None


def _checked(data: bytes) -> dict[str, Any]:
    head: dict[str, Any] = schema.parse(data)
    if type(head) is dict and head.get("format") == FORMAT["format"] and head.get("version") != FORMAT["version"]:
        raise DatasetError(
            f"it is of version {str(head.get('version'))[:40]!r}, but this vecenv reads {FORMAT['version']}: "
            "install the vecenv that wrote it"
        )
    schema.parse(data, schema.Head)
    for key in COMPARED:
        space_from_json(head.get(key))
    return head


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a text for each entry that differs.

    >>> changes({"seed": 4, "env": "a"}, {"seed": 5, "env": "a"})
    ['seed was 4, and is 5']
    """

    def short(value: Any) -> str:
        text = repr(value)
        return text if len(text) <= 100 else f"{text[:97]}..."

    pairs = ((name, before.get(name), now.get(name)) for name in {**before, **now})
    return [f"{name} was {short(old)}, and is {short(new)}" for name, old, new in pairs if old != new]


def head_changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the differences that prevent a resume: other spaces, or another job.

    >>> head_changes({"job": {"seed": 4, "env": "a"}}, {"job": {"seed": 5, "env": "a"}})
    ['job.seed was 4, and is 5']
    """
    entries = []
    for head in (before, json.loads(json.dumps(now))):  # turns tuples of `now` into lists
        job = {f"job.{name}": value for name, value in (head.get("job") or {}).items()}
        entries.append({**{key: head.get(key) for key in COMPARED}, **job})
    return changes(*entries)


def spaces_of(head: Mapping[str, Any]) -> dict[str, spaces.Space[Any] | None]:
    return {key: space_from_json(head.get(key)) for key in COMPARED}


def space_to_json(space: Any) -> Any:
    """Return a space as JSON. Unsupported spaces, such as Graph, become text and cannot be restored.

    A space of texts that is not gymnasium's Text, such as MiniGrid's MissionSpace, is restored as a Text space of up to
    1,000 printable characters.

    >>> space_to_json(spaces.Discrete(2))
    {'type': 'Discrete', 'dtype': '<i8', 'n': 2}
    """
    return None if space is None else schema.as_json(_form(space))


def _form(space: Any) -> SpaceForm:
    if isinstance(space, spaces.Box):
        return SpaceForm("Box", _text(space.dtype), list(space.shape), _bound(space.low), _bound(space.high))
    if isinstance(space, spaces.Discrete):
        return SpaceForm("Discrete", _text(space.dtype), n=int(space.n), start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        start = np.zeros_like(space.nvec) if getattr(space, "start", None) is None else space.start
        return SpaceForm("MultiDiscrete", _text(space.dtype), nvec=space.nvec.tolist(), start=start.tolist())
    if isinstance(space, spaces.MultiBinary):
        return SpaceForm("MultiBinary", n=space.n if isinstance(space.n, int) else list(space.shape))
    if isinstance(space, spaces.Text):
        return SpaceForm("Text", n=[space.min_length, space.max_length], text="".join(sorted(space.characters)))
    if getattr(space.dtype, "kind", "") == "U":
        return SpaceForm("Text")
    if isinstance(space, spaces.Dict) and all(isinstance(key, str) for key in space):
        return SpaceForm("Dict", spaces={key: _form(part) for key, part in space.items()})
    if isinstance(space, spaces.Tuple):
        return SpaceForm("Tuple", spaces=[_form(part) for part in space])
    return SpaceForm("other", text=repr(space)[:1000])


def space_from_json(value: Any) -> spaces.Space[Any] | None:
    """Return the space, or `None` if `value` is `None` or has a part of type "other".

    Raises `DatasetError` for invalid JSON.

    >>> space_from_json(space_to_json(spaces.Box(-1, 1, (2,))))
    Box(-1.0, 1.0, (2,), float32)
    """
    if value is None:
        return None
    try:
        return _space(schema.convert(value, SpaceForm))
    except DatasetError:
        raise
    except Exception as error:
        raise DatasetError(f"a space in it cannot be made: {type(error).__name__}: {error}") from None


def _space(form: SpaceForm) -> spaces.Space[Any] | None:
    if form.type == "Box":
        return _box(form, np.dtype(form.dtype), _shape(form.shape))
    if form.type == "Discrete":  # Discrete of gymnasium before 1.2 takes no dtype
        wide: dict[str, Any] = {} if form.dtype == "<i8" else {"dtype": np.dtype(form.dtype).type}
        return spaces.Discrete(form.n, start=form.start, **wide)  # type: ignore[arg-type]
    if form.type == "MultiDiscrete":
        dtype = np.dtype(form.dtype)
        return spaces.MultiDiscrete(np.array(form.nvec, dtype), dtype=dtype.type, start=np.array(form.start, dtype))
    if form.type == "MultiBinary":
        return spaces.MultiBinary(_shape([form.n])[0] if isinstance(form.n, int) else _shape(form.n))
    if form.type == "Text":
        if isinstance(form.n, int):
            return spaces.Text(LONGEST_TEXT, min_length=0, charset=string.printable)
        least, most = form.n
        return spaces.Text(most, min_length=least, charset=form.text)
    if form.type == "other":
        return None
    if isinstance(form.spaces, dict) != (form.type == "Dict"):
        raise DatasetError(f"the spaces of a {form.type} in it have the wrong form")
    parts: Any = form.spaces if isinstance(form.spaces, dict) else dict(enumerate(form.spaces))
    parts = {key: _space(part) for key, part in parts.items()}
    if None in parts.values():
        return None
    # A list of pairs, because Dict would sort the keys of a dict.
    return spaces.Dict([*parts.items()]) if form.type == "Dict" else spaces.Tuple(parts.values())


def _text(dtype: Any) -> str:
    return np.dtype(dtype).newbyteorder("<").str


def _bound(bound: np.ndarray) -> Any:
    flat = [each if math.isfinite(each) else "inf" if each > 0 else "-inf" for each in bound.reshape(-1).tolist()]
    return flat[0] if flat and flat.count(flat[0]) == len(flat) else flat


def _box(form: SpaceForm, dtype: np.dtype, shape: tuple[int, ...]) -> spaces.Box:
    """Return a Box. Scalar bounds are broadcast without a copy, because hostile JSON could claim a huge shape."""
    low, high = (_as_bound(value, dtype, shape) for value in (form.low, form.high))
    if low.shape != high.shape:
        low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
    box = spaces.Box(low, high, low.shape, dtype.type)
    if low.shape != shape:
        spaces.Space.__init__(box, shape, dtype)
        for name in ("low", "high", "bounded_below", "bounded_above"):
            setattr(box, name, np.broadcast_to(getattr(box, name), shape))
    return box


def _as_bound(value: Any, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    many = value if type(value) is list else [value]
    numbers = [float(each) if each in ("inf", "-inf") else each for each in many]
    if not all(type(each) in (int, float, bool) for each in numbers):
        raise DatasetError("a bound of a Box in it is not a number")
    return np.array(numbers, dtype).reshape(shape if type(value) is list else (1,) * len(shape))


def _shape(sizes: list[int]) -> tuple[int, ...]:
    if min(sizes, default=0) < 0 or math.prod(sizes) > MOST_ELEMENTS:
        raise DatasetError(
            f"a space in it has the shape {tuple(sizes)}, but at most {MOST_ELEMENTS:,} elements are allowed"
        )
    return tuple(sizes)
