"""Columns: the infos of n envs in the form of gymnasium's `VectorEnv`.

    {"speed": array (n,), "_speed": mask (n,), "episode": {"r": array (n,), "_r": mask (n,)}, "_episode": mask (n,)}

A column is an array or tensor (n, ...), a list, or a dict of columns. Envs outside the mask `_key` lack the key.
Without a mask, all envs have the key. A value without a row per env, such as {"time": 1.5}, belongs to each env.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.host.row_writer import copy_containers

Columns = Mapping[Any, Any]


def entries(columns: Columns) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (key, column, mask or `None`) for each key.

    >>> list(entries({"a": [1, 2], "_a": [True, False], "b": 3}))
    [('a', [1, 2], [True, False]), ('b', 3, None)]
    """
    masks = {f"_{key}" for key in columns}
    for key, column in columns.items():
        if key not in masks:
            yield key, column, columns.get(f"_{key}")


def has_rows(column: Any, n: int) -> bool:
    if isinstance(column, (list, tuple)):
        return len(column) == n
    return tuple(getattr(column, "shape", ())[:1]) == (n,)


def row(columns: Columns, i: int, n: int) -> dict[Any, Any]:
    """Return the info of env i.

    >>> row({"a": np.array([1, 2]), "_a": np.array([True, False]), "b": 3}, 0, 2)
    {'a': np.int64(1), 'b': 3}
    """
    return {
        key: row(column, i, n) if isinstance(column, Mapping) else column[i] if has_rows(column, n) else column
        for key, column, mask in entries(columns)
        if mask is None or mask[i]
    }


def column(columns: Any, key: str) -> tuple[Any, Any]:
    """Return the column of a key, or of "a.b" in a dict "a", and its mask (`None`: all envs have the key).

    Return `None` for an unknown key.

    >>> column({"a": {"b": [1, 2]}, "_a": np.array([True, False])}, "a.b")
    ([1, 2], array([ True, False]))
    """
    if not isinstance(columns, Mapping):
        return None, None
    if key in columns:
        is_mask = key[:1] == "_" and key[1:] in columns
        return (None, None) if is_mask else (columns[key], columns.get(f"_{key}"))
    name, dot, rest = key.partition(".")
    found, mask = column(columns.get(name), rest) if dot else (None, None)
    above = columns.get(f"_{name}")
    return found, mask if above is None else above if mask is None else above & mask


def rows(columns: Columns, n: int) -> list[dict[Any, Any]]:
    """Return the infos of all n envs."""
    found: list[dict[Any, Any]] = []
    for key, column, mask in entries(columns):
        if isinstance(column, Mapping):
            values: Sequence[Any] = rows(column, n)
        else:
            values = list(column) if has_rows(column, n) else [column] * n
        if mask is None and not found:  # faster than dicts without keys
            found = [{key: value} for value in values]
            continue
        found = found or [{} for _ in range(n)]
        if mask is None:
            for info, value in zip(found, values, strict=True):
                info[key] = value
        else:
            for i in np.flatnonzero(mask).tolist():
                found[i][key] = values[i]
    return found or [{} for _ in range(n)]


def own(column: Any) -> Any:
    """Copy a column, because a simulator may write into its array again. Tensors stay on their device."""
    if column.__class__ is np.ndarray:
        if column.dtype == object and column.ndim == 1:
            return nest.object_array([copy_containers(each) for each in column])
        return column.copy()
    if hasattr(column, "detach"):
        return (column.detach() if column.requires_grad else column).clone()
    if isinstance(column, Mapping):
        return {key: own(child) for key, child in column.items()}
    return copy_containers(column)


def on_host(column: Any) -> Any:
    """Convert tensors, and arrays of other libraries, to numpy. Other values stay."""
    if isinstance(column, Mapping):
        return {key: on_host(child) for key, child in column.items()}
    is_foreign = hasattr(column, "__dlpack__") and not isinstance(column, (np.ndarray, np.generic))
    return nest.as_array(column) if is_foreign else column


