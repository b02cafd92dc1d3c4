"""Array functions for transforms: numpy or torch, parts of an observation by path, bounds of spaces.

Arrays of both kinds are handled alike: without an import of torch, and without a way over numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import spaces as spaces_of_numbers
from vecenv.backends.memory.arena import Leaf, ObjectLeaf
from vecenv.nest import as_array, namespace

Array = Any
"""An array of numpy or a tensor of torch."""
Path = tuple[Any, ...]
"""The keys to a part of an observation, () for all of it."""

WHOLE = "observation"
"""The key of an observation that is no dict, once there are others beside it."""


def bounds_of(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and highest values of an array space, in its dtype; ValueError for another space."""
    if (bounds := spaces_of_numbers.bounds_of(space)) is None:
        raise ValueError(f"a space of arrays of numbers is needed, got {space}")
    return bounds


def box(low: np.ndarray, high: np.ndarray) -> spaces.Box:
    """The Box with these bounds, and in their dtype; a NaN (such as inf - inf) is no bound."""
    if low.dtype.kind == "f":
        low, high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
    return spaces.Box(low, high, low.shape, low.dtype.type)


def leaves_of(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each leaf of a tree, with the path to it."""
    if isinstance(tree, dict):
        for key, child in tree.items():
            yield from leaves_of(child, (*path, key))
    elif isinstance(tree, tuple):
        for i, child in enumerate(tree):
            yield from leaves_of(child, (*path, i))
    else:
        yield path, tree


def row_of(leaf: Any) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of a row of this leaf of a space or of a batch; None if it holds objects."""
    if isinstance(leaf, Leaf):
        return leaf.shape, leaf.dtype.name
    if isinstance(leaf, ObjectLeaf):
        return None
    return None if dtype_name(leaf) == "object" else (tuple(leaf.shape[1:]), dtype_name(leaf))


def part(tree: Any, path: Path) -> Any:
    """The part of a tree that is at the path."""
    for key in path:
        if key == WHOLE and not isinstance(tree, (dict, tuple)):
            return tree
        tree = tree[key]
    return tree


def with_part(tree: Any, path: Path, value: Any) -> Any:
    """A copy of the tree with `value` at the path, which shares all other parts."""
    if not path or (path == (WHOLE,) and not isinstance(tree, dict)):
        return value
    key, *rest = path
    if isinstance(tree, tuple):
        parts = list(tree)
        parts[key] = with_part(parts[key], tuple(rest), value)
        return tuple(parts)
    children = dict(tree if isinstance(tree, dict) else {WHOLE: tree})
    children[key] = with_part(children.get(key, {}), tuple(rest), value)
    return children


def without_parts(tree: Any, paths: Iterable[Path]) -> Any:
    """A tree of dicts without the parts at the paths; an empty one where such a part is all of it."""
    for first, *rest in (path or (WHOLE,) for path in paths):
        children = tree if isinstance(tree, dict) else {first: tree}
        below = {first: without_parts(children[first], [tuple(rest)])} if rest else {}
        tree = {key: child for key, child in children.items() if key != first} | below
    return tree


def described(tree: Any) -> str:
    """The parts of an observation in words, for messages."""
    if isinstance(tree, (dict, tuple)):
        return "with the parts " + ", ".join(str(path[0] if len(path) == 1 else path) for path, _ in leaves_of(tree))
    row = row_of(tree)
    return "that is no array" if row is None else f"of shape {row[0]} and dtype {row[1]}"


def dtype_name(array: Array) -> str:
    """The name of the dtype: "float32", "uint8", ..."""
    return _name_of(array.dtype)


@lru_cache(maxsize=64)
def _name_of(dtype: Any) -> str:
    return dtype.name if isinstance(dtype, np.dtype) else str(dtype).rpartition(".")[2]


def is_float(array: Array) -> bool:
    """Return whether the numbers are floats."""
    return "float" in dtype_name(array)


def cast(array: Array, dtype: str) -> Array:
    """The array in the dtype of that name; itself where it has it."""
    if isinstance(array, np.ndarray):
        return array.astype(dtype, copy=False)
    return array.to(getattr(namespace(array), dtype))


def permute(array: Array, axes: Sequence[int]) -> Array:
    """The array with its axes in another order."""
    return array.transpose(axes) if isinstance(array, np.ndarray) else array.permute(*axes)


def concat(arrays: Sequence[Array], axis: int) -> Array:
    """The arrays joined along an axis, in the dtype to which numpy would promote them."""
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays, axis=axis)
    dtype = np.result_type(*{dtype_name(array) for array in arrays}).name
    return namespace(arrays[0]).cat([cast(array, dtype) for array in arrays], dim=axis)


def like(values: Array, array: Array) -> Array:
    """Values as an array of the kind of `array`, on its device."""
    if isinstance(array, np.ndarray):
        return values if isinstance(values, np.ndarray) else as_array(values)
    return namespace(array).as_tensor(values, device=array.device)


def full(shape: Sequence[int], array: Array, value: float, dtype: str | None = None) -> Array:
    """The number everywhere, as an array of the kind of `array`, on its device, in its dtype or that of the name."""
    if isinstance(array, np.ndarray):
        return np.full(shape, value, dtype or array.dtype)
    return array.new_full(tuple(shape), value, dtype=getattr(namespace(array), dtype) if dtype else None)


class Constants:
    """An array of numpy, and its copies in other dtypes and on devices, each made once."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self._copies: dict[Any, Array] = {}

    def like(self, array: Array) -> Array:
        """The values as an array of the kind of `array`, on its device and in its dtype."""
        key = array.dtype, None if isinstance(array, np.ndarray) else array.device
        if key not in self._copies:
            self._copies[key] = like(self.values.astype(dtype_name(array)), array)
        return self._copies[key]

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values, "_copies": {}}


class EnvRows:
    """One row for each of `n` envs, of the kind and on the device of the rows that come; zeros at first."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._rows: Array = None

    def take(self, ids: np.ndarray, among: Array = None) -> Array:
        """A copy of the rows of these envs, for use with the array `among`; None where none were ever put."""
        if self._rows is not None and among is not None:
            self._rows = like(self._rows, among)
        return None if self._rows is None else self._rows[like(ids, self._rows)]

    def put(self, ids: np.ndarray, rows: Array) -> None:
        """Keep copies of these rows. Those of another shape than before begin anew, with zeros."""
        shape = (self._n, *rows.shape[1:])
        is_new = self._rows is None or tuple(self._rows.shape) != shape
        self._rows = full(shape, rows, 0) if is_new else like(self._rows, rows)
        if isinstance(rows, np.ndarray):
            self._rows[ids] = rows
        else:  # not in place, which tensors of torch's inference mode refuse
            self._rows = self._rows.index_copy(0, like(ids, rows), cast(rows, dtype_name(self._rows)))

    def clear(self, ids: np.ndarray) -> None:
        """Set the rows of these envs to zeros."""
        if self._rows is not None:
            self.put(ids, full((len(ids), *self._rows.shape[1:]), self._rows, 0))
