"""Columns of infos: objects while episodes are recorded, and arrays of one dtype in a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from collector.batch.step_extras import dotted_keys, nested_entry
from collector.episodes.episode import EpisodeBatch
from collector.store.safe_folder import DatasetError
from collector.store.shard_layout import EpisodeLayout
from collector.store.texts import TEXT, is_texts
from vecenv import nest
from vecenv.extending import cast_exactly


def info_objects(infos: Sequence[Any], keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Return an object array `(k,)` per key, with None for an info without the key. Arrays are copied.

    >>> info_objects([{"a": 1, "b": {"c": "x"}}, {}], ["a", "b.c"])
    {'a': array([1, None], dtype=object), 'b.c': array(['x', None], dtype=object)}
    """

    def entry(info: Any, key: str) -> Any:
        value = next(iter(nested_entry(info, key)), None)
        return value.copy() if isinstance(value, (np.ndarray, list)) else value

    return {key: nest.object_array([entry(info, key) for info in infos]) for key in keys}


def with_info_columns(episodes: EpisodeBatch, layout: EpisodeLayout | None) -> EpisodeBatch:
    """Return episodes whose infos are arrays, in the dtypes of `layout` (None: no episode was stored before).

    The first episodes decide about dtypes: numbers become bool, int64 or float64, and arrays keep their dtype. A
    missing entry is 0, False or "". Raises `DatasetError` for an entry that does not fit, and if all infos lack a key.
    """
    if not episodes.info:
        return episodes
    known = {} if layout is None else nest.map(layout.rows.__getitem__, layout.names["info"])
    info = {key: _column(key, values, known.get(key)) for key, values in episodes.info.items()}
    return replace(episodes, info=info)


def _column(key: str, values: np.ndarray, row: np.dtype | None) -> np.ndarray:
    if values.dtype != TEXT:
        return values
    present = [i for i, value in enumerate(values) if value is not None]
    entries = [values[i] for i in present]
    if not entries and row is None:
        raise DatasetError(f"info_keys: no info of the first episodes that ended has {key!r}; leave this key out")
    texts = bool(entries) and is_texts(entries)
    found = nest.object_array(entries) if texts else _stacked(key, entries)
    row = _row_of(found) if row is None else row
    column = np.full((len(values), *row.shape), "" if row == TEXT else 0, row.base)
    if entries:
        fitted = found if texts and row == TEXT else None
        if row != TEXT and found.shape[1:] == row.shape:
            fitted = cast_exactly(found, row.base)
        if fitted is None:
            raise _misfit(key, entries, found, row)
        column[present] = fitted
    return column


def _stacked(key: str, entries: list[Any]) -> np.ndarray:
    try:
        return nest.as_array(entries)
    except ValueError:  # different shapes
        return nest.object_array(entries)


def _row_of(found: np.ndarray) -> np.dtype:
    if found.ndim > 1 or found.dtype.kind not in "iuf":
        return np.dtype((found.dtype, found.shape[1:]))
    return np.dtype(np.int64 if np.can_cast(found.dtype, np.int64) else np.float64)


def _misfit(key: str, entries: list[Any], found: np.ndarray, row: np.dtype) -> DatasetError:
    dotted = tuple(dotted_keys({key: entries[0]}))
    if dotted != (key,):
        return DatasetError(f"info_keys: {key!r} is a dict; name its entries instead, as in {dotted}")
    kind = "text" if row == TEXT else f"{row.base} in the shape {row.shape}"
    shown = "different shapes or types" if found.dtype == TEXT else f"{found.dtype} in the shape {found.shape[1:]}"
    return DatasetError(
        f"info_keys: {key!r} is {entries[0]!r:.80} ({shown}), but the data set has {kind}; return numbers of one type, "
        "arrays of one shape, or texts"
    )
