"""Functions that transforms use on numpy arrays and torch tensors, without importing torch.

An observation is a tree of dicts, tuples and arrays (its *leaves*). A *path* is the tuple of keys and indices of a
*part* of this tree. The first dimension of arrays is the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv import spaces as spaces_of_numbers
from vecenv.layout import Leaf, ObjectLeaf
from vecenv.nest import as_array, namespace

Array = Any
Path = tuple[Any, ...]
"""The path () is the whole observation."""

WHOLE = "observation"
"""Key of an observation that is not a dict."""


def numeric_bounds(space: Any) -> tuple[np.ndarray, np.ndarray]:
    if (bounds := spaces_of_numbers.bounds_of(space)) is None:
        raise ValueError(f"expected a space of numeric arrays, got {space}")
    return bounds


def cast_box(space: Any, dtype: str, inside: bool = False) -> spaces.Box:
    """Return the Box of the space's values after a cast to `dtype`. An integer dtype limits the bounds.

    With `inside`, bounds are rounded inward, so that each float of the Box is in `space` after a cast back.
    """
    ends = numeric_bounds(space)
    with np.errstate(all="ignore"):
        low, high = (end.astype(dtype) for end in ends)
    if low.dtype.kind != "f":
        least, most = (False, True) if low.dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        fits = (ends[0] >= least) & (ends[1] < most + 1.0)  # else values wrap around
        low, high = np.where(fits, low, least), np.where(fits, high, most)
    elif inside:
        low = np.where(low < ends[0], np.nextafter(low, low.dtype.type(np.inf)), low)
        high = np.where(high > ends[1], np.nextafter(high, high.dtype.type(-np.inf)), high)
    return box(low.astype(dtype), high.astype(dtype))


def box(low: np.ndarray, high: np.ndarray) -> spaces.Box:
    """Return the Box with these bounds. NaN, for example from inf - inf, means no bound."""
    if low.dtype.kind == "f":
        low, high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
    return spaces.Box(low, high, low.shape, low.dtype.type)


def row_of(leaf: Any) -> tuple[tuple[int, ...], str] | None:
    if isinstance(leaf, Leaf):
        return leaf.shape, leaf.dtype.name
    if isinstance(leaf, ObjectLeaf):
        return None
    return None if dtype_name(leaf) == "object" else (tuple(leaf.shape[1:]), dtype_name(leaf))


def part(tree: Any, path: Path) -> Any:
    for key in path:
        if key == WHOLE and not isinstance(tree, (dict, tuple)):
            return tree
        tree = tree[key]
    return tree


def with_part(tree: Any, path: Path, value: Any) -> Any:
    if not path or (path == (WHOLE,) and not isinstance(tree, dict)):
        return value
    key, *rest = path
    if isinstance(tree, tuple) and isinstance(key, int):
        if key >= len(tree):
            raise ValueError(f"cannot write part {key} of a tuple with {len(tree)} parts: use an existing index")
        return (*tree[:key], with_part(tree[key], tuple(rest), value), *tree[key + 1 :])
    children = dict(tree if isinstance(tree, dict) else {WHOLE: tree})
    children[key] = with_part(children.get(key, {}), tuple(rest), value)
    return children


REMOVED: Any = object()
"""Placeholder for a removed part, so that the indices of a tuple stay valid until all parts are written."""


def replace_parts(tree: Any, removed: Sequence[Path], written: Iterable[tuple[Path, Any]]) -> Any:
    """Return a copy of the tree without the parts `removed`, and with the parts `written`. Arrays are not copied.

    If a part with a string key is written into a tuple, the tuple becomes a dict. The tuple's remaining parts get the
    key "observation".
    """
    for path in removed:
        tree = with_part(tree, path, REMOVED)
    for path, value in written:
        if path == (WHOLE,) and isinstance(tree, tuple):
            if any(leaf is not REMOVED for leaf in nest.leaves(tree)):
                raise ValueError(f"the other parts of the tuple get the name {WHOLE!r}: choose another name")
            tree = {}
        tree = with_part(tree, path, value)
    return _without_removed(tree) if removed else tree


def _without_removed(tree: Any) -> Any:
    if isinstance(tree, tuple):
        return tuple(_without_removed(child) for child in tree if child is not REMOVED)
    if not isinstance(tree, dict):
        return {} if tree is REMOVED else tree
    kept = {key: _without_removed(child) for key, child in tree.items() if child is not REMOVED}
    emptied = [key for key, child in kept.items() if isinstance(child, tuple) and len(child) < 1 <= len(tree[key])]
    return {key: child for key, child in kept.items() if key not in emptied}


def action_rows(action: Any, layout: Any, one: bool = False) -> Any:
    """Return actions as a tree of arrays (batch, *shape), nested like `layout`. Dtypes are kept.

    With `one`, `action` is for a single env, and the result is a batch of one. Rows of shape () and (1,) are reshaped
    to the layout's shape.
    """
    if isinstance(layout, (dict, tuple)):
        keys = list(layout) if isinstance(layout, dict) else range(len(layout))
        if isinstance(layout, dict):
            fits = isinstance(action, Mapping) and action.keys() == layout.keys()
        else:
            fits = isinstance(action, (tuple, list)) and len(action) == len(layout)
        if not fits:
            raise ValueError(f"the action {action!r} does not have the keys {list(keys)} of its action space")
        parts = [action_rows(action[key], layout[key], one) for key in keys]
        return dict(zip(keys, parts, strict=True)) if isinstance(layout, dict) else tuple(parts)
    rows = action if hasattr(action, "detach") else np.asarray(action)
    rows = rows[None] if one else rows
    if not isinstance(layout, Leaf) or tuple(rows.shape[1:]) == layout.shape:
        return rows
    if rows.ndim and tuple(rows.shape[1:]) + layout.shape == (1,):
        return rows.reshape(len(rows), *layout.shape)
    found, expected = (rows.shape[1:], layout.shape) if one else (rows.shape, (*rows.shape[:1], *layout.shape))
    raise ValueError(f"{layout.path} has the shape {tuple(found)}, expected {tuple(expected)} as in the action space")


def described(tree: Any) -> str:
    if isinstance(tree, (dict, tuple)):
        return "with the parts " + ", ".join(str(path[0] if len(path) == 1 else path) for path, _ in nest.items(tree))
    row = row_of(tree)
    return "that is not an array" if row is None else f"of shape {row[0]} and dtype {row[1]}"


def dtype_name(array: Array) -> str:
    return _name_of(array.dtype)


@lru_cache(maxsize=64)
def _name_of(dtype: Any) -> str:
    return dtype.name if isinstance(dtype, np.dtype) else str(dtype).rpartition(".")[2]


def is_float(array: Array) -> bool:
    return "float" in dtype_name(array)


def cast(array: Array, dtype: str) -> Array:
    """Return the array in `dtype`. On a device without float64, float32 replaces float64."""
    if isinstance(array, np.ndarray):
        return array.astype(dtype, copy=False)
    if dtype == "float64" and not nest.has_float64(namespace(array), array.device):
        dtype = "float32"
    return array.to(getattr(namespace(array), dtype))


def permute(array: Array, axes: Sequence[int]) -> Array:
    return array.transpose(axes) if isinstance(array, np.ndarray) else array.permute(*axes)


def concat(arrays: Sequence[Array], axis: int) -> Array:
    """Join arrays along an axis, in numpy's promoted dtype."""
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays, axis=axis)
    dtype = np.result_type(*{dtype_name(array) for array in arrays}).name
    return namespace(arrays[0]).cat([cast(array, dtype) for array in arrays], dim=axis)


