"""Action masks: which actions an env allows in its next step, in the observation or in the info.

As in gymnasium and PettingZoo, an entry `action_mask` holds them, in the form that `space.sample(mask)` takes: for
Discrete an array `(n,)`, for MultiDiscrete a tuple of such (or one behind the other in one array), for MultiBinary an
array of its shape in which 2 leaves an element open, for Dict and Tuple a dict or tuple of masks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from collector.episodes.keys import scaled
from vecenv import nest
from vecenv.nest import as_array

ACTION_MASK = "action_mask"


def mask_of_part(mask: Any, key: Any) -> Any:
    """The mask of one part of a Dict or Tuple space; None where there is none."""
    if mask is None:
        return None
    if isinstance(mask, dict):
        return mask.get(key)
    if isinstance(mask, (tuple, list)) and isinstance(key, int) and key < len(mask):
        return mask[key]
    raise ValueError(f"the mask of a Dict or Tuple action space is a dict or tuple of masks, got {mask!r}")


def masks_of_elements(space: spaces.Space[Any], mask: Any, rows: int) -> list[np.ndarray]:
    """The masks `(rows, n)` of the elements of a Discrete or MultiDiscrete space; that of all for MultiBinary.

    Raises `ValueError` for masks of another shape.
    """
    if isinstance(space, spaces.MultiBinary):
        return [_in_shape(space, mask, rows, int(np.prod(space.shape)))]
    if isinstance(space, spaces.Discrete):
        return [_in_shape(space, mask, rows, int(space.n))]
    assert isinstance(space, spaces.MultiDiscrete)
    sizes = space.nvec.ravel().tolist()
    if not isinstance(mask, tuple):
        columns = _in_shape(space, mask, rows, sum(sizes))
        return np.split(columns, np.cumsum(sizes)[:-1], axis=1)
    parts = list(nest.leaves(mask))
    if len(parts) != len(sizes):
        raise ValueError(f"the action mask has {len(parts)} parts, expected {len(sizes)}: {space}")
    return [_in_shape(space, part, rows, size) for part, size in zip(parts, sizes, strict=True)]


def _in_shape(space: spaces.Space[Any], mask: Any, rows: int, columns: int) -> np.ndarray:
    array = as_array(mask)
    if array.shape[:1] != (rows,) or array.size != rows * columns or array.dtype.kind not in "biuf":
        raise ValueError(
            f"an action mask has the shape {array.shape[1:]} and dtype {array.dtype}, expected {columns} numbers: "
            f"{space}"
        )
    return array.reshape(rows, columns)


def choose_allowed(bits: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The index of one of the allowed elements of each row of a mask `(k, n)`; 0 where none is (as gymnasium's)."""
    allowed = np.cumsum(mask.astype(np.bool_), axis=1)
    count = allowed[:, -1]
    index = scaled(bits, np.maximum(count, 1).astype(np.uint64)).astype(np.int64)
    return np.where(count > 0, (allowed <= index[:, None]).sum(1), 0)


def mask_of_info(info: dict[str, Any]) -> Any:
    """The mask in the info of one env, as a tree of arrays; None where there is none."""
    mask = info.get(ACTION_MASK)
    return None if mask is None else _as_tree(mask)


def mask_of_obs(obs: Any) -> Any:
    """The masks in a batch of observations; None where there are none."""
    return obs.get(ACTION_MASK) if isinstance(obs, dict) else None


def _as_tree(mask: Any) -> Any:
    if isinstance(mask, dict):
        return {key: _as_tree(part) for key, part in mask.items() if part is not None}
    if isinstance(mask, (tuple, list)) and not all(np.isscalar(each) for each in mask):
        return tuple(map(_as_tree, mask))
    return np.array(mask)
