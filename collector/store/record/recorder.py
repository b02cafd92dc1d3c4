"""EpisodeRecorder: takes the rows of rounds as they come, and gives a writer the episodes that have ended.

Rows go into flat buffers, a row a step, with the key of their episode: a number that no other episode of this recorder
has. Whole episodes are cut out of the buffers some thousand rows at a time, by numpy, so that a round costs a few
assignments. What is left are the rows of episodes in progress; other rows are of episodes that were given up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from collector.store.packed import PackedEpisodes
from collector.store.writer import StoreWriter
from vecenv import nest

_ROUNDS = 256
_BYTES = 2**24
"""Rows are kept for so many rounds, or for so many bytes, whichever is less, before episodes are cut out."""
NONE = -1


class EpisodeRecorder:
    """Records the episodes of `n` envs; `obs` and `action` are rows of one round, which give the dtypes and shapes.

    A shard is committed when its episodes have `shard_bytes`, or when the first of them is `shard_seconds` old.
    """

    def __init__(
        self, n: int, writer: StoreWriter, obs: Any, action: Any, shard_bytes: int, shard_seconds: float
    ) -> None:
        self.writer = writer
        self._n, self._shard_bytes, self._shard_seconds = n, shard_bytes, shard_seconds
        self._latest = nest.map(lambda leaf: np.zeros((n, *leaf.shape[1:]), leaf.dtype), obs)
        self._latest_leaves = list(nest.leaves(self._latest))
        self._keys = np.full(n, NONE, np.int64)
        """Of each env the key of the episode in progress; NONE: it is in none that is recorded."""
        self._next_key = 0
        self._seeds: dict[int, int] = {}
        self._all = np.arange(n, dtype=np.int32)
        row = sum(leaf[:1].nbytes for tree in (obs, action) for leaf in nest.leaves(tree)) + 32
        self._capacity = max(2 * n, min(_ROUNDS * n, _BYTES // max(1, row)))
        self._rows = 0
        self._obs = nest.map(self._buffer, obs)
        self._action = nest.map(self._buffer, action)
        self._reward: np.ndarray | None = None
        self._terminated, self._truncated = (np.zeros(self._capacity, np.bool_) for _ in range(2))
        self._key, self._slot = np.zeros(self._capacity, np.int64), np.zeros(self._capacity, np.int32)
        self._ends: list[np.ndarray] = []
        """The rows in which episodes ended,"""
        self._tails: list[Any] = []
        """and their last observations."""
        self._ended_at = 0.0

    def _buffer(self, leaf: np.ndarray) -> np.ndarray:
        return np.zeros((self._capacity, *leaf.shape[1:]), leaf.dtype)

    def begin(self, ids: np.ndarray | None, obs: Any, seeds: Sequence[int | None] | None = None) -> None:
        """Episodes of these envs (None: all) begin with these rows of observations. Those in progress are given up.

        `obs`: None where they are the last ones that `step` got.
        """
        at: Any = slice(None) if ids is None else ids
        if obs is not None:
            for latest, rows in zip(self._latest_leaves, nest.leaves(obs), strict=True):
                latest[at] = rows
        k = self._n if ids is None else len(ids)
        self._keys[at] = np.arange(self._next_key, self._next_key + k)
        if seeds is not None:
            self._seeds.update({self._next_key + i: seed for i, seed in enumerate(seeds) if seed is not None})
        self._next_key += k

    def discard(self, ids: Any = slice(None)) -> None:
        """The episodes in progress of these envs are not recorded, nor what follows, until others begin."""
        self._keys[ids] = NONE

    def step(
        self,
        ids: np.ndarray | None,
        action: Any,
        obs: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        tails: Any = None,
    ) -> np.ndarray:
        """Rows of steps of these envs (None: all), and the observations after them; returns which ended an episode.

        `tails`: a function from row indices to the last observations, where `obs` has those of the next episodes.
        """
        k = self._n if ids is None else len(ids)
        if self._rows + k > self._capacity:
            self.cut()
        if self._reward is None:
            self._reward = np.zeros((self._capacity, *np.shape(reward)[1:]))
        at, every = slice(self._rows, self._rows + k), slice(None) if ids is None else ids
        for buffer, latest in zip(nest.leaves(self._obs), self._latest_leaves, strict=True):
            buffer[at] = latest if ids is None else latest[ids]
        for buffer, rows in zip(nest.leaves(self._action), nest.leaves(action), strict=True):
            np.copyto(buffer[at], rows, casting="same_kind")  # 2.7 is no integer
        self._reward[at], self._terminated[at], self._truncated[at] = reward, terminated, truncated
        self._key[at], self._slot[at] = self._keys[every], self._all[every]
        for latest, rows in zip(self._latest_leaves, nest.leaves(obs), strict=True):
            latest[every] = rows
        ended = np.flatnonzero(self._terminated[at] | self._truncated[at])
        if ended.size:
            self._end(ended, ids, obs, tails)
        self._rows += k
        if self._ends and time.monotonic() - self._ended_at > self._shard_seconds:
            self.cut()
        return ended

    def _end(self, ended: np.ndarray, ids: np.ndarray | None, obs: Any, tails: Any) -> None:
        envs = ended if ids is None else ids[ended]
        whole = ended[self._keys[envs] != NONE]
        if whole.size:
            if not self._ends:
                self._ended_at = time.monotonic()
            self._ends.append(self._rows + whole)
            self._tails.append(nest.take(obs, whole) if tails is None else tails(whole))
        self._keys[envs] = NONE

    def cut(self) -> None:
        """Give the writer the episodes that have ended, and commit them where that is due."""
        if self._ends:
            self.writer.add_packed(self._whole())
            self._ends, self._tails = [], []
        key = self._key[: self._rows]
        rest = np.flatnonzero((key == self._keys[self._slot[: self._rows]]) & (key != NONE))
        grown = self._capacity if len(rest) <= self._capacity // 2 else 2 * self._capacity
        self._obs, self._action = (
            nest.map(lambda column: _kept(column, rest, grown), tree) for tree in (self._obs, self._action)
        )
        if self._reward is not None:
            self._reward = _kept(self._reward, rest, grown)
        self._terminated, self._truncated = _kept(self._terminated, rest, grown), _kept(self._truncated, rest, grown)
        self._key, self._slot = _kept(self._key, rest, grown), _kept(self._slot, rest, grown)
        self._capacity, self._rows = grown, len(rest)
        if self.writer.waiting_bytes >= self._shard_bytes or self.writer.waiting_seconds > self._shard_seconds:
            self.writer.commit()

    def _whole(self) -> PackedEpisodes:
        """The episodes that have ended, in the order of their ends."""
        key = self._key[: self._rows]
        ended = key[np.concatenate(self._ends)]
        order = np.argsort(ended)
        place = np.minimum(np.searchsorted(ended, key, sorter=order), len(ended) - 1)
        which = order[place]
        rows = np.flatnonzero(ended[which] == key)
        # Small integers are sorted by their digits, which is the fastest.
        which = which[rows].astype(np.uint16 if len(ended) < 2**16 else np.int64)
        rows = rows[np.argsort(which, kind="stable")]
        lengths = np.bincount(which, minlength=len(ended))
        last = np.cumsum(lengths) + np.arange(len(ended))
        places = np.delete(np.arange(len(rows) + len(ended)), last)
        tails = nest.merge(np.concatenate, self._tails)
        assert self._reward is not None
        return PackedEpisodes(
            nest.merge(lambda pair: _interleaved(pair[0][rows], places, pair[1], last), [self._obs, tails]),
            nest.take(self._action, rows),
            self._reward[rows],
            self._terminated[rows],
            self._truncated[rows],
            lengths=lengths,
            episode=np.full(len(ended), -1),
            seed=np.array([self._seeds.pop(each, -1) for each in ended.tolist()], np.int64),
            slot=self._slot[rows[np.cumsum(lengths) - 1]],
        )


def _interleaved(rows: np.ndarray, places: np.ndarray, tails: np.ndarray, last: np.ndarray) -> np.ndarray:
    found = np.empty((len(rows) + len(tails), *rows.shape[1:]), rows.dtype)
    found[places], found[last] = rows, tails
    return found


def _kept(column: np.ndarray, rows: np.ndarray, capacity: int) -> np.ndarray:
    """The column with these rows first, and room for `capacity` rows."""
    kept = column if len(column) == capacity else np.zeros((capacity, *column.shape[1:]), column.dtype)
    kept[: len(rows)] = column[rows]
    return kept


def space_rows(space: Any, n: int) -> Any:
    """Zeros in the form of `n` elements of a space: a tree of arrays `(n, ...)`.

    Raises TypeError for a space without an array form.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: space_rows(part, n) for key, part in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(space_rows(part, n) for part in space)
    if space.shape is None or np.dtype(space.dtype).kind not in "biuf":
        raise TypeError(f"{space} has no array form")
    return np.zeros((n, *space.shape), space.dtype)
