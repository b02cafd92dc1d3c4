"""Whole episodes, and their statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from collector.batch.forms import join
from collector.batch.rollout import FlatRollout, Rollout
from vecenv import nest

EPISODE_COLUMNS = ("obs", "action", "reward", "terminated", "truncated")
STEP_COLUMNS = (*EPISODE_COLUMNS[1:], "info")


@dataclass(frozen=True, eq=False, repr=False)
class Episode:
    """Episode from reset to end: L steps and L + 1 observations, as numpy arrays (or dicts or tuples of arrays)."""

    obs: Any
    """`(L + 1, ...)`: the observation before each step, and after the last."""
    action: Any
    """`(L, ...)`."""
    reward: np.ndarray
    """float64 `(L,)`, or `(L, m)` for vectors of m numbers."""
    terminated: np.ndarray
    """bool `(L,)`: True in the last row if the env reached a final state."""
    truncated: np.ndarray
    """bool `(L,)`: True in the last row if the episode was stopped before a final state."""
    env_id: int
    number: int = -1
    """Number that the collector's `episode_seeds` gave, or -1."""
    seed: int | None = None
    """Seed of the reset; None if unknown."""
    info: dict[str, Any] = field(default_factory=dict)
    """Entry of the info after each step, `(L, ...)`, for each key that was recorded."""

    def __len__(self) -> int:
        return len(self.reward)

    def __repr__(self) -> str:
        return f"Episode({len(self)} steps, total reward {self.total_reward:g}, env {self.env_id})"

    @property
    def total_reward(self) -> float:
        """Sum of all rewards of the episode; may overflow to infinity."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.asarray(self.reward, np.float64).sum(0).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return nest.nbytes((columns_of(self), self.info))


@dataclass(frozen=True, eq=False)
class EpisodeBatch:
    """Sequence of E concatenated episodes (`Episode`) with S steps in total."""

    obs_parts: list[Any]
    """`obs` in consecutive parts, because joining the parts copies them."""
    action: Any
    """`(S, ...)`."""
    reward: np.ndarray
    """float64 `(S,)` or `(S, m)`."""
    terminated: np.ndarray
    """bool `(S,)`."""
    truncated: np.ndarray
    """bool `(S,)`."""
    lengths: np.ndarray
    """int64 `(E,)`: steps per episode."""
    episode: np.ndarray
    """int64 `(E,)`: `Episode.number` of each episode, or -1."""
    seed: np.ndarray
    """int64 `(E,)`: seeds of the resets, or -1."""
    env_id: np.ndarray
    """int32 `(E,)`."""
    info: dict[str, Any] = field(default_factory=dict)
    """`(S, ...)` for each key of infos that was recorded."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, which: int) -> Episode:
        return self._episodes[which]

    def __iter__(self) -> Iterator[Episode]:
        return iter(self._episodes)

    @cached_property
    def obs(self) -> Any:
        """`(S + E, ...)`: L + 1 observations per episode of L steps."""
        return self.obs_parts[0] if len(self.obs_parts) == 1 else join(self.obs_parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that have a row per step or observation."""
        return nest.nbytes((*self.obs_parts, *(getattr(self, name) for name in STEP_COLUMNS)))

    @property
    def offsets(self) -> np.ndarray:
        """int64 `(E + 1,)`: first row of each episode, and S."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    @cached_property
    def returns(self) -> np.ndarray:
        """float64 `(E,)`, or `(E, m)` for vectors of m rewards: sum over the steps of each episode."""
        reward, offsets = np.asarray(self.reward, np.float64), self.offsets
        with np.errstate(over="ignore", invalid="ignore"):
            # `reduceat` adds in another order than `sum`. Sums of integers are exact in any order.
            exact = bool((reward == np.rint(reward)).all() and np.abs(reward).sum() < 2**53)
            if reward.ndim == 1 and exact and len(self):
                return np.add.reduceat(reward, offsets[:-1])
            sums = np.zeros((len(self), *reward.shape[1:]))
            for length in np.unique(self.lengths).tolist():
                which = np.flatnonzero(self.lengths == length)
                rows = reward[offsets[which][:, None] + np.arange(length)]
                sums[which] = rows.sum(1)
            return sums

    @property
    def total_rewards(self) -> np.ndarray:
        """float64 `(E,)`: sums of all rewards, bitwise equal to `Episode.total_reward`."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.returns if self.returns.ndim == 1 else self.returns.sum(1)

    @property
    def not_finite(self) -> np.ndarray:
        """int64 `(k,)`: indices of episodes with a NaN or infinite return."""
        return np.flatnonzero(~np.isfinite(self.total_rewards))

    def select(self, which: slice | np.ndarray) -> EpisodeBatch:
        """Return the episodes of `which`: views for a slice with step 1, copies for a mask `(E,)`."""
        if which.step not in (None, 1) if isinstance(which, slice) else np.asarray(which).dtype != np.bool_:
            raise ValueError(f"which must be a slice with step 1 or a bool mask, got {which!r}")
        steps: Any
        rows: Any
        if isinstance(which, slice):
            first, last, _ = which.indices(len(self))
            at, end = self.offsets[[first, last]].tolist()
            steps, rows = slice(at, end), slice(at + first, end + last)
        else:
            steps, rows = np.repeat(which, self.lengths), np.repeat(which, self.lengths + 1)
        columns = {name: nest.take(getattr(self, name), steps) for name in STEP_COLUMNS}
        about = {name: getattr(self, name)[which] for name in ("lengths", "episode", "seed", "env_id")}
        return EpisodeBatch(obs_parts=[nest.take(self.obs, rows)], **columns, **about)

    @cached_property
    def _episodes(self) -> list[Episode]:
        seeds = [None if seed < 0 else seed for seed in self.seed.tolist()]
        about = zip(self.lengths.tolist(), self.env_id.tolist(), self.episode.tolist(), seeds, strict=True)
        first, found = 0, list[Episode]()
        for which, (length, env_id, number, seed) in enumerate(about):
            steps, rows = slice(first, first + length), slice(first + which, first + which + length + 1)
            columns = self.reward[steps], self.terminated[steps], self.truncated[steps]
            info = nest.take(self.info, steps)
            found.append(
                Episode(nest.take(self.obs, rows), nest.take(self.action, steps), *columns, env_id, number, seed, info)
            )
            first += length
        return found


def columns_of(steps: Episode | EpisodeBatch) -> dict[str, Any]:
    return {name: getattr(steps, name) for name in EPISODE_COLUMNS}


@dataclass(frozen=True)
class SequenceSummaryStats:
    """Mean, standard deviation, maximum and minimum, or NaN without values."""

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
    """Result of `collect`, with tianshou's names. `returns` and `lens` are ordered by env, then by time."""

    n_collected_episodes: int
    """Number of episodes that ended."""
    n_collected_steps: int
    collect_time: float
    """Duration in seconds."""
    returns: np.ndarray
    """float64 `(episodes,)` or `(episodes, m)`: sums of rewards, including the episodes' steps in earlier batches.
    `collect` sums transformed rewards. `evaluate` sums rewards that are not normalised."""
    lens: np.ndarray
    """int64 `(episodes,)`: steps per episode."""
    batch: Rollout | FlatRollout | None
    """Collected steps; None with `keep=False`."""

    @property
    def collect_speed(self) -> float:
        """Steps per second."""
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
