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
    if array.dtype == np.bool_:
        if array.shape != (n,):
            raise ValueError(f"a bool mask of env ids must have the shape ({n},), got {array.shape}")
        ids = np.flatnonzero(array)
    elif array.size == 0:
        ids = np.empty(0, dtype=np.int64)
    elif not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"env ids must be integers, got {id!r}")
    else:
        ids = np.array(array, dtype=np.int64).reshape(-1)
    if len(ids) == 0:
        raise ValueError("no env ids given; pass at least one, or None for all")
    if ids.min() < 0 or ids.max() >= n:
        wrong = next(int(i) for i in ids if not 0 <= i < n)
        raise IndexError(f"env id {wrong} is out of range for {n} envs (0 to {n - 1})")
    if len(ids) > 1:
        counts = np.bincount(ids, minlength=1)
        if counts.max() > 1:
            raise ValueError(f"env id {int(counts.argmax())} is given twice")
    return ids
