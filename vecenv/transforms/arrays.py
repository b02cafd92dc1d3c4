"""Arrays of any library: numpy's by numpy alone, those of others (torch, ...) by array-api-compat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from vecenv.nest import as_array

Array = Any
"""An array of numpy or of a library with the array API standard."""


def namespace(array: Array) -> Any:
    """The module with the functions for `array`: numpy, or what array-api-compat has for its library.

    ImportError without array-api-compat; TypeError for what is no array.
    """
    return np if isinstance(array, np.ndarray) else _array_api_compat().array_namespace(array)


@lru_cache(maxsize=1)
def _array_api_compat() -> Any:
    try:
        import array_api_compat
    except ImportError as error:
        raise ImportError(
            "transforms of arrays that are not numpy's need array-api-compat: pip install array-api-compat"
        ) from error
    return array_api_compat


def dtype_name(array: Array) -> str:
    """The name of the dtype: "float32", "uint8", ..."""
    return _name_of(array.dtype) if isinstance(array, np.ndarray) else str(array.dtype).rpartition(".")[2]


@lru_cache(maxsize=64)
def _name_of(dtype: np.dtype[Any]) -> str:
    """The name of a dtype of numpy, which would put it together in each call."""
    return dtype.name


def is_float(array: Array) -> bool:
    """Whether the numbers are floats."""
    return array.dtype.kind == "f" if isinstance(array, np.ndarray) else "float" in dtype_name(array)


def cast(array: Array, dtype: str) -> Array:
    """The array in the dtype of that name; itself where it has it."""
    if isinstance(array, np.ndarray):
        return array.astype(dtype, copy=False)
    xp = namespace(array)
    return xp.astype(array, getattr(xp, dtype), copy=False)


def copied(array: Array) -> Array:
    """A copy."""
    return array.copy() if isinstance(array, np.ndarray) else namespace(array).asarray(array, copy=True)


def permute(array: Array, axes: Sequence[int]) -> Array:
    """The array with its axes in another order."""
    return array.transpose(axes) if isinstance(array, np.ndarray) else namespace(array).permute_dims(array, tuple(axes))


def concat(arrays: Sequence[Array], axis: int) -> Array:
    """The arrays joined along an axis, in the dtype to which numpy would promote them."""
    first = arrays[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(arrays, axis=axis)
    dtype = np.result_type(*{dtype_name(array) for array in arrays}).name
    return namespace(first).concat([cast(array, dtype) for array in arrays], axis=axis)


def stack(rows: Sequence[Any]) -> Array:
    """The rows as one batch; of numpy where they are of no library."""
    first = rows[0]
    if isinstance(first, np.ndarray) or not hasattr(first, "device"):
        return np.stack([np.asarray(row) for row in rows])
    return namespace(first).stack(list(rows), axis=0)


def like(values: np.ndarray, array: Array) -> Array:
    """An array of numpy in the library of `array`, on its device."""
    if isinstance(array, np.ndarray):
        return values
    return namespace(array).asarray(values, device=_array_api_compat().device(array))


def full(shape: Sequence[int], array: Array, value: float, dtype: str | None = None) -> Array:
    """The number everywhere, in the library and on the device of `array`, and in its dtype or that of the name."""
    if isinstance(array, np.ndarray):
        return np.full(shape, value, array.dtype if dtype is None else dtype)
    xp = namespace(array)
    kind = array.dtype if dtype is None else getattr(xp, dtype)
    return xp.full(tuple(shape), value, dtype=kind, device=_array_api_compat().device(array))


def zeros(shape: Sequence[int], array: Array, dtype: str | None = None) -> Array:
    """Zeros in the library and on the device of `array`, and in its dtype or that of the name."""
    return full(shape, array, 0, dtype)


class Constants:
    """An array of numpy, and its copies in other libraries and on other devices, each made once."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self._copies: dict[Any, Array] = {}

    def like(self, array: Array) -> Array:
        """The values in the library of `array`, on its device."""
        if isinstance(array, np.ndarray):
            return self.values
        key = namespace(array).__name__, str(_array_api_compat().device(array))
        if key not in self._copies:
            self._copies[key] = like(self.values, array)
        return self._copies[key]

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values, "_copies": {}}


class EnvRows:
    """One row for each of `n` envs, in the library and on the device of the rows that come; zeros at first."""

    def __init__(self, n: int) -> None:
        self._all = np.arange(n)
        self._rows: Array = None

    def take(self, ids: np.ndarray, among: Array = None) -> Array:
        """A copy of the rows of these envs, for use with the array `among`; None where none were ever put."""
        self._move_to(among)
        if self._rows is None or isinstance(self._rows, np.ndarray):
            return self._rows if self._rows is None else self._rows[ids]
        return namespace(self._rows).take(self._rows, like(ids, self._rows), axis=0)

    def put(self, ids: np.ndarray, rows: Array) -> None:
        """Keep copies of these rows. Those of another shape than before begin anew, with zeros."""
        self._move_to(rows)
        shape = (len(self._all), *rows.shape[1:])
        if self._rows is None or tuple(self._rows.shape) != shape:
            self._rows = zeros(shape, rows)
        if isinstance(rows, np.ndarray):
            self._rows[ids] = rows
        elif len(ids) == len(self._all) and (ids == self._all).all():
            self._rows = copied(rows)
        else:  # the standard has no assignment to rows by their numbers
            xp, row_of, is_put = namespace(rows), np.zeros_like(self._all), np.zeros(len(self._all), np.bool_)
            row_of[ids], is_put[ids] = np.arange(len(ids)), True
            mask = like(is_put.reshape(-1, *[1] * (rows.ndim - 1)), rows)
            self._rows = xp.where(mask, xp.take(rows, like(row_of, rows), axis=0), self._rows)

    def _move_to(self, array: Array) -> None:
        """Keep the rows where the array is: as one of numpy, or in its library and on its device."""
        kept = self._rows
        if kept is not None and array is not None and isinstance(kept, np.ndarray) != isinstance(array, np.ndarray):
            self._rows = copied(like(as_array(kept), array))

    def clear(self, ids: np.ndarray) -> None:
        """Zeros for these envs."""
        if self._rows is not None:
            self.put(ids, zeros((len(ids), *self._rows.shape[1:]), self._rows))
