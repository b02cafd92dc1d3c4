"""Parts of observations: spaces and trees of arrays by the path to a part, and the bounds of spaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import spaces as spaces_of_numbers
from vecenv.backends.memory.arena import Leaf, ObjectLeaf
from vecenv.transforms.numpy_or_torch import dtype_name

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
    """The Box with these bounds, and in their dtype; what is no number (such as inf - inf) is no bound."""
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
    """The part of a space or a tree that is at the path."""
    for key in path:
        if key == WHOLE and not isinstance(tree, (dict, tuple, spaces.Dict, spaces.Tuple)):
            return tree
        tree = tree[key]
    return tree


def with_part(tree: Any, path: Path, value: Any) -> Any:
    """A space or a tree with `value` at the path; what is not changed is shared."""
    if not path or (path == (WHOLE,) and not isinstance(tree, (dict, spaces.Dict))):
        return value
    key, *rest = path
    if isinstance(tree, (tuple, spaces.Tuple)):
        parts = list(tree)
        parts[key] = with_part(parts[key], tuple(rest), value)
        return spaces.Tuple(parts) if isinstance(tree, spaces.Tuple) else tuple(parts)
    is_space = isinstance(tree, spaces.Space)
    children = dict(tree.spaces if isinstance(tree, spaces.Dict) else tree if isinstance(tree, dict) else {WHOLE: tree})
    children[key] = with_part(children.get(key, spaces.Dict() if is_space else {}), tuple(rest), value)
    return spaces.Dict(children) if is_space else children


def without_part(tree: Any, path: Path) -> Any:
    """A space or a tree of dicts without the part at the path; one without parts where that is all of it."""
    is_space = isinstance(tree, spaces.Space)
    children = {} if not path else dict(tree.spaces if is_space else tree)
    if len(path) > 1:
        children[path[0]] = without_part(children[path[0]], path[1:])
    elif path:
        del children[path[0]]
    return spaces.Dict(children) if is_space else children


def described(tree: Any) -> str:
    """The parts of an observation in words, for messages."""
    if isinstance(tree, (dict, tuple)):
        return "with the parts " + ", ".join(str(path[0] if len(path) == 1 else path) for path, _ in leaves_of(tree))
    row = row_of(tree)
    return "that is no array" if row is None else f"of shape {row[0]} and dtype {row[1]}"
