"""`RowLayout`: the arrays of a state as a row of numbers, so that states add up.

    generation | mean, var, n, first, second | numbers

A process keeps the sum of its changes in a row. The state is the sum of the rows of all processes:

- Numbers are added.
- Mean and variance of n values are kept as two sums: `first` is the sum of x - mean, and `second` is the sum of
  (x - mean)^2 - var. Each row has its own `mean` and `var`, which are close to the state's, so that large means lose
  no digits. A row is *settled* if these are the state's, so that both sums are zero.
- Loading a state begins a generation. The rows of earlier generations do not count any more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Row = np.ndarray
Form = tuple[tuple[str, tuple[int, ...], str], ...]


def form_of(arrays: Mapping[str, Any]) -> Form:
    """Return names, shapes and dtypes. Raises TypeError for dtypes that a row cannot hold."""
    values = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in values.items():
        if array.dtype.kind not in "iuf" or array.itemsize > 8:
            raise TypeError(
                f"the state {name!r} has the dtype {array.dtype}, but envs share only integers and floats of up to 64 "
                "bits; give each env an element of its own, 0 or 1, for a flag"
            )
    return tuple((name, array.shape, array.dtype.str) for name, array in values.items())


class RowLayout:
    """Places of the arrays of a state in a row (float64).

    Arrays "<name>mean", "<name>var" and "<name>count" are statistics if mean and var have one shape, and count has this
    shape or is a number. All other arrays, and the counts, are numbers.
    """

    def __init__(self, form: Form) -> None:
        self._forms = form
        shapes = {name: shape for name, shape, _ in form}
        statistics = []
        for mean, shape in shapes.items():
            var, count = (mean.removesuffix("mean") + ending for ending in ("var", "count"))
            if mean.endswith("mean") and shapes.get(var) == shape and shapes.get(count) in ((), shape):
                statistics.append((mean, var, count))
        size = sum(math.prod(shapes[mean]) for mean, _, _ in statistics)
        starts = [1, 1 + size, 1 + 5 * size]  # of means, variances and numbers
        self._places: dict[str, slice] = {}
        kinds = {name: kind for names in statistics for kind, name in enumerate(names[:2])}
        for name, shape in shapes.items():
            start = starts[kind := kinds.get(name, 2)]
            starts[kind] += math.prod(shape)
            self._places[name] = slice(start, starts[kind])
        self.size = starts[2]
        self._moments, self._sums = slice(1, 1 + 2 * size), slice(1 + 3 * size, 1 + 5 * size)
        self._parts = [slice(1 + k * size, 1 + (k + 1) * size) for k in range(5)]
        self._columns = np.arange(1, 1 + 2 * size).reshape(2, size)
        self._signs = np.where(np.arange(self.size) > 2 * size, -1.0, 1.0)
        self._counts = np.zeros(1 + size, int)
        """Place of the count of each element of the means."""
        for mean, _, count in statistics:
            self._counts[self._places[mean]] = np.arange(self.size)[self._places[count]]

    def arrays_of(self, row: Row) -> dict[str, np.ndarray]:
        """Return the state in a settled row. Arrays of float64 are views of the row."""
        return {
            name: row[self._places[name]].reshape(shape).astype(dtype, copy=False) for name, shape, dtype in self._forms
        }

    def write(self, row: Row, arrays: Mapping[str, Any]) -> None:
        """Write the arrays into a settled row."""
        for name, _, dtype in self._forms:
            row[self._places[name]] = np.asarray(arrays[name], dtype).ravel()
        row[self._parts[2]] = row[self._counts[1:]]

    def settle(self, row: Row) -> None:
        """Make the row relative to its own mean and variance."""
        if row[self._sums].any():
            mean, var, n, first, second = (row[part] for part in self._parts)
            n = np.where(n > 0, n, np.inf)
            shift = first / n
            mean += shift
            var += second / n - shift * shift
            np.maximum(var, 0, out=var)
            row[self._sums] = 0

    def negative(self, row: Row) -> Row:
        return row * self._signs

    def sum(self, rows: np.ndarray) -> Row:
        """Return the sum of the rows (k, size) of the newest generation. This changes `rows`."""
        generations = rows[:, 0].tolist()
        newest = max(generations)
        if min(generations) < newest:
            rows = rows[rows[:, 0] == newest]
        if len(rows) == 1:
            return rows[0]
        n, first, second = (rows[:, part] for part in self._parts[2:])
        # Use the mean and variance of the row with most values, because they are close to the state's.
        moments = rows[n.argmax(0), self._columns].ravel()
        difference = rows[:, self._moments] - moments
        shift, rise = difference[:, : n.shape[1]], difference[:, n.shape[1] :]
        second += n * rise + first * shift
        first += n * shift
        second += first * shift
        total: Row = np.add.reduce(rows, 0)
        total[0], total[self._moments] = newest, moments
        return total
