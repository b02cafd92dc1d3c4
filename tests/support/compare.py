"""Compare two trees of arrays, numbers and other objects, bit for bit. Workers import this module too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def difference(got: Any, want: Any, at: str = "", *, rounds: bool = False) -> str:
    """Return the first difference of two trees in type, dtype, shape or bits, or "" if they are equal.

    Two mappings with equal keys may have different classes. With `rounds`, floats may differ in their last bits.
    """
    if isinstance(got, Mapping) and isinstance(want, Mapping):
        if got.keys() != want.keys():
            return f"{at}: keys {list(got)}, expected {list(want)}"
        parts = [(f"{at}[{key!r}]", got[key], want[key]) for key in want]
    elif is_list(want) and kind_of(got) == kind_of(want) and len(got) == len(want):
        parts = [(f"{at}[{k}]", *pair) for k, pair in enumerate(zip(got, want, strict=True))]
    else:
        same = kind_of(got) == kind_of(want) and not is_list(want) and equal(got, want, rounds)
        return "" if same else f"{at}: {kind_of(got)} {got!r}, expected {kind_of(want)} {want!r}"
    return next((text for place, a, b in parts if (text := difference(a, b, place, rounds=rounds))), "")


def same_columns(one: Any, other: Any, *names: str) -> None:
    """Check that these attributes of two objects, such as episodes, are equal."""
    for name in names:
        assert_same(getattr(one, name), getattr(other, name), name)


def is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.dtype == object)


def kind_of(value: Any) -> str:
    """Return the class of a value, with the dtype and shape of an array or number of any library."""
    name = type(value).__name__
    return f"{name} {value.dtype}{value.shape}" if hasattr(value, "dtype") else name


def equal(got: Any, want: Any, rounds: bool) -> bool:
    """Compare two leaves of the same type: numbers and arrays by their bits."""
    if not isinstance(want, (np.ndarray, np.generic, float)):
        return bool(got == want)
    one, two = np.asarray(got), np.asarray(want)
    if rounds and two.dtype.kind == "f":
        return np.allclose(one, two, *[1e-10 if two.itemsize == 8 else 1e-5] * 2, equal_nan=True)
    return one.tobytes() == two.tobytes()


def assert_same(got: Any, want: Any, what: str = "result", *, rounds: bool = False) -> None:
    """Check that two trees are equal, with all types, dtypes, shapes and bits."""
    text = difference(got, want, what, rounds=rounds)
    assert not text, text
