"""Columns of infos: objects while episodes are recorded, and arrays of one dtype in a data set."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from collector.batch.step_extras import blank, dotted_keys, nested_entry
from collector.episodes.episode import EpisodeBatch
from collector.store.safe_folder import DatasetError
from collector.store.shard_layout import EpisodeLayout
from collector.store.texts import TEXT, is_texts
from vecenv import nest
from vecenv.nest import cast_exactly


def info_objects(infos: Sequence[Any], keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Return an object array `(k,)` per key, with None for an info without the key. Arrays are copied.

    >>> info_objects([{"a": 1, "b": {"c": "x"}}, {}], ["a", "b.c"])
    {'a': array([1, None], dtype=object), 'b.c': array(['x', None], dtype=object)}
    """

    def entry(info: Any, key: str) -> Any:
        value = next(iter(nested_entry(info, key)), None)
        return value.copy() if isinstance(value, (np.ndarray, list)) else value

    return {key: nest.object_array([entry(info, key) for info in infos]) for key in keys}


def info_rows(infos: Any, keys: Sequence[str], known: dict[str, np.dtype]) -> dict[str, np.ndarray]:
    """Return an array `(k,)` per key, as `info_objects`. Numbers become an array of numbers `(k, ...)` with 0 for None.

    known: dtype and shape of the last numbers by key, for a round that lacks the key. It is updated in place.
    """

    def entries(key: str) -> np.ndarray:
        column, mask = infos.column(key)
        rows = nest.as_array(column) if hasattr(column, "shape") else None
        if rows is not None and rows.shape[:1] == (len(infos),) and rows.dtype.kind in "biuf":
            known[key] = np.dtype((rows.dtype, rows.shape[1:]))
            if mask is not None:
                rows = rows.copy()
                rows[~nest.as_array(mask)] = 0
            return rows
        if column is None:
            return np.zeros(len(infos), known[key]) if key in known else np.full(len(infos), None)
        return info_objects(infos, [key])[key]

    return {key: entries(key) for key in keys}


def with_info_columns(episodes: EpisodeBatch, layout: EpisodeLayout | None) -> EpisodeBatch:
    """Return episodes whose infos are arrays, in the dtypes of `layout` (None: no episode was stored before).

    The first episodes decide about dtypes: numbers become bool, int64 or float64, and arrays keep their dtype. A
    missing entry is 0, False or "". Raises `DatasetError` for an entry that does not fit, and if all infos lack a key.
    """
    known = {} if layout is None else nest.map(layout.rows.__getitem__, layout.names["info"])
    info = {key: _column(key, values, known.get(key)) for key, values in episodes.info.items()}
    return replace(episodes, info=info)


def _column(key: str, values: np.ndarray, row: np.dtype | None) -> np.ndarray:
    present: Any = slice(None)
    entries: Any = values
    found = values
    if values.dtype == TEXT:
        present = [i for i, value in enumerate(values) if value is not None]
        entries = [values[i] for i in present]
        if not entries and row is None:
            raise DatasetError(f"info_keys: no info of the first episodes that ended has {key!r}; leave this key out")
        found = _stacked(key, entries)
    row = _row_of(found) if row is None else row
    column = blank((len(values), *row.shape), row.base)
    if len(entries):
        fits = (found.dtype == TEXT) == (row == TEXT) and found.shape[1:] == row.shape
        fitted = None if not fits else found if row == TEXT else cast_exactly(found, row.base)
        if fitted is None:
            kinds = ["text" if each == TEXT else f"{each.base} {each.shape}" for each in (_row_of(found), row)]
            raise DatasetError(
                f"info_keys: {key!r} is {entries[0]!r:.80} ({kinds[0]}), but the data set has {kinds[1]}: return "
                "entries of one type and shape"
            )
        column[present] = fitted
    return column


def _stacked(key: str, entries: list[Any]) -> np.ndarray:
    """Return entries as an array, of the dtype object if they are texts. Raises `DatasetError` for other objects."""
    if is_texts(entries):
        return nest.object_array(entries)
    with suppress(ValueError):  # different shapes
        if (found := nest.as_array(entries)).dtype.kind in "biuf":
            return found
    dotted = tuple(dotted_keys({key: entries[0]}))
    advice = "leave out this key" if dotted == (key,) else f"name its entries instead, as in {dotted}"
    raise DatasetError(
        f"info_keys: entries of {key!r}, such as {entries[0]!r:.80}, are not numbers, arrays of numbers of one shape, "
        f"or texts; {advice}"
    )


def _row_of(found: np.ndarray) -> np.dtype:
    if found.ndim > 1 or found.dtype.kind not in "iuf":
        return np.dtype((found.dtype, found.shape[1:]))
    return np.dtype(np.int64 if np.can_cast(found.dtype, np.int64) else np.float64)
