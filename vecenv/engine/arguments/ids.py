"""Env ids: what a caller may pass, and the checks on it, all before anything is sent."""

from __future__ import annotations

from typing import Any

import numpy as np


def as_ids(id: Any, n: int) -> np.ndarray:
    """`id` as a fresh int64 array (k,): an int, a sequence of ints, an integer array, or a bool mask of length n.

    IndexError for an id out of range (negative ones too), ValueError for none at all, one given twice or a mask of
    the wrong length, TypeError for anything that is not an integer.
    """
    try:
        array = np.asarray(id)
    except ValueError:
        raise TypeError(f"env ids must be integers, got {id!r}") from None
    if array.dtype.kind == "b":
        if array.shape != (n,):
            raise ValueError(f"a bool mask of env ids must have the shape ({n},), got {array.shape}")
        array = array.nonzero()[0]
    elif array.size and not _are_integers(array, id):
        raise TypeError(f"env ids must be integers, got {id!r}")
    rows = array.reshape(-1).tolist()  # nearly always few: Python is faster than numpy
    if not rows:
        raise ValueError("no env ids given; pass at least one, or None for all")
    if min(rows) < 0 or max(rows) >= n:
        wrong = next(i for i in rows if not 0 <= i < n)
        raise IndexError(f"env id {wrong} is out of range for {n} envs (0 to {n - 1})")
    if len(set(rows)) < len(rows):
        raise ValueError(f"env id {next(i for i in rows if rows.count(i) > 1)} is given twice")
    return array.reshape(-1).astype(np.int64)


def _are_integers(array: np.ndarray, id: Any) -> bool:
    """Whether ids are integers, also those too large for numpy; a list that mixes them with bools is rejected."""
    if isinstance(id, (list, tuple)) and any(isinstance(i, (bool, np.bool_)) for i in id):
        return False
    if array.dtype == object:
        return all(type(i) is int for i in array.reshape(-1).tolist())
    return array.dtype.kind in "iu"
