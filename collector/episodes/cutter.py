"""`EpisodeCutter`: cuts batches into whole episodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from collector.batch.forms import obs_after
from collector.batch.rollout import FlatRollout, Rollout, Runs, runs_of
from collector.batch.step_extras import EPISODE_SEED
from collector.episodes.episode import EPISODE_COLUMNS, EpisodeBatch
from collector.episodes.unfinished import UnfinishedEpisodes, ends_of
from vecenv import nest

Parts = list[list[np.ndarray]]
"""Earlier runs of an episode: for each run, an array per leaf of the columns."""


class EpisodeCutter:
    """Cutter of consecutive batches into whole episodes.

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
        self._info_keys, self._unfinished = info_keys, UnfinishedEpisodes()
        self._parts: dict[int, Parts] = {}
        """Unfinished episodes by env."""

    @property
    def unfinished_steps(self) -> int:
        """Steps in unfinished episodes."""
        return sum(len(part[-1]) for parts in self._parts.values() for part in parts)

    @property
    def unfinished_nbytes(self) -> int:
        """Bytes of the unfinished episodes' arrays."""
        return sum(nest.nbytes(tuple(part)) for parts in self._parts.values() for part in parts)

    def cut(self, batch: Rollout | FlatRollout, order: np.ndarray | None = None) -> EpisodeBatch:
        """Return copies of the episodes that end in this batch, ordered by end (of a `FlatRollout`: by env).

        order: ids of the episodes that end in this batch, to return the episodes in this order.
        """
        runs, mask = runs_of(batch), nest.as_array(batch.mask)
        ends = ends_of(batch, mask, runs)
        usable = self._unfinished.add(runs, ends, batch.broken_ids)
        ended, going_on = (ends & usable).nonzero()[0], (usable & ~ends).nonzero()[0]
        rows = _GridRows(batch, mask, runs) if isinstance(batch, Rollout) else _FlatRows(batch, runs)
        ended = ended[rows.order(ended) if order is None else _ranks(runs.traj_id[ended], order)]
        columns = rows.columns | {"info": {key: rows.objects(key) for key in self._info_keys}}
        earlier = self._move_parts(columns, runs, rows, ended, going_on)
        number = seed = np.full(len(ended), -1)
        if (seeds := batch.extras.get(EPISODE_SEED)) is not None:
            number, seed = runs.traj_id[ended], nest.as_array(seeds)[mask][runs.start[ended]]
        lengths = (runs.before + runs.stop - runs.start)[ended]
        about = {"lengths": lengths, "episode": number, "seed": seed, "env_id": runs.env[ended].astype(np.int32)}
        return EpisodeBatch(**_join(columns, runs, rows, ended, earlier), **about)

    def _move_parts(self, columns: Any, runs: Runs, rows: Any, ended: np.ndarray, going_on: np.ndarray) -> list[Parts]:
        """Return the earlier parts of each ended episode. Keep copies of the runs that go on."""
        earlier = [self._parts.pop(env, []) if before else [] for env, before in _pairs(runs, ended)]
        kept = [self._parts.pop(env, []) if before else [] for env, before in _pairs(runs, going_on)]
        for run, parts in zip(going_on.tolist(), kept, strict=True):
            first, steps = int(rows.first[run]), int(runs.stop[run] - runs.start[run])
            own = slice(first, first + steps * rows.stride, rows.stride)  # a view would keep the whole batch in memory
            self._parts[int(runs.env[run])] = [*parts, [leaf[own].copy() for leaf in _arrays(columns)]]
        self._parts = {env: parts for env, parts in self._parts.items() if self._unfinished.ids[env] >= 0}
        return earlier


class _GridRows:
    """Rows of a `Rollout`, ordered by time, then by env, as the log writes them."""

    def __init__(self, batch: Rollout, mask: np.ndarray, runs: Runs) -> None:
        self._batch, self._shape, self.stride = batch, mask.shape, len(mask)
        env, time = mask.nonzero()
        self._env, self._time = env[runs.stop - 1], time[runs.stop - 1]
        self.first = time[runs.start] * self.stride + env[runs.start]
        self.columns = {"obs": batch.all_obs} | {name: getattr(batch, name) for name in EPISODE_COLUMNS[1:]}
        self.columns = nest.map(_time_first, self.columns)

    def order(self, ended: np.ndarray) -> np.ndarray:
        return np.argsort(self._time[ended], kind="stable")

    def objects(self, key: str) -> np.ndarray:
        if key not in self._batch.extras:
            return np.full(self._shape[0] * self._shape[1], None)
        return _as_objects(_time_first(self._batch.extras[key]))

    def last_obs(self, ended: np.ndarray) -> Any:
        return nest.map(nest.as_array, obs_after(self._batch, self._env[ended], self._time[ended]))


