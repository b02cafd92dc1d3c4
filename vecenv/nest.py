"""Trees of arrays: a tree is a dict of trees, a tuple of trees, or a leaf (anything else)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium import spaces

Tree = Any
__all__ = [
    "as_array",
    "cast_exactly",
    "has_float64",
    "items",
    "leaves",
    "map",
    "merge",
    "namespace",
    "nbytes",
    "object_array",
    "on_cpu",
]
__all__ += ["put", "signed", "space_of", "split_infos", "stack", "take", "tensor_on_host", "tree_of"]


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
    """Yield (path, leaf) for each leaf. A path is a tuple of keys and indices.

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
            if flags.c_contiguous and flags.aligned:  # else `ndarray.take` would first copy the whole array
                return tree.take(index, 0)  # faster than an index if rows are small
        return tree[index]
    return map(lambda leaf: take(leaf, index) if leaf.__class__ is np.ndarray else leaf[index], tree)


def put(tree: Tree, index: Any, value: Tree) -> None:
    if isinstance(tree, dict):
        for key, child in tree.items():
            put(child, index, value[key])
    elif isinstance(tree, tuple):
        for child, part in zip(tree, value, strict=True):
            put(child, index, part)
    elif tree.__class__ is np.ndarray:
        tree[index] = value
    else:
        signed(tree)[index] = signed(value)


def merge(function: Callable[[list[Any]], Any], trees: Sequence[Tree]) -> Tree:
    """Merge trees: apply `function` to the list of leaves with the same path.

    >>> merge(sum, [{"a": 1, "b": (2,)}, {"b": (20,), "a": 10}])
    {'a': 11, 'b': (22,)}
    """
    first = trees[0]
    if isinstance(first, dict):
        return {key: merge(function, [tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple):
        return tuple(merge(function, parts) for parts in zip(*trees, strict=True))
    return function(list(trees))


def nbytes(tree: Tree) -> int:
    """Return the bytes of a tree of arrays. Each object in an array, such as a text, counts with its own size.

    >>> nbytes({"a": np.zeros(2), "b": (np.zeros(3, bool),)})
    19
    """
    objects = [leaf for leaf in leaves(tree) if leaf.dtype == object]
    return sum(leaf.nbytes for leaf in leaves(tree)) + sum(
        sys.getsizeof(each) for leaf in objects for each in leaf.flat
    )


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack trees of the same structure leaf by leaf.

    >>> stack([{"a": 1}, {"a": 2}])["a"]
    array([1, 2])
    """
    return merge(np.stack, trees)


def tree_of(space: Any) -> Any:
    """Convert Dict and Tuple spaces to a tree of spaces."""
    if isinstance(space, spaces.Dict):
        return {key: tree_of(child) for key, child in space.spaces.items()}
    return tuple(tree_of(child) for child in space.spaces) if isinstance(space, spaces.Tuple) else space


def space_of(tree: Any) -> Any:
    if isinstance(tree, dict):
        # spaces.Dict sorts the keys of a dict, but keeps the order of pairs
        return spaces.Dict([(key, space_of(child)) for key, child in tree.items()])
    return spaces.Tuple([space_of(child) for child in tree]) if isinstance(tree, tuple) else tree


def object_array(values: Sequence[Any]) -> np.ndarray:
    """Return a 1-D object array, even if the values are sequences."""
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def tensor_on_host(value: Any) -> Any:
    """Convert a tensor (an object with `detach`, `cpu` and `numpy`) to an array. Return other objects unchanged.

    A CPU tensor's array shares memory with the tensor. bfloat16 is copied to float32, without loss.
    """
    if value.__class__ is np.ndarray or not (hasattr(value, "detach") and hasattr(value, "cpu")):
        return value
    here = getattr(value, "is_cpu", False) and not getattr(value, "requires_grad", True)
    tensor = value if here else value.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:  # numpy has no bfloat16
        return tensor.float().numpy()


def on_cpu(value: Any) -> Any:
    """Copy a tensor of another device to the CPU. Return other objects unchanged."""
    return value.cpu() if hasattr(value, "cpu") and not getattr(value, "is_cpu", False) else value


def as_array(value: Any) -> np.ndarray:
    """Return an array of an array, a tensor, a number, or a list of these."""
    if value.__class__ is np.ndarray:
        return value
    if value.__class__ is list:
        return np.asarray([tensor_on_host(each) for each in value])
    return np.asarray(tensor_on_host(value))


def cast_exactly(array: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Return `array` as `dtype`, or `None` if a value would change by more than rounding to a float type."""
    if array.dtype.kind not in "biufc":
        return None
    if dtype.kind in "fc":
        return _as_floats(array, dtype) if np.can_cast(array.dtype, dtype, "same_kind") else None
    if array.dtype.kind == "c":
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype)
        return cast if bool(np.all(cast == array)) else None


def _as_floats(array: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    try:
        with np.errstate(invalid="ignore", under="ignore", over="raise"):
            return array.astype(dtype)
    except FloatingPointError:
        return None


def signed(array: Any) -> Any:
    """Return a tensor of uint16, uint32 or uint64 as a view of signed integers. Return other arrays unchanged.

    torch has no `index_put`, `masked_fill` and `index_copy` for these dtypes.
    """
    name = str(array.dtype).removeprefix("torch.u") if hasattr(array, "detach") else ""
    return array.view(getattr(namespace(array), name)) if name in ("int16", "int32", "int64") else array


@lru_cache
def has_float64(torch: Any, device: Any) -> bool:
    """Return whether a device of torch has float64."""
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except TypeError:  # MPS
        return False
    return True


def namespace(array: Any) -> Any:
    """Return the module of an array, with functions such as `where`: torch for a tensor, jax.numpy for JAX, numpy."""
    if isinstance(array, np.ndarray):
        return np
    if hasattr(array, "detach"):
        return sys.modules[type(array.dtype).__module__]
    return array.__array_namespace__() if hasattr(array, "__array_namespace__") else np


def split_infos(infos: Mapping[str, Any], n: int) -> list[dict[str, Any]]:
    """Split gymnasium's dict of arrays, with a mask `_key` for each `key`, into `n` dicts.

    A value without an entry per env becomes the value of each env.

    >>> split_infos({"a": np.array([1, 2]), "_a": np.array([True, False])}, 2)
    [{'a': np.int64(1)}, {}]
    """
    rows: list[dict[str, Any]] = [{} for _ in range(n)]
    masks = {f"_{key}" for key in infos}
    for key, value in infos.items():
        if key in masks:
            continue
        values: Sequence[Any] = split_infos(value, n) if isinstance(value, Mapping) else value
        shape = (len(values),) if isinstance(values, (list, tuple)) else getattr(values, "shape", ())
        if tuple(shape[:1]) != (n,):
            values = [value] * n
        mask = infos.get(f"_{key}")
        for i in range(n) if mask is None else np.flatnonzero(mask).tolist():
            rows[i][key] = values[i]
    return rows
