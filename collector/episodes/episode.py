"""Whole episodes, cut from batches, and their statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from collector.batch.conversions import join, pick, trajectory_bounds
from collector.batch.rollout import FlatRollout, Rollout
from collector.batch.step_extras import EPISODE_SEED
from collector.episodes.unfinished_episodes import Runs, UnfinishedEpisodes
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
            sums = [reward[a:b].sum(0) for a, b in pairwise(offsets.tolist())]
            return np.array(sums, np.float64).reshape(len(self), *reward.shape[1:])

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


def columns_of(steps: Episode | EpisodeBatch | FlatRollout) -> dict[str, Any]:
    return {name: getattr(steps, name) for name in EPISODE_COLUMNS}


class Ended(NamedTuple):
    env_ids: np.ndarray
    returns: np.ndarray
    lens: np.ndarray


class EpisodeCutter:
    """Cutter of consecutive batches into whole episodes. Use only `cut` or only `totals`.

    Steps of an unfinished episode are copied. `cut` returns the episode with the batch that ends it. An episode is
    dropped if its env fails, if a reset abandons it, or if it began before the first batch.

    With `info_keys`, episodes have these columns of `extras` as objects in `info`. Steps before the first info with a
    key have None.

    Example::

        cutter = EpisodeCutter()
        for batch in collector:
            for episode in cutter.cut(batch):     # ordered by end, then by env
                save(episode)
    """

    def __init__(self, info_keys: Sequence[str] = ()) -> None:
        self._info_keys = info_keys
        self._ids = np.zeros(0, np.int64)
        """Id of each env's unfinished episode; -1 if its start is unknown."""
        self._unfinished = UnfinishedEpisodes()
        self._returns: Any = None

    @property
    def unfinished_steps(self) -> int:
        """Steps in unfinished episodes."""
        return self._unfinished.steps

    def cut(self, batch: Rollout | FlatRollout) -> EpisodeBatch:
        """Return copies of the episodes that end in this batch, ordered by end (of a `FlatRollout`: by env)."""
        runs, usable = self._runs(*_step_columns(batch), batch.broken_ids)
        ended = (runs.ends & usable).nonzero()[0]
        last = (runs.start + runs.steps - 1)[ended]
        if isinstance(batch, Rollout):
            env, time = np.nonzero(nest.as_array(batch.mask))
            order = np.argsort(time[last], kind="stable")
            ended, last = ended[order], last[order]
            columns = {name: nest.map(_time_first, getattr(batch, name)) for name in EPISODE_COLUMNS[1:]}
            columns = {"obs": nest.map(_time_first, batch.all_obs), **columns}
            last_obs, stride = _last_obs(batch, env[last], time[last]), len(batch.env_ids)
            first = time[runs.start] * stride + env[runs.start]
        else:
            tails = np.searchsorted(nest.as_array(batch.tail_rows), last)
            columns, last_obs = columns_of(batch), nest.take(nest.map(nest.as_array, batch.tail_obs), tails)
            stride, first = 1, runs.start
        columns["info"] = {key: self._objects(batch, key) for key in self._info_keys}
        if (seeds := batch.extras.get(EPISODE_SEED)) is not None:
            at = runs.start if isinstance(batch, FlatRollout) else (env[runs.start], time[runs.start])
            number, seed = (nest.as_array(column)[at] for column in (batch.traj_ids, seeds))
            runs = runs._replace(number=number, seed=seed)
        which = np.append(ended, np.flatnonzero(usable & ~runs.ends))
        return EpisodeBatch(
            **self._unfinished.join(columns, runs._replace(start=first).take(which), last_obs, self._ids >= 0, stride)
        )

    def _objects(self, batch: Rollout | FlatRollout, key: str) -> np.ndarray:
        if key not in batch.extras:
            return np.full(nest.as_array(batch.mask).size, None)
        rows = nest.as_array(batch.extras[key])
        return nest.object_array(list(_time_first(rows) if isinstance(batch, Rollout) else rows))

    def totals(self, batch: Rollout | FlatRollout) -> Ended:
        """Return the returns and lengths of episodes that end in this batch, ordered by env."""
        steps = _step_columns(batch)
        reward = nest.as_array(batch.reward)[nest.as_array(batch.mask)]
        runs, usable = self._runs(*steps, batch.broken_ids)
        if self._returns is None or self._returns.shape != (len(self._ids), *reward.shape[1:]):
            known, self._returns = self._returns, np.zeros((len(self._ids), *reward.shape[1:]))
            if known is not None and known.ndim == reward.ndim:  # else only failed steps, whose rewards are scalar 0
                self._returns[: len(known)] = known
        if not len(reward):
            return Ended(runs.env, np.zeros((0, *reward.shape[1:])), np.zeros(0, np.int64))
        follows = usable & (runs.before > 0)
        with np.errstate(over="ignore", invalid="ignore"):
            returns = np.add.reduceat(reward.astype(np.float64, copy=False), runs.start)
            returns[follows] += self._returns[runs.env[follows]]
        self._returns[runs.env[~runs.ends]] = returns[~runs.ends]
        whole = runs.ends & usable
        return Ended(runs.env[whole], returns[whole], (runs.before + runs.steps)[whole])

    def _runs(
        self, env_ids: Any, traj_ids: Any, step_count: Any, ended: Any, broken_ids: np.ndarray
    ) -> tuple[Runs, np.ndarray]:
        """Return the `Runs` of a batch, and a mask of runs whose episode has a known start and did not fail."""
        envs, ids, counts, ended = map(nest.as_array, (env_ids, traj_ids, step_count, ended))
        if len(new := np.arange(len(self._ids), envs.max(initial=-1) + 1)):
            self._ids = np.append(self._ids, np.full(len(new), -1))
        if len(broken_ids):
            self._ids[np.isin(self._ids, broken_ids)] = -1
        start, stop = trajectory_bounds(envs, ids, counts)
        env, run_ids, before, ends = envs[start], ids[start], counts[start], ended[stop - 1]
        usable = (before == 0) | (self._ids[env] == run_ids)
        if len(broken_ids):
            usable &= ~np.isin(run_ids, broken_ids)
        self._ids[env] = np.where(usable & ~ends, run_ids, -1)  # if an env has several runs, the last run counts
        unknown = np.full(len(env), -1)
        return Runs(env, start, stop - start, before, ends, unknown, unknown), usable