def like(values: Array, array: Array) -> Array:
    """Return the values as an array of the same library and device as `array`.

    On a device without float64, float32 replaces float64.
    """
    if isinstance(array, np.ndarray):
        return values if isinstance(values, np.ndarray) else as_array(values)
    xp = namespace(array)
    dtype = xp.float32 if dtype_name(values) == "float64" and not nest.has_float64(xp, array.device) else None
    return xp.as_tensor(values, dtype=dtype, device=array.device)


def full(shape: Sequence[int], array: Array, value: float, dtype: str | None = None) -> Array:
    """Return an array filled with `value`, of the library, device and (by default) dtype of `array`."""
    if isinstance(array, np.ndarray):
        return np.full(shape, value, dtype or array.dtype)
    return array.new_full(tuple(shape), value, dtype=getattr(namespace(array), dtype) if dtype else None)


def in_any_mode(array: Array) -> Any:
    """Return a context without torch's inference mode, so that tensors made there can be changed in place later."""
    return nullcontext() if isinstance(array, np.ndarray) else namespace(array).inference_mode(False)


class Constants:
    """Array of constants, with a cached copy per dtype and device."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self._copies: dict[Any, Array] = {}

    def like(self, array: Array) -> Array:
        key = array.dtype, None if isinstance(array, np.ndarray) else array.device
        if key not in self._copies:
            with in_any_mode(array):
                self._copies[key] = like(self.values.astype(dtype_name(array)), array)
        return self._copies[key]

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values, "_copies": {}}


class EnvRows:
    """Store of one row (an array) per env.

    Rows of all envs are read and written without an index, because a GPU waits for the upload of an index.
    """

    def __init__(self, n: int) -> None:
        self._all = np.arange(n)
        self._rows: Array = None

    def take(self, ids: np.ndarray, among: Array = None) -> Array:
        """Return a copy of the rows of `ids`, or `None` before the first `put`.

        If `among` is given, all rows first move to the library and device of this array.
        """
        if self._rows is not None and among is not None:
            self._rows = like(self._rows, among)
        if self._rows is None:
            return None
        if np.array_equal(ids, self._all):
            return self._rows.copy() if isinstance(self._rows, np.ndarray) else self._rows.clone()
        return self._rows[like(ids, self._rows)]

    def put(self, ids: np.ndarray, rows: Array) -> None:
        """Store copies of `rows`. In the first call, and if a row's shape changes, other envs' rows become zeros."""
        shape = (len(self._all), *rows.shape[1:])
        is_new = self._rows is None or tuple(self._rows.shape) != shape
        self._rows = full(shape, rows, 0) if is_new else like(self._rows, rows)
        if isinstance(rows, np.ndarray):
            self._rows[ids] = rows
        elif np.array_equal(ids, self._all):
            self._rows = rows.to(self._rows.dtype, copy=True)
        else:  # torch refuses in-place changes of tensors from inference mode
            rows = nest.signed(cast(rows, dtype_name(self._rows)))
            self._rows = nest.signed(self._rows).index_copy(0, like(ids, rows), rows).view(self._rows.dtype)

    def clear(self, ids: np.ndarray) -> None:
        if self._rows is not None:
            self.put(ids, full((len(ids), *self._rows.shape[1:]), self._rows, 0))
