"""Infos of envs in the form of gymnasium's `VectorEnv`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.backends.columns import entries, has_rows
from vecenv.backends.info_batch import InfosById
from vecenv.backends.memory.infos import SCALARS, InfoColumns
from vecenv.facades.stepper import EndedStep


def vector_infos(rows: Iterable[tuple[int, Mapping[Any, Any]]], n: int) -> dict[Any, Any]:
    """Return an array (n, ...) per key, and under `_key` a bool mask of the envs with this key.

    `rows` are pairs (env id, info). As in gymnasium's `VectorEnv._add_info`, numbers and arrays are stacked, dicts are
    batched recursively, and other values and `final_obs` get an object array. If types differ, the array has a dtype
    that holds all values unchanged. Without such a dtype, or if shapes differ, the dtype is object. Envs without the
    key have 0, False or `None`.

    >>> vector_infos([(0, {"lives": 3}), (2, {"lives": 2.5})], 3)
    {'lives': array([3. , 0. , 2.5]), '_lives': array([ True, False,  True])}
    """
    rows = list(rows)
    if not rows:
        return {}
    ids, infos = zip(*rows, strict=True)
    return _batched(ids, infos, n, _mask(ids, n))


def _batched(ids: Sequence[int], infos: Sequence[Mapping[Any, Any]], n: int, mask: np.ndarray) -> dict[Any, Any]:
    if n > 1 and len(set(map(tuple, infos))) > 1:
        return _infos_with_other_keys(zip(ids, infos, strict=True), n)
    # Fast path for equal keys.
    batch: dict[Any, Any] = {}
    keys, is_whole = infos[0], len(ids) == n
    for key, values in zip(keys, zip(*[info.values() for info in infos], strict=True), strict=True):
        kind = values[0].__class__
        column: Any = None
        if key == "final_obs":
            column = object_column(ids, values, n)
        elif (kind is dict or is_whole) and (n == 1 or len(set(map(type, values))) == 1):
            if kind is dict:
                column = _batched(ids, values, n, mask)
            elif kind in COLUMN_DTYPES:
                column = _numbers(values, COLUMN_DTYPES[kind])
            elif kind is np.ndarray:
                column = _arrays(values)
        batch[key] = _column(ids, values, n) if column is None else column
        batch[f"_{key}"] = mask.copy()
    return batch


def _numbers(values: Sequence[Any], dtype: np.dtype) -> np.ndarray | None:
    try:
        return np.array(values, dtype)
    except OverflowError:  # an int beyond 64 bits
        return None


def _arrays(values: Sequence[np.ndarray]) -> np.ndarray | None:
    shape, dtype = values[0].shape, values[0].dtype
    if not shape or dtype.kind not in "biufc":
        return None
    for value in values:
        if value.shape != shape:
            return np.fromiter(values, object, len(values))
        if value.dtype != dtype:
            return None
    return np.concatenate(values, dtype=dtype).reshape(len(values), *shape)


COLUMN_DTYPES = {kind: dtype for kind, dtype in SCALARS.items() if kind is not np.bool_}
"""Dtype of a column by type of its values, except `np.bool_`, which numpy does not count as a number."""


def _infos_with_other_keys(rows: Iterable[tuple[int, Mapping[Any, Any]]], n: int) -> dict[Any, Any]:
    columns: dict[Any, tuple[list[int], list[Any]]] = {}
    for i, info in rows:
        for key, value in info.items():
            column = columns.get(key)
            if column is None:
                column = columns[key] = ([], [])
            column[0].append(i)
            column[1].append(value)
    infos: dict[Any, Any] = {}
    for key, (ids, values) in columns.items():
        infos[key] = object_column(ids, values, n) if key == "final_obs" else _column(ids, values, n)
        infos[f"_{key}"] = _mask(ids, n)
    return infos


def batch_infos(infos: Mapping[int, Mapping[Any, Any]], n: int) -> dict[Any, Any]:
    if isinstance(infos, InfosById) and len(infos) == n and infos.finals is None:
        return _with_masks(infos.columns, n)
    if not isinstance(infos, InfoColumns):
        return vector_infos(infos.items(), n)
    if "final_obs" in infos.schema.keys:
        return vector_infos(infos.items(), n)
    batch: dict[Any, Any] = {}
    for key, kind, values in zip(infos.schema.keys, infos.schema.kinds, infos.columns, strict=True):
        mask = _mask(infos.ids, n)
        if kind is np.bool_:
            column = object_column(infos.ids, list(values), n)
        elif len(values) == n:
            column = values.copy()
        else:
            column = np.zeros((n, *values.shape[1:]), dtype=values.dtype)
            column[mask] = values
        batch[key], batch[f"_{key}"] = column, mask
    return batch


def _with_masks(columns: Mapping[Any, Any], n: int) -> dict[Any, Any]:
    """Return columns with a mask for each key, a row per env for each value, and 0 or `None` outside of the masks."""
    batch: dict[Any, Any] = {}
    for key, column, mask in entries(columns):
        mask = np.ones(n, dtype=np.bool_) if mask is None else np.array(mask, dtype=np.bool_)
        if not mask.any():
            continue
        if isinstance(column, Mapping):
            column = _with_masks(column, n)
        elif not (isinstance(column, np.ndarray) and has_rows(column, n)):
            values = column if has_rows(column, n) else [column] * n
            ids = mask.nonzero()[0].tolist()
            column = _column(ids, [values[i] for i in ids], n)
        elif not mask.all():
            column = column.copy()
            column[~mask] = None if column.dtype == object else 0
        batch[key], batch[f"_{key}"] = column, mask
    return batch


def ended_columns(infos: InfosById, n: int, as_list: bool) -> dict[Any, Any]:
    """Return the infos of a step that has ended and reset envs, as `ended_infos`."""
    batch = _with_masks(infos.first_columns, n)
    ids, last_obs, last_infos = infos.lasts()
    return _with_lasts(batch, ids, last_obs, last_infos, n, as_list)


def ended_infos(ended: EndedStep, n: int, as_list: bool) -> dict[Any, Any]:
    """Return the infos of a step that ended episodes. `as_list`: in the form of gymnasium 0.29."""
    infos = vector_infos(sorted(ended.infos.items()), n)
    return _with_lasts(infos, ended.ids, ended.last_obs, ended.last_infos, n, as_list)


def _with_lasts(
    infos: dict[Any, Any], ids: Sequence[int], last_obs: Sequence[Any], last_infos: Sequence[Any], n: int, as_list: bool
) -> dict[Any, Any]:
    obs_key = "final_observation" if as_list else "final_obs"
    infos[obs_key] = object_column(ids, last_obs, n)
    lasts = zip(ids, last_infos, strict=True)
    infos["final_info"] = object_column(ids, last_infos, n) if as_list else vector_infos(lasts, n)
    for key in (obs_key, "final_info"):
        infos[f"_{key}"] = _mask(ids, n)
    return infos


def object_column(ids: Sequence[int], values: Sequence[Any], n: int) -> np.ndarray:
    if len(ids) == n:
        return np.fromiter(values, object, n)
    column = np.full(n, None, dtype=object)
    for i, value in zip(ids, values, strict=True):
        column[i] = value
    return column


def _mask(ids: Sequence[int], n: int) -> np.ndarray:
    if len(ids) == n:
        return np.ones(n, dtype=np.bool_)
    mask = np.zeros(n, dtype=np.bool_)
    mask[list(ids)] = True
    return mask


def _column(ids: Sequence[int], values: Sequence[Any], n: int) -> Any:
    kinds = set(map(type, values))
    if all(issubclass(kind, dict) for kind in kinds):
        return _batched(ids, values, n, _mask(ids, n))
    if all(kind in (int, float, bool) or issubclass(kind, np.number) for kind in kinds):
        column = _typed_column((), kinds, ids, values, n)
    elif all(issubclass(kind, np.ndarray) for kind in kinds) and len({value.shape for value in values}) == 1:
        column = _typed_column(values[0].shape, {value.dtype for value in values}, ids, values, n)
    else:
        column = None
    return object_column(ids, values, n) if column is None else column


def _typed_column(
    shape: tuple[int, ...], dtypes: set[Any], ids: Sequence[int], values: Sequence[Any], n: int
) -> np.ndarray | None:
    """Return the values in an array with an element per env, or `None` if no dtype holds them unchanged."""
    mixed = len(dtypes) > 1
    try:
        column = np.zeros((n, *shape), dtype=np.result_type(*dtypes) if mixed else next(iter(dtypes)))
        column[list(ids)] = list(values)  # a tuple would be one element of a structured dtype
    except (TypeError, OverflowError):  # no common dtype, or an int beyond 64 bits
        return None
    unchanged = not mixed or all(_is_unchanged(column[i], value) for i, value in zip(ids, values, strict=True))
    return column if unchanged else None


def _is_unchanged(stored: Any, value: Any) -> bool:
    """Compare as Python numbers, because numpy compares int and float as floats."""
    if isinstance(value, np.ndarray):
        return np.array_equal(stored.astype(value.dtype), value, equal_nan=value.dtype.kind in "fc")
    stored, value = (number.item() if isinstance(number, np.generic) else number for number in (stored, value))
    return bool(stored == value or (stored != stored and value != value))
