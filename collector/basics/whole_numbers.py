"""Checks of whole numbers in arguments."""

from __future__ import annotations

import operator
from typing import Any


def whole(name: str, number: Any) -> int:
    """Return a whole number as int. Floats such as 1e6 are allowed. Raises `TypeError` for other values."""
    if isinstance(number, float) and number.is_integer():
        return int(number)
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {number!r}") from None


def at_least_one(name: str, number: Any) -> int:
    """Return a positive whole number. Raises `TypeError` and `ValueError` for other values."""
    count = whole(name, number)
    if count < 1:
        raise ValueError(f"{name} must be at least 1, got {count}")
    return count
