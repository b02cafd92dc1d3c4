"""Trees of arrays: a tree is a dict of trees, a tuple of trees, or a leaf (anything else)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

Tree = Any
__all__ = ["as_array", "items", "leaves", "map", "merge", "namespace", "object_array", "put", "space_of", "stack"]
__all__ += ["take", "tensor_on_host", "tree_of"]


def map(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return a tree with `function` applied to each leaf.

    >>> map(lambda x: x + 1, {"a": 1, "b": (2, 3)})
    {'a': 2, 'b': (3, 4)}
    """
    if tree.__class__ is np.ndarray:
        return function(tree)
    if isinstance(tree, dict):
        return {key: map(function, child) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(function, child) for child in tree)
    return function(tree)


def leaves(tree: Tree) -> Iterator[Any]:
    if isinstance(tree, dict):
        for child in tree.values():
            yield from leaves(child)
    elif isinstance(tree, tuple):
        for child in tree:
            yield from leaves(child)
    else:
        yield tree


def items(tree: Tree, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path of each leaf, a tuple of keys and places, with the leaf.

    >>> list(items({"a": 1, "b": (2,)}))
    [(('a',), 1), (('b', 0), 2)]
    """
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, tuple) else None
    if children is None:
        yield path, tree
    else:
        for key, child in children:
            yield from items(child, (*path, key))


def take(tree: Tree, index: Any) -> Tree:
    """Index each leaf: return row `index`, or a batch of rows for an array `index`.

    >>> take({"a": np.arange(3), "b": (np.zeros((3, 2)),)}, 1)["a"]
    np.int64(1)
    """
    if tree.__class__ is np.ndarray:
        if tree.ndim > 1 and index.__class__ is np.ndarray and index.dtype.kind == "i":
            flags = tree.flags
            if flags.c_contiguous and flags.aligned:  # `take` copies any other array as a whole
                return tree.take(index, 0)  # several times as fast as an index for small rows
        return tree[index]
    return map(lambda leaf: take(leaf, index) if leaf.__class__ is np.ndarray else leaf[index], tree)


def put(tree: Tree, index: Any, value: Tree) -> None:
    if isinstance(tree, dict):
        for key, child in tree.items():
            put(child, index, value[key])
    elif isinstance(tree, tuple):
        for child, part in zip(tree, value, strict=True):
            put(child, index, part)
    else:
        tree[index] = value


def merge(function: Callable[[list[Any]], Any], trees: Sequence[Tree]) -> Tree:
    """Return one tree with `function` applied to the list of the leaves at the same place.

    >>> merge(sum, [{"a": 1, "b": (2,)}, {"b": (20,), "a": 10}])
    {'a': 11, 'b': (22,)}
    """
    first = trees[0]
    if isinstance(first, dict):
        return {key: merge(function, [tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple):
        return tuple(merge(function, parts) for parts in zip(*trees, strict=True))
    return function(list(trees))


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack equal trees leaf by leaf.

    >>> stack([{"a": 1}, {"a": 2}])["a"]
    array([1, 2])
    """
    return merge(np.stack, trees)


def tree_of(space: Any) -> Any:
    """Return the tree of a space: dicts and tuples in place of Dict and Tuple spaces."""
    if isinstance(space, spaces.Dict):
        return {key: tree_of(child) for key, child in space.spaces.items()}
    return tuple(tree_of(child) for child in space.spaces) if isinstance(space, spaces.Tuple) else space


def space_of(tree: Any) -> Any:
    if isinstance(tree, dict):
        # a list of pairs, because gymnasium sorts a dict
        return spaces.Dict([(key, space_of(child)) for key, child in tree.items()])
    return spaces.Tuple([space_of(child) for child in tree]) if isinstance(tree, tuple) else tree


def object_array(values: Sequence[Any]) -> np.ndarray:
    """Return a 1-D object array of the values, which numpy would convert if nested."""
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def tensor_on_host(value: Any) -> Any:
    """Return a tensor (torch's, or with `detach`, `cpu` and `numpy`) as an array, and other objects unchanged.

    A CPU tensor of torch shares its memory. bfloat16 becomes float32, without loss.
    """
    if value.__class__ is np.ndarray or not (hasattr(value, "detach") and hasattr(value, "cpu")):
        return value
    here = getattr(value, "is_cpu", False) and not getattr(value, "requires_grad", True)
    tensor = value if here else value.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:  # numpy has no bfloat16
        return tensor.float().numpy()


def as_array(value: Any) -> np.ndarray:
    return np.asarray(tensor_on_host(value))


def namespace(array: Any) -> Any:
    """Return the module with functions for an array: torch for a tensor, else numpy."""
    is_numpy = isinstance(array, np.ndarray) or not hasattr(array, "detach")
    return np if is_numpy else sys.modules[type(array.dtype).__module__]
