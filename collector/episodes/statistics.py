"""Results of `collect`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collector.batch.rollout import FlatRollout, Rollout


@dataclass(frozen=True)
class SequenceSummaryStats:
    """Mean, deviation, largest and smallest of some numbers; NaN where there are none (fields as in tianshou)."""

    mean: float
    std: float
    max: float
    min: float

    @classmethod
    def of(cls, values: np.ndarray) -> SequenceSummaryStats:
        """
        >>> SequenceSummaryStats.of(np.array([1.0, 3.0]))
        SequenceSummaryStats(mean=2.0, std=1.0, max=3.0, min=1.0)
        """
        if not values.size:
            return cls(np.nan, np.nan, np.nan, np.nan)
        return cls(float(values.mean()), float(values.std()), float(values.max()), float(values.min()))


@dataclass(frozen=True, repr=False)
class CollectStats:
    """What a `collect` did (names as in tianshou). Entries of `returns` and `lens` go by env, then by time."""

    n_collected_episodes: int
    """Episodes that ended."""
    n_collected_steps: int
    collect_time: float
    """Seconds."""
    returns: np.ndarray
    """float64 `(episodes,)`; `(episodes, m)` where rewards are vectors. An episode that began before counts whole."""
    lens: np.ndarray
    """int64 `(episodes,)`."""
    batch: Rollout | FlatRollout | None
    """The steps; None with `keep=False`."""

    @property
    def collect_speed(self) -> float:
        """Steps a second."""
        return self.n_collected_steps / self.collect_time if self.collect_time else 0.0

    @property
    def returns_stat(self) -> SequenceSummaryStats:
        """Summary of `returns`."""
        return SequenceSummaryStats.of(self.returns)

    @property
    def lens_stat(self) -> SequenceSummaryStats:
        """Summary of `lens`."""
        return SequenceSummaryStats.of(self.lens)

    def __repr__(self) -> str:
        returns = f", returns {self.returns_stat.mean:g} +- {self.returns_stat.std:g}" if len(self.returns) else ""
        return f"CollectStats({self.n_collected_steps} steps, {self.n_collected_episodes} episodes{returns})"
