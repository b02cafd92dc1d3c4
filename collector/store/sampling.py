"""Transitions of a data set: some, all, or in random order, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from collector.store.files.row_reads import RowReads, bytes_of, is_large
from collector.store.manifest import Index
from collector.store.packed import PackedEpisodes
from collector.store.shards import Shards
from vecenv import nest

_AHEAD = 4096
"""Places of a random order that are computed at once."""
_FILES = 64
"""Files that may be kept open by what is still to be read of them, besides those that `Shards` keeps open."""
_MAPPED, _LEAST_MAPPED = 2**18, 2**16
"""What the kernel maps where one row is read: 64 kB, or 2 MB where the page cache has such pages."""


@dataclass(frozen=True, eq=False, repr=False)
class Transitions:
    """K steps, each with the observation before and after it."""

    obs: Any
    """`(K, ...)`, or a dict or tuple of such: what the action was chosen for."""
    action: Any
    """`(K, ...)`, or a tree of such."""
    reward: np.ndarray
    """float64 `(K,)` or `(K, m)`."""
    next_obs: Any
    """As `obs`; of the last step of an episode its last observation."""
    terminated: np.ndarray
    """bool `(K,)`."""
    truncated: np.ndarray
    """bool `(K,)`."""
    episode: np.ndarray
    """int64 `(K,)`: number of the episode."""
    step: np.ndarray
    """int64 `(K,)`: steps of it before this one."""

    def __len__(self) -> int:
        return len(self.reward)

    def __repr__(self) -> str:
        return f"Transitions({len(self)} steps of {len(np.unique(self.episode))} episodes)"

    def as_dict(self) -> dict[str, Any]:
        """By name."""
        return dict(vars(self))


def transitions_of(episodes: PackedEpisodes) -> Transitions:
    """Every step of some episodes, in order."""
    of = np.repeat(np.arange(len(episodes)), episodes.lengths)
    rows = np.arange(episodes.steps) + of
    return Transitions(
        nest.take(episodes.obs, rows),
        episodes.action,
        episodes.reward,
        nest.take(episodes.obs, rows + 1),
        episodes.terminated,
        episodes.truncated,
        episodes.episode[of],
        np.arange(episodes.steps) - episodes.offsets[:-1][of],
    )


def gather(shards: Shards, index: Index, starts: np.ndarray, steps: np.ndarray) -> Transitions:
    """The transitions with these numbers; `starts`: number of the first of each episode, and how many there are."""
    if steps.size and not (steps.min() >= 0 and steps.max() < starts[-1]):
        raise IndexError(f"the data set has {int(starts[-1]):,} transitions, got {steps.min()} to {steps.max()}")
    episode = np.searchsorted(starts, steps, side="right") - 1
    step = steps - starts[episode]
    shard, row, position = index.shard[episode], index.first[episode] + step, index.position[episode]
    # By shard, and within it by place: each is opened once, and read in the order of the disk.
    order = np.lexsort((row, shard))
    shard, row, obs_row = shard[order], row[order], (row + position)[order]
    borders = [0, *(np.flatnonzero(np.diff(shard)) + 1).tolist(), len(steps)]
    found: list[np.ndarray] | None = None
    columns: list[Any] = []
    reads = RowReads()
    for begin, stop in pairwise(borders):
        if begin == stop:
            continue
        if reads.files >= _FILES and shards.full:
            reads.read()
        part, file = shards.open(int(shard[begin]))
        columns = [part.obs, part.obs, part.action, part.reward, part.terminated, part.truncated]
        rows, obs_rows = row[begin:stop], obs_row[begin:stop]
        at = [obs_rows, obs_rows + 1, rows, rows, rows, rows]
        leaves = [(leaf, where) for tree, where in zip(columns, at, strict=True) for leaf in nest.leaves(tree)]
        if found is None:
            found = [np.empty((len(steps), *leaf.shape[1:]), leaf.dtype) for leaf, _ in leaves]
            of_obs = len(list(nest.leaves(part.obs)))
            views = [bytes_of(array) for array in found[: 2 * of_obs]]
        into = order[begin:stop]
        for which, (array, (leaf, where)) in enumerate(zip(found, leaves, strict=True)):
            if file is None or which >= 2 * of_obs or not is_large(leaf):
                array[into] = leaf[where]
                shards.touch(min((stop - begin) * _MAPPED, max(leaf.nbytes, _LEAST_MAPPED)))
            elif which < of_obs:
                reads.add(file, leaf, where, views[which], views[of_obs + which], into)
    reads.read()
    if found is None:
        raise IndexError("no transitions were asked for")
    parts = iter(found)
    obs, next_obs, action, reward, terminated, truncated = (nest.map(lambda _: next(parts), tree) for tree in columns)
    return Transitions(obs, action, reward, next_obs, terminated, truncated, index.number[episode], step)


def random_orders(
    shards: Shards, index: Index, starts: np.ndarray, batch_size: int, seed: int, passes: int | None
) -> Iterator[np.ndarray]:
    """The numbers of the transitions of each batch: see `Dataset.batches`."""
    done = 0
    while passes is None or done < passes:
        rng = np.random.default_rng([seed, done])
        if any(shards.compressed(which) for which in np.unique(index.shard).tolist()):
            chunks = _windows(shards, index, starts, rng)
        else:
            chunks = _anywhere(int(starts[-1]), max(_AHEAD, batch_size), rng)
        rest = np.zeros(0, np.int64)
        for chunk in chunks:
            rest = np.concatenate([rest, chunk])
            whole = len(rest) // batch_size * batch_size
            yield from rest[:whole].reshape(-1, batch_size)
            rest = rest[whole:]
        if len(rest):
            yield rest
        done += 1


def _anywhere(count: int, ahead: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    order = RandomOrder(count, rng)
    for begin in range(0, count, ahead):
        yield order[np.arange(begin, min(begin + ahead, count))]


def _windows(shards: Shards, index: Index, starts: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Shards in random order, as many at a time as memory holds, and their transitions in random order."""
    window: list[int] = []
    size = 0
    for which in rng.permutation(np.unique(index.shard)).tolist():
        if window and size + shards.nbytes(which) > shards.memory:
            yield _shuffled(window, index, starts, rng)
            window, size = [], 0
        window.append(which)
        size += shards.nbytes(which)
    if window:
        yield _shuffled(window, index, starts, rng)


