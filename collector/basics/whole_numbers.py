"""Whole numbers as arguments."""

from __future__ import annotations

import operator
from typing import Any


def whole(name: str, number: Any) -> int:
    """A whole number, which may be a float (1e6). Raises `TypeError` for all others."""
    if isinstance(number, float) and number.is_integer():
        return int(number)
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {number!r}") from None


def at_least_one(name: str, number: Any) -> int:
    """A whole number above zero. Raises `TypeError` and `ValueError` for all others."""
    count = whole(name, number)
    if count < 1:
        raise ValueError(f"{name} must be at least 1, got {count}")
    return count
