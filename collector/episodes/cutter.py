"""`EpisodeCutter`: cuts batches into whole episodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from collector.batch.forms import obs_after
from collector.batch.rollout import FlatRollout, Rollout, Runs, runs_of
from collector.batch.step_extras import EPISODE_SEED
from collector.episodes.episode import EPISODE_COLUMNS, EpisodeBatch
from collector.episodes.unfinished import UnfinishedEpisodes, ends_of
from vecenv import nest

LARGE_ROW = 4096
"""Bytes of an observation from which earlier parts of an episode are not copied again. With less, a copy is faster."""


class Block(NamedTuple):
    """Copies of the rows that a batch has of unfinished episodes. The rows of an episode are consecutive."""

    ids: np.ndarray
    """int64 `(k,)`: ids of the episodes."""
    starts: np.ndarray
    """int64 `(k,)`: first row of each episode."""
    counts: np.ndarray
    """int64 `(k,)`: number of rows of each episode."""
    arrays: list[np.ndarray]
    """Array per leaf of the columns."""
    nbytes: int
    """Bytes of the arrays."""

    @classmethod
    def of(cls, ids: np.ndarray, counts: np.ndarray, arrays: list[np.ndarray]) -> Block:
        return cls(ids, _starts(counts), counts, arrays, nest.nbytes(tuple(arrays)))

    @property
    def used_nbytes(self) -> int:
        """Bytes of the rows of episodes in `ids`."""
        return self.nbytes * int(self.counts.sum()) // max(1, len(self.arrays[-1]))

    def without(self, ids: np.ndarray) -> Block:
        """Return the block without these episodes, and without their memory if other episodes use less than half."""
        left = ~np.isin(self.ids, ids)
        if left.all():
            return self
        known = self.ids[left], self.starts[left], self.counts[left]
        if 2 * int(known[2].sum()) > len(self.arrays[-1]):
            return Block(*known, self.arrays, self.nbytes)
        rows = _ranges(*known[1:], 1)
        return Block.of(known[0], known[2], [nest.take(leaf, rows) for leaf in self.arrays])


class EpisodeCutter:
    """Cutter of consecutive batches into whole episodes.

    Steps of an unfinished episode are copied. `cut` returns the episode with the batch that ends it. An episode is
    dropped if its env fails, if a reset abandons it, or if it began before the first batch.

    With `info_keys`, episodes have these columns of `extras` in `info`. If a batch lacks a column, its steps have None.

    Example::

        cutter = EpisodeCutter()
        for batch in collector:
            for episode in cutter.cut(batch):     # ordered by end, then by env
                save(episode)
    """

    def __init__(self, info_keys: Sequence[str] = ()) -> None:
        self._info_keys, self._unfinished = info_keys, UnfinishedEpisodes()
        self._blocks: list[Block] = []
        """Earlier rows of the unfinished episodes, by batch."""

    @property
    def unfinished_steps(self) -> int:
        """Steps in unfinished episodes."""
        return sum(int(block.counts.sum()) for block in self._blocks)

    @property
    def unfinished_nbytes(self) -> int:
        """Bytes of the unfinished episodes' arrays."""
        return sum(block.used_nbytes for block in self._blocks)

    def cut(self, batch: Rollout | FlatRollout, order: np.ndarray | None = None) -> EpisodeBatch:
        """Return copies of the episodes that end in this batch, ordered by end (of a `FlatRollout`: by env).

        order: ids of the episodes that end in this batch, to return the episodes in this order.
        """
        runs, mask = runs_of(batch), nest.as_array(batch.mask)
        ends, before = ends_of(batch, mask, runs), self._unfinished.ids.copy()
        usable = self._unfinished.add(runs, ends, batch.broken_ids)
        ended, going_on = (ends & usable).nonzero()[0], (usable & ~ends).nonzero()[0]
        going_on = going_on[self._unfinished.ids[runs.env[going_on]] == runs.traj_id[going_on]]  # else abandoned
        rows = _GridRows(batch, mask, runs) if isinstance(batch, Rollout) else _FlatRows(batch, runs)
        ended = ended[rows.order(ended) if order is None else _ranks(runs.traj_id[ended], order)]
        columns = rows.columns | {"info": {key: rows.extra(key) for key in self._info_keys}}
        whole = _join(columns, runs, rows, ended, self._blocks if runs.before[ended].any() else [])
        # A run with no earlier steps may repeat the id of an episode that its env has abandoned.
        gone = np.setdiff1d(before, self._unfinished.ids[: len(before)])
        self._drop(np.concatenate([gone, runs.traj_id[runs.before == 0]]))
        if len(going_on):
            counts = (runs.stop - runs.start)[going_on]
            at = _ranges(rows.first[going_on], counts, rows.stride)
            arrays = [nest.take(leaf, at) for leaf in _arrays(columns)]
            self._blocks.append(Block.of(runs.traj_id[going_on], counts, arrays))
        number = seed = np.full(len(ended), -1)
        if (seeds := batch.extras.get(EPISODE_SEED)) is not None:
            number, seed = runs.traj_id[ended], nest.as_array(seeds)[mask][runs.start[ended]]
        lengths = (runs.before + runs.stop - runs.start)[ended]
        about = {"lengths": lengths, "episode": number, "seed": seed, "env_id": runs.env[ended].astype(np.int32)}
        return EpisodeBatch(**whole, **about)

    def _drop(self, ids: np.ndarray) -> None:
        if len(ids):
            blocks = (block.without(ids) for block in self._blocks)
            self._blocks = [block for block in blocks if len(block.ids)]


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

    def extra(self, key: str) -> np.ndarray:
        if key not in self._batch.extras:
            return np.full(self._shape[0] * self._shape[1], None)
        return _time_first(self._batch.extras[key])

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

    def extra(self, key: str) -> np.ndarray:
        found = self._batch.extras.get(key)
        return np.full(self._batch.frames, None) if found is None else nest.as_array(found)

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