def with_host_masks(columns: Columns) -> dict[Any, Any]:
    """Convert the masks to numpy, so that reading a row needs no copy from a device."""
    found: dict[Any, Any] = {}
    for key, column, mask in entries(columns):
        found[key] = with_host_masks(column) if isinstance(column, Mapping) else column
        if mask is not None:
            found[f"_{key}"] = nest.as_array(mask)
    return found


def choose(mask: Any, chosen: Any, others: Any) -> Any:
    """Return a tree of arrays with the rows of `chosen` where `mask` is True, and with the rows of `others` elsewhere.

    >>> choose(np.array([True, False]), np.array([1, 2]), np.array([3, 4]))
    array([1, 4])
    """

    def rows_of(pair: list[Any]) -> Any:
        wide = mask.reshape((-1,) + (1,) * (len(pair[1].shape) - 1))
        return nest.namespace(pair[1]).where(wide, *pair)

    return nest.merge(rows_of, [chosen, others])


def like(example: Any, array: Any) -> Any:
    """Return `array` in the library of the array `example`, and on its device."""
    if example.__class__ is np.ndarray:
        return np.asarray(on_host(array))
    if hasattr(example, "detach"):
        return nest.namespace(example).as_tensor(array, device=example.device)
    return nest.namespace(example).asarray(array)


def zeros_like(array: Any) -> Any:
    return nest.namespace(array).zeros_like(array)


def merged(columns: Columns, others: Columns, mask: Any, n: int) -> dict[Any, Any]:
    """Return `columns` with the rows of `others` for the envs in `mask`.

    >>> merged({"a": np.array([1, 2]), "b": 5}, {"a": np.array([3, 4])}, np.array([False, True]), 2)
    {'a': array([1, 4]), 'b': 5, '_b': array([ True, False])}
    """
    left = {key: (column, own_mask) for key, column, own_mask in entries(columns)}
    right = {key: (column, own_mask) for key, column, own_mask in entries(others)}
    result: dict[Any, Any] = {}
    for key in {**left, **right}:
        if key not in right:
            result[key], own_mask = left[key]
            result[f"_{key}"] = ~mask if own_mask is None else like(mask, own_mask) & ~mask
        elif key not in left:
            result[key], own_mask = right[key]
            result[f"_{key}"] = mask if own_mask is None else like(mask, own_mask) & mask
        else:
            (first, first_mask), (second, second_mask) = left[key], right[key]
            result[key] = _joined(first, second, mask, n)
            if first_mask is not None or second_mask is not None:
                one = mask | ~mask if first_mask is None else like(mask, first_mask)
                two = mask | ~mask if second_mask is None else like(mask, second_mask)
                result[f"_{key}"] = choose(mask, two, one)
    return result


def _joined(first: Any, second: Any, mask: Any, n: int) -> Any:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return merged(first, second, mask, n)
    forms = [(type(each), getattr(each, "dtype", None), getattr(each, "shape", None)) for each in (first, second)]
    if forms[0] == forms[1] and has_rows(first, n) and forms[0][1] is not None:
        return choose(like(first, mask), second, first)
    one, two = rows({"": first}, n), rows({"": second}, n)
    chosen = nest.as_array(mask).tolist()
    return nest.object_array([(two if takes else one)[i][""] for i, takes in enumerate(chosen)])


def taken(columns: Columns, ids: np.ndarray, n: int) -> dict[Any, Any]:
    """Return the rows `ids` of all columns."""
    found: dict[Any, Any] = {}
    for key, column in columns.items():
        if isinstance(column, Mapping):
            found[key] = taken(column, ids, n)
        elif not has_rows(column, n):
            found[key] = column
        else:
            found[key] = [column[i] for i in ids] if isinstance(column, (list, tuple)) else column[ids]
    return found