class _FlatRows:
    """Rows of a `FlatRollout`."""

    stride = 1

    def __init__(self, batch: FlatRollout, runs: Runs) -> None:
        self._batch, self.first, self._last = batch, runs.start, runs.stop - 1
        self.columns = {name: getattr(batch, name) for name in EPISODE_COLUMNS}

    def order(self, ended: np.ndarray) -> slice:
        return slice(None)

    def objects(self, key: str) -> np.ndarray:
        found = self._batch.extras.get(key)
        return np.full(self._batch.frames, None) if found is None else _as_objects(nest.as_array(found))

    def last_obs(self, ended: np.ndarray) -> Any:
        tails = np.searchsorted(nest.as_array(self._batch.tail_rows), self._last[ended])
        return nest.take(nest.map(nest.as_array, self._batch.tail_obs), tails)


def _time_first(rows: Any) -> np.ndarray:
    """Return `(N, T, ...)` as `(T * N, ...)`: a view for a collector's arrays."""
    array = nest.as_array(rows).swapaxes(0, 1)
    return array.reshape(-1, *array.shape[2:])


def _ranks(ids: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the indices that sort `ids` as in `order`, which contains them."""
    sorter = np.argsort(order)
    return np.argsort(sorter[np.searchsorted(order, ids, sorter=sorter)])


def _as_objects(rows: np.ndarray) -> np.ndarray:
    return rows if rows.dtype == object else nest.object_array(list(rows))


def _pairs(runs: Runs, which: np.ndarray) -> Iterable[tuple[int, int]]:
    return zip(runs.env[which].tolist(), runs.before[which].tolist(), strict=True)


def _arrays(columns: dict[str, Any]) -> list[np.ndarray]:
    return [nest.as_array(leaf) for leaf in nest.leaves(columns)]


def _join(columns: dict[str, Any], runs: Runs, rows: Any, ended: np.ndarray, earlier: list[Parts]) -> dict[str, Any]:
    """Return the columns of the ended episodes: their rows in this batch, after their earlier parts."""
    arrays = _arrays(columns)
    obs_count, stride, most = sum(1 for _ in nest.leaves(columns["obs"])), rows.stride, len(arrays[0]) - 1
    first, before, steps = rows.first[ended], runs.before[ended], (runs.stop - runs.start)[ended]
    begins, obs_begins = np.cumsum(before + steps) - (before + steps), np.cumsum(steps + 1) - (steps + 1)
    # Indices outside of a run are placeholders: below, earlier parts and `last_obs` overwrite these rows.
    at = _ranges(first - before * stride, before + steps, stride).clip(0, most)
    obs_at = _ranges(first, steps + 1, stride).clip(0, most)
    found = [nest.take(leaf, obs_at if i < obs_count else at) for i, leaf in enumerate(arrays)]
    obs_parts, copied = list[Any](), 0  # without a second copy of earlier observations
    for episode in np.flatnonzero(before).tolist():
        row, obs_row = int(begins[episode]), int(obs_begins[episode])
        if obs_row > copied:
            obs_parts.append([leaf[copied:obs_row] for leaf in found[:obs_count]])
        copied = obs_row
        for part in earlier[episode]:
            obs_parts.append(part[:obs_count])
            for array, rows_before in zip(found[obs_count:], part[obs_count:], strict=True):
                array[row : row + len(rows_before)] = rows_before
            row += len(part[-1])
    obs_parts.append([leaf[copied:] for leaf in found[:obs_count]])
    whole = _like_tree(columns, found)
    nest.put(obs := whole.pop("obs"), obs_begins + steps, rows.last_obs(ended))
    return {"obs_parts": [_like_tree(obs, part) for part in obs_parts], **whole}


def _like_tree(tree: Any, leaves: Iterable[Any]) -> Any:
    in_order = iter(leaves)
    return nest.map(lambda _: next(in_order), tree)


def _ranges(starts: np.ndarray, counts: np.ndarray, stride: int) -> np.ndarray:
    """Return `start, start + stride, ...` with `count` numbers, for each start."""
    found = np.repeat(starts - (np.cumsum(counts) - counts) * stride, counts)
    found += np.arange(0, len(found) * stride, stride)
    return found