def _arrays(columns: dict[str, Any]) -> list[np.ndarray]:
    return [nest.as_array(leaf) for leaf in nest.leaves(columns)]


def _join(columns: dict[str, Any], runs: Runs, rows: Any, ended: np.ndarray, blocks: Sequence[Block]) -> dict[str, Any]:
    """Return the columns of the ended episodes: their rows in this batch, after their rows in `blocks`."""
    arrays, stride = _arrays(columns), rows.stride
    obs_count, most = sum(1 for _ in nest.leaves(columns["obs"])), len(arrays[0]) - 1
    first, before, steps = rows.first[ended], runs.before[ended], (runs.stop - runs.start)[ended]
    is_large = sum(leaf[:1].nbytes for leaf in arrays[:obs_count]) >= LARGE_ROW
    copied = np.zeros_like(before) if is_large else before  # earlier observations that are copied
    begins, obs_begins = _starts(before + steps), _starts(copied + steps + 1)
    # Indices outside of a run are placeholders: below, earlier rows and `last_obs` overwrite these rows.
    at = _ranges(first - before * stride, before + steps, stride).clip(0, most)
    obs_at = _ranges(first - copied * stride, copied + steps + 1, stride).clip(0, most)
    found = [nest.take(leaf, obs_at if i < obs_count else at) for i, leaf in enumerate(arrays)]
    follows, filled, views = np.flatnonzero(before), np.zeros_like(before), list[Any]()
    for block in blocks:
        which, place = _matches(block.ids, runs.traj_id[ended[follows]])
        episodes, starts, counts = follows[place], block.starts[which], block.counts[which]
        source, done = _ranges(starts, counts, 1), filled[episodes]
        target, obs_target = (_ranges(each[episodes] + done, counts, 1) for each in (begins, obs_begins))
        for i, leaf in enumerate(block.arrays):
            if i >= obs_count:
                found[i] = _put(found[i], target, nest.take(leaf, source))
            elif not is_large:
                found[i][obs_target] = nest.take(leaf, source)
        if is_large:
            own = zip(obs_begins[episodes].tolist(), starts.tolist(), counts.tolist(), strict=True)
            views += [(row, [leaf[a : a + count] for leaf in block.arrays[:obs_count]]) for row, a, count in own]
        filled[episodes] += counts
    whole = _like_tree(columns, found)
    nest.put(obs := whole.pop("obs"), obs_begins + copied + steps, rows.last_obs(ended))
    return {"obs_parts": [_like_tree(obs, part) for part in _interleaved(found[:obs_count], views)], **whole}


def _interleaved(arrays: list[np.ndarray], views: list[tuple[int, list[np.ndarray]]]) -> Iterable[list[np.ndarray]]:
    """Yield consecutive parts of `arrays`, with the parts of `views` in front of their rows."""
    done = 0
    for row, part in sorted(views, key=itemgetter(0)):  # stable: parts of an episode stay in order
        if row > done:
            yield [leaf[done:row] for leaf in arrays]
            done = row
        yield part
    yield [leaf[done:] for leaf in arrays]


def _matches(ids: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the `ids` that are in `wanted`, and their indices in `wanted`.

    >>> _matches(np.array([7, 8, 9]), np.array([9, 7]))
    (array([0, 2]), array([1, 0]))
    """
    sorter = np.argsort(wanted)
    place = sorter[np.searchsorted(wanted, ids, sorter=sorter).clip(0, max(0, len(wanted) - 1))]
    which = np.flatnonzero(wanted[place] == ids)
    return which, place[which]


def _put(array: np.ndarray, at: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Write rows, and return the array, in a dtype that holds both. Missing infos are objects."""
    if array.dtype != rows.dtype:
        if array.dtype == object or rows.dtype == object:
            array, rows = (each if each.dtype == object else nest.object_array(list(each)) for each in (array, rows))
        else:
            array = array.astype(np.promote_types(array.dtype, rows.dtype))
    array[at] = rows
    return array


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts) - counts


def _like_tree(tree: Any, leaves: Iterable[Any]) -> Any:
    in_order = iter(leaves)
    return nest.map(lambda _: next(in_order), tree)


def _ranges(starts: np.ndarray, counts: np.ndarray, stride: int) -> np.ndarray:
    """Return `start, start + stride, ...` with `count` numbers, for each start."""
    found = np.repeat(starts - _starts(counts) * stride, counts)
    found += np.arange(0, len(found) * stride, stride)
    return found
