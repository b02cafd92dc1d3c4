"""Operations on the columns of a batch, which are numpy arrays or torch tensors, or trees of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv import nest


def copy_of(rows: Any) -> Any:
    """A copy of an array or a tensor, with the same layout in memory."""
    return rows.copy(order="K") if isinstance(rows, np.ndarray) else rows.clone()


def like(index: np.ndarray, array: Any) -> Any:
    """An index array for `array`: a tensor on its device where that is a tensor."""
    if isinstance(array, np.ndarray):
        return index
    from collector.device.tensors import to_device  # torch is there, but not needed for arrays

    return to_device(index, array.device)


def pick(tree: Any, *index: np.ndarray) -> Any:
    """The rows of a tree at an index array for each of the first dimensions; a copy."""
    return nest.map(lambda rows: rows[tuple(like(each, rows) for each in index)], tree)


def join(trees: Sequence[Any]) -> Any:
    """Trees of `(k, ...)` arrays, joined along their first dimension."""
    return nest.merge(np.concatenate, trees)
