"""Returns and lengths of episodes, followed from batch to batch, and what `collect` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from collector.batch.rollout import FlatRollout, Rollout
from vecenv.nest import as_array


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


class Ended(NamedTuple):
    """Episodes that ended: their envs, returns and lengths."""

    env_ids: np.ndarray
    returns: np.ndarray
    lens: np.ndarray


class EpisodeTracker:
    """Adds up rewards and steps of episodes that batches cut anywhere."""

    def __init__(self, env_num: int) -> None:
        # Of the episode in progress in each env, where it has one that is known here.
        self._ids = np.full(env_num, -1)
        self._lens = np.zeros(env_num, np.int64)
        self._returns: Any = None

    def update(self, batch: Rollout | FlatRollout) -> Ended:
        """The episodes that end in this batch, by env, then by time."""
        env_ids, ids, reward, done = _rows(batch)
        self._ids[np.isin(self._ids, batch.broken_ids)] = -1  # an episode may be played again under its number
        if (
            self._returns is None or self._returns.shape[1:] != reward.shape[1:]
        ):  # no env had returned a vector until now
            self._returns = np.zeros((len(self._ids), *reward.shape[1:]))
        if not len(ids):
            return Ended(env_ids, np.zeros((0, *reward.shape[1:])), np.zeros(0, np.int64))
        starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
        lens, returns = np.diff(np.r_[starts, len(ids)]), np.add.reduceat(reward, starts)
        ended, env, ids = done[starts + lens - 1], env_ids[starts], ids[starts]
        went_on = self._ids[env] == ids
        lens[went_on] += self._lens[env[went_on]]
        returns[went_on] += self._returns[env[went_on]]
        goes_on = env[~ended]
        self._ids[goes_on], self._lens[goes_on], self._returns[goes_on] = ids[~ended], lens[~ended], returns[~ended]
        return Ended(env[ended], returns[ended], lens[ended])


def _rows(batch: Rollout | FlatRollout) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Env, episode, reward and end of each step, by env, then by time; without the episodes that broke off."""
    ids, reward, done = map(as_array, (batch.traj_ids, batch.reward, batch.terminated | batch.truncated))
    mask = as_array(batch.mask)
    if len(batch.broken_ids):
        mask = mask & ~np.isin(ids, batch.broken_ids)
    env_ids = as_array(batch.env_ids)
    env_ids = env_ids[mask] if isinstance(batch, FlatRollout) else env_ids[np.nonzero(mask)[0]]
    return env_ids, ids[mask], reward[mask], done[mask]
