"""RunningMeanStd: mean and variance of a stream of batches, in plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np


class RunningMeanStd:
    """Mean and variance of all rows seen so far, and `norm` to standardise with them (as tianshou's RunningMeanStd).

    `mean` and `var` are float64 of the shape of one row, `count` the number of rows; `eps` keeps the division finite
    and `clip_max` (None for no limit) bounds what `norm` returns. `state_dict` and `load_state_dict` carry the
    numbers. Updates are in place, so that views of `mean` and `var` stay true once there was a row.

    >>> rms = RunningMeanStd()
    >>> rms.update(np.array([[1.0], [3.0]]))
    >>> rms.mean, rms.var
    (array([2.]), array([1.]))
    """

    def __init__(
        self,
        mean: Any = 0.0,
        std: Any = 1.0,
        clip_max: float | None = 10.0,
        eps: float = float(np.finfo(np.float32).eps),
    ) -> None:
        self.mean = np.array(mean, dtype=np.float64)
        self.var = np.array(np.asarray(std, dtype=np.float64) ** 2)  # an array also where std is one number
        self.count = 0.0
        self.clip_max = clip_max
        self.eps = eps

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.mean.shape}, count={self.count:g})"

    def update(self, batch: np.ndarray) -> None:
        """Add the rows of `batch` (k, ...) to the statistics (Chan's formula, exact for any split)."""
        batch = np.asarray(batch, dtype=np.float64)
        k = len(batch)
        if k == 0:
            return
        mean, var = batch.mean(axis=0), batch.var(axis=0)
        total = self.count + k
        delta = mean - self.mean
        old, new = self.count / total, k / total
        if self.mean.shape != delta.shape:  # the first rows say what shape a row has
            self.mean = np.broadcast_to(self.mean, delta.shape).copy()
            self.var = np.broadcast_to(self.var, delta.shape).copy()
        self.var *= old
        self.var += var * new + delta**2 * (old * new)
        self.mean += delta * new
        self.count = total

    def norm(self, batch: np.ndarray) -> np.ndarray:
        """`batch` with the mean taken off, divided by the deviation, clipped; float32 stays float32, all else becomes
        float64.
        """
        batch = np.asarray(batch)
        dtype = batch.dtype if np.issubdtype(batch.dtype, np.floating) else np.dtype(np.float64)
        scaled = (batch - self.mean) / np.sqrt(self.var + self.eps)
        if self.clip_max is not None:
            scaled = np.clip(scaled, -self.clip_max, self.clip_max)
        return scaled.astype(dtype, copy=False)

    def state_dict(self) -> dict[str, Any]:
        """`{"mean", "var", "count"}`: copies, safe to keep."""
        return {"mean": self.mean.copy(), "var": self.var.copy(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        mean, var = np.array(state["mean"], dtype=np.float64), np.array(state["var"], dtype=np.float64)
        if (mean.shape, var.shape) == (self.mean.shape, self.var.shape):
            self.mean[...], self.var[...] = mean, var
        else:
            self.mean, self.var = mean, var
        self.count = float(state["count"])
