"""Spaces of gymnasium as JSON, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from collector.store.errors import DatasetError

MOST_ELEMENTS = 2**24
"""The most that an array of one element of a space may hold: 64 MB of float32."""


def space_to_json(space: Any) -> Any:
    """A space as JSON; one without an array form (Graph, ...) as its text, which has no way back; None as null.

    >>> space_to_json(spaces.Discrete(2))
    {'type': 'Discrete', 'n': 2, 'start': 0, 'dtype': 'int64'}
    """
    kind = type(space).__name__
    if space is None:
        return None
    if isinstance(space, spaces.Box):
        low, high = _bound(space.low), _bound(space.high)
        return {"type": "Box", "dtype": space.dtype.name, "shape": list(space.shape), "low": low, "high": high}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": np.dtype(space.dtype).name}
    if isinstance(space, spaces.MultiDiscrete):
        start = np.zeros_like(space.nvec) if getattr(space, "start", None) is None else space.start
        return {
            "type": "MultiDiscrete",
            "dtype": np.dtype(space.dtype).name,
            "nvec": space.nvec.tolist(),
            "start": start.tolist(),
        }
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, spaces.Dict) and all(isinstance(key, str) for key in space):
        return {"type": "Dict", "spaces": {key: space_to_json(part) for key, part in space.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space]}
    if isinstance(space, spaces.Text):
        lengths = {"min_length": space.min_length, "max_length": space.max_length}
        return {"type": "Text", **lengths, "charset": "".join(sorted(space.character_set))}
    return {"type": "other", "name": kind, "text": repr(space)[:1000]}


def space_from_json(value: Any) -> spaces.Space[Any] | None:
    """The space; None for null, and for a space that has no form in JSON. Raises `DatasetError` for all else.

    >>> space_from_json(space_to_json(spaces.Box(-1, 1, (2,))))
    Box(-1.0, 1.0, (2,), float32)
    """
    if value is None:
        return None
    try:
        return _space(value, depth=0)
    except DatasetError:
        raise
    except Exception as error:  # gymnasium asserts, numpy overflows: the text describes no space
        raise DatasetError(f"a space in it cannot be made: {type(error).__name__}: {error}") from None


def _space(value: Any, depth: int) -> spaces.Space[Any] | None:
    if type(value) is not dict or depth > 32:
        raise DatasetError(f"a space in it is {str(value)[:80]!r}, and no object with a type")
    kind = value.get("type")
    if kind == "Box":
        dtype, shape = _dtype(value["dtype"]), _shape(value["shape"])
        low, high = (_as_bound(value[key], dtype, shape) for key in ("low", "high"))
        return _box(low, high, shape)
    if kind == "Discrete":
        return spaces.Discrete(_int(value["n"]), start=_int(value["start"]), **_wide(value["dtype"]))
    if kind == "MultiDiscrete":
        dtype = _dtype(value["dtype"])
        return spaces.MultiDiscrete(
            np.array(value["nvec"], dtype), dtype=dtype.type, start=np.array(value["start"], dtype)
        )
    if kind == "MultiBinary":
        n = value["n"]
        return spaces.MultiBinary(_shape([n])[0] if type(n) is int else _shape(n))
    if kind == "Dict":
        parts = {key: _space(part, depth + 1) for key, part in dict(value["spaces"]).items()}
        whole = {key: part for key, part in parts.items() if part is not None}
        return spaces.Dict(whole) if len(whole) == len(parts) else None
    if kind == "Tuple":
        several = [_space(part, depth + 1) for part in list(value["spaces"])]
        known = [part for part in several if part is not None]
        return spaces.Tuple(known) if len(known) == len(several) else None
    if kind == "Text":
        lengths = {"min_length": _int(value["min_length"]), "max_length": _int(value["max_length"])}
        return spaces.Text(**lengths, charset=str(value["charset"]))
    if kind == "other":
        return None
    raise DatasetError(f"a space in it has the type {str(kind)[:80]!r}, which is none of gymnasium")


def _bound(bound: np.ndarray) -> Any:
    """One number where all are equal (as in pictures), else a list in C order."""
    flat = bound.reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return _number(flat[0].item())
    return [_number(each) for each in flat.tolist()]


def _number(value: Any) -> Any:
    return value if math.isfinite(value) else "inf" if value > 0 else "-inf"


def _box(low: np.ndarray, high: np.ndarray, shape: tuple[int, ...]) -> spaces.Box:
    """A Box whose bounds, where they are one number each, take no memory: a line of JSON may give them any shape."""
    if low.shape != high.shape:
        low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
    box = spaces.Box(low, high, low.shape, low.dtype.type)
    if low.shape != shape:
        box._shape = shape
        for name in ("low", "high", "bounded_below", "bounded_above"):
            setattr(box, name, np.broadcast_to(getattr(box, name), shape))
    return box


def _as_bound(value: Any, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    many = value if type(value) is list else [value]
    numbers = [float(each) if each in ("inf", "-inf") else each for each in many]
    if not all(type(each) in (int, float, bool) for each in numbers):
        raise DatasetError("a bound of a Box in it is no number")
    array = np.array(numbers, dtype)
    return array.reshape(shape if type(value) is list else (1,) * len(shape))


def _dtype(name: Any) -> np.dtype:
    dtype = np.dtype(str(name))
    if dtype.kind not in "biuf" or dtype.name != name:
        raise DatasetError(f"a space in it has the dtype {str(name)[:80]!r}, and only numbers can be stored")
    return dtype


def _wide(name: Any) -> dict[str, Any]:
    """The dtype of a Discrete space, where it is not the usual one; gymnasium before 1.2 had that one only."""
    return {} if name == "int64" else {"dtype": _dtype(name).type}


def _shape(value: Any) -> tuple[int, ...]:
    sizes = tuple(_int(each) for each in list(value))
    if any(size < 0 for size in sizes) or math.prod(sizes) > MOST_ELEMENTS:
        raise DatasetError(f"a space in it has the shape {sizes}; {MOST_ELEMENTS:,} elements are the most")
    return sizes


def _int(value: Any) -> int:
    if type(value) is not int:
        raise DatasetError(f"a space in it has {str(value)[:80]!r} for an integer")
    return value