def _shuffled(window: list[int], index: Index, starts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    episodes = np.flatnonzero(np.isin(index.shard, window))
    lengths = index.length[episodes]
    first = np.cumsum(lengths) - lengths
    return rng.permutation(np.arange(int(lengths.sum())) + np.repeat(starts[episodes] - first, lengths))


class RandomOrder:
    """A random order of `0..count - 1` that takes no memory: a Feistel network over a power of two, walked into range.

    >>> sorted(RandomOrder(10, np.random.default_rng(0))[np.arange(10)].tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._count = count
        bits = max(2, (count - 1).bit_length())
        self._low, self._high = bits // 2, bits - bits // 2
        # An even number of rounds, after which the halves are as wide as before.
        self._keys = rng.integers(0, 2**63, 8, dtype=np.uint64)

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """The numbers at these places: int64 `(k,)`."""
        found = self._once(places.astype(np.uint64))
        while (out := np.flatnonzero(found >= self._count)).size:
            found[out] = self._once(found[out])
        return found.astype(np.int64)

    def _once(self, numbers: np.ndarray) -> np.ndarray:
        low, high = np.uint64(self._low), np.uint64(self._high)
        for key in self._keys:
            left, right = numbers >> low, numbers & (np.uint64(1) << low) - np.uint64(1)
            mixed = (right + key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
            mask = (np.uint64(1) << high) - np.uint64(1)
            numbers = right << high | (left ^ mixed >> np.uint64(32)) & mask
            low, high = high, low
        return numbers
