"""`RunningMeanStd`: mean and variance of the rows of batches, updated in place."""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, TypeVar

import numpy as np

from vecenv import nest
from vecenv.arguments import check_number

Self = TypeVar("Self", bound="RunningMeanStd")
STATE_KEYS = ("mean", "var", "count", "skipped")
"""Names of the arrays of running statistics."""
LARGEST_NUMBER = 1e100
"""Rows with larger numbers are skipped, because the sum of their squares may overflow."""
LARGEST_FLOAT32 = 1e15
"""`LARGEST_NUMBER` on a device without float64."""
TINY = 1e-30
IN_ONE_CALL = deque[Any](maxlen=0).extend
SET_ITEM: Callable[..., None] = operator.setitem


class RunningMeanStd:
    """Running mean and variance of rows, with `norm` to standardise rows (as tianshou's RunningMeanStd).

    `mean` and `var` are float64 in the shape of a row. `norm` adds `eps` to the variance, and clips results to
    +-`clip_max` (`None`: no limit). Rows with NaN, infinity or a number above 1e100 are skipped. After the first
    batch, updates are in place, so references to `mean` and `var` stay valid.

    Raises ValueError unless `eps` is at least 0 and `clip_max` above 0, and TypeError unless both are numbers.

    >>> rms = RunningMeanStd()
    >>> rms.update(np.array([[1.0], [3.0], [np.nan]]))
    >>> rms.mean, rms.var, rms.count, rms.skipped
    (array([2.]), array([1.]), 2.0, 1)
    """

    def __init__(
        self,
        mean: Any = 0.0,
        std: Any = 1.0,
        clip_max: float | None = 10.0,
        eps: float = float(np.finfo(np.float32).eps),
    ) -> None:
        self.mean = np.array(mean, dtype=np.float64)
        self.var = np.array(np.asarray(std, dtype=np.float64) ** 2)  # an array, even if std is a number
        self._count, self._skipped = np.zeros(()), np.zeros(())
        self.clip_max = None if clip_max is None else check_number("clip_max", clip_max, above=0, infinite=True)
        self.eps = check_number("eps", eps, least=0)

    @classmethod
    def of(cls: type[Self], arrays: Mapping[str, Any], name: str) -> Self:
        """Return statistics that use and update the arrays `<name>_mean`, `<name>_var` and so on."""
        self = cls.__new__(cls)
        self.mean, self.var = arrays[f"{name}_mean"], arrays[f"{name}_var"]
        self._count, self._skipped = arrays[f"{name}_count"], arrays[f"{name}_skipped"]
        return self

    @property
    def count(self) -> float:
        """Number of rows, or their total weight if `add` was called with `decay`."""
        return float(self._count)

    @property
    def skipped(self) -> int:
        """Number of skipped rows."""
        return int(self._skipped)

    def __repr__(self) -> str:
        skipped = f", skipped={self.skipped}" if self.skipped else ""
        return f"{type(self).__name__}(shape={self.mean.shape}, count={self.count:g}{skipped})"

    def update(self, batch: np.ndarray) -> None:
        """Add the rows of `batch` (k, ...)."""
        batch = np.asarray(batch, dtype=np.float64)
        if not len(batch):
            return
        if self.mean.shape != batch.shape[1:]:  # the first batch determines the shape
            mean, var = (np.broadcast_to(part, batch.shape[1:]).copy() for part in (self.mean, self.var))
            vars(self).update(mean=mean, var=var)  # one call, so that no interrupt leaves only one changed
        self.add(batch)

    def add(self, rows: Any, decay: float = 1.0) -> Any:
        """Add rows (k, ...) in the dtype of the statistics. Return the rows minus the new mean.

        `decay` multiplies the weight of earlier rows. Values of a tensor are not copied to the CPU, because a copy
        waits for the GPU.
        """
        if isinstance(rows, np.ndarray) and (before := float(self._count) * decay):
            centred = rows - self.mean
            if _sum_of_squares(centred) < LARGEST_NUMBER**2:  # False for NaN. If True, Welford's update.
                total = before + len(rows)
                shift = _sum(centred) / total
                left = centred - shift
                centred *= left
                var = self.var * (before / total)
                var += _sum(centred) / total
                self._set_all(self.mean + shift, var, total, self._skipped)
                return left
        xp = nest.namespace(rows)
        limit = LARGEST_NUMBER if rows.dtype.itemsize == 8 else LARGEST_FLOAT32
        usable = (abs(rows) < limit).reshape(len(rows), -1).all(1)
        count, mask = usable.sum(), usable.reshape(-1, *[1] * (rows.ndim - 1))
        at_least_1, zeros = count.clip(1), xp.zeros_like(rows)
        mean = xp.where(mask, rows, zeros).sum(0) / at_least_1
        centred = xp.where(mask, rows - mean, zeros)
        self.merge(count, mean, (centred * centred).sum(0) / at_least_1, decay, len(rows) - count)
        return rows - self.mean

    def merge(self, count: Any, mean: Any, var: Any, decay: float = 1.0, skipped: Any = 0) -> None:
        """Add `count` rows with this mean and variance (Chan's formula). Add `skipped` to the skipped rows."""
        total = self._count * decay + count
        new = count / (total + TINY)
        old = 1 - new
        delta = mean - self.mean
        var = self.var * old + new * (var + old * delta * delta)
        self._set_all(self.mean + new * delta, var, total, self._skipped + skipped)

    def _set_all(self, *new: Any) -> None:
        """Write all arrays in one C call, so that no interrupt comes in between."""
        own: Any = self.mean, self.var, self._count, self._skipped
        IN_ONE_CALL(map(SET_ITEM, own, repeat(...), new))

    def norm(self, batch: np.ndarray) -> np.ndarray:
        """Return the standardised, clipped batch. Floats keep their dtype, other numbers become float64."""
        batch = np.asarray(batch)
        dtype = batch.dtype if np.issubdtype(batch.dtype, np.floating) else np.dtype(np.float64)
        scaled = (batch - self.mean) / np.sqrt(self.var + self.eps)
        if self.clip_max is not None:
            scaled = np.clip(scaled, -self.clip_max, self.clip_max)
        return scaled.astype(dtype, copy=False)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of `{"mean", "var", "count", "skipped"}`.

        If the program has imported torch, the arrays are tensors.
        """
        copies = {"mean": self.mean.copy(), "var": self.var.copy(), "count": self.count, "skipped": self.skipped}
        return for_checkpoint(copies)

    def load_state_dict(self, state: Mapping[str, Any], shape: tuple[int, ...] | None = None) -> None:
        """Set the statistics to a `state_dict`. Raises ValueError for wrong keys, or a row shape other than `shape`."""
        check_keys(self, STATE_KEYS, state)
        mean, var = (np.array(nest.as_array(state[name]), dtype=np.float64) for name in ("mean", "var"))
        if not mean.shape == var.shape == (mean.shape if shape is None else shape):
            raise ValueError(f"the state does not fit {self}: its rows have the shapes {mean.shape} and {var.shape}")
        count, skipped = np.array(float(state["count"])), np.array(float(state["skipped"]))
        if (mean.shape, var.shape) == (self.mean.shape, self.var.shape):
            self._set_all(mean, var, count, skipped)
        else:
            vars(self).update(mean=mean, var=var, _count=count, _skipped=skipped)

    @staticmethod
    def merged(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Merge several `state_dict`s, as if one object had seen all rows."""
        together = RunningMeanStd()
        together.load_state_dict(states[0])
        for state in states[1:]:
            mean, var = (np.asarray(nest.as_array(state[name]), np.float64) for name in ("mean", "var"))
            together.merge(float(state["count"]), mean, var, skipped=float(state["skipped"]))
        return together.state_dict()


def _sum(rows: np.ndarray) -> Any:
    return rows[0] if len(rows) == 1 else np.add.reduce(rows, 0)


def _sum_of_squares(array: np.ndarray) -> Any:
    # `vdot` calls BLAS, which is faster for few numbers. For many numbers, BLAS wakes threads that keep CPUs busy.
    return np.vdot(array, array) if array.size <= 8192 else np.einsum("i,i->", array.ravel(), array.ravel())


def for_checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays of a state as tensors that share their memory, if the program has imported torch.

    `torch.load` refuses arrays by default. Without torch, and for a dtype that torch lacks, arrays stay arrays.
    """
    torch = sys.modules.get("torch")

    def converted(leaf: Any) -> Any:
        if torch is None or not isinstance(leaf, np.ndarray):
            return leaf
        try:
            return torch.from_numpy(leaf)
        except (TypeError, ValueError):
            return leaf

    found: dict[str, Any] = nest.map(converted, state)
    return found


def check_keys(owner: Any, expected: Sequence[str], state: Mapping[str, Any]) -> None:
    if set(state) != set(expected):
        raise ValueError(f"the state does not fit {owner}: expected {sorted(expected)}, got {sorted(state)}")