def _step_columns(batch: Rollout | FlatRollout) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    mask = nest.as_array(batch.mask)
    ended = batch.terminated | batch.truncated
    ids, step_count, ended = (nest.as_array(each)[mask] for each in (batch.traj_ids, batch.step_count, ended))
    env_ids = nest.as_array(batch.env_ids)
    return env_ids if isinstance(batch, FlatRollout) else env_ids[np.nonzero(mask)[0]], ids, step_count, ended


def _time_first(rows: Any) -> np.ndarray:
    """Return `(N, T, ...)` as `(T * N, ...)`: a view for a collector's arrays."""
    array = nest.as_array(rows).swapaxes(0, 1)
    return array.reshape(-1, *array.shape[2:])


def _last_obs(batch: Rollout, env: np.ndarray, time: np.ndarray) -> Any:
    all_obs, final_obs = (nest.map(nest.as_array, tree) for tree in (batch.all_obs, batch.final_obs))
    finals = np.full(nest.as_array(batch.mask).shape, -1)
    finals[nest.as_array(batch.final_env), nest.as_array(batch.final_time)] = np.arange(len(batch.final_env))
    found, final = pick(all_obs, env, time + 1), finals[env, time]
    known = np.flatnonzero(final >= 0)  # for the others, `all_obs` has the last observation
    nest.put(found, known, nest.take(final_obs, final[known]))
    return found


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
