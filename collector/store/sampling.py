"""Transitions of a data set: some, all, or in random order, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from collector.store.manifest import Index
from collector.store.packed import PackedEpisodes
from collector.store.shard import Shards
from vecenv import nest


@dataclass(frozen=True, eq=False, repr=False)
class Transitions:
    """K steps, each with the observation before and after it."""

    obs: Any
    """`(K, ...)`, or a dict or tuple of such: the observation for which the action was chosen."""
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
    if not steps.size:
        raise IndexError("no transitions were asked for")
    episode = np.searchsorted(starts, steps, side="right") - 1
    step = steps - starts[episode]
    shard, row = index.shard[episode], index.first[episode] + step
    # By shard, and within it by place: each is opened once, and read in the order of the disk.
    order = np.lexsort((row, shard))
    found: list[np.ndarray] = []
    trees: tuple[Any, ...] = ()
    for into in np.split(order, np.flatnonzero(np.diff(shard[order])) + 1):
        part, rows = shards[int(shard[into[0]])], row[into]
        obs_rows = rows + index.position[episode[into]]
        trees = part.obs, part.action, part.reward, part.obs, part.terminated, part.truncated
        places = obs_rows, rows, rows, obs_rows + 1, rows, rows
        leaves = [(leaf, at) for tree, at in zip(trees, places, strict=True) for leaf in nest.leaves(tree)]
        found = found or [np.empty((len(steps), *leaf.shape[1:]), leaf.dtype) for leaf, _ in leaves]
        for array, (leaf, at) in zip(found, leaves, strict=True):
            array[into] = leaf[at]
    arrays = iter(found)
    columns = (nest.map(lambda _: next(arrays), tree) for tree in trees)
    obs, action, reward, next_obs, terminated, truncated = columns
    return Transitions(obs, action, reward, next_obs, terminated, truncated, index.number[episode], step)


def random_orders(
    shards: Shards, index: Index, starts: np.ndarray, batch_size: int, seed: int, passes: int | None
) -> Iterator[np.ndarray]:
    """The numbers of the transitions of each batch: see `Dataset.batches`."""
    for done in count() if passes is None else range(passes):
        rest = np.zeros(0, np.int64)
        for window in _windows(shards, index, starts, np.random.default_rng([seed, done])):
            rest = np.concatenate([rest, window])
            whole = len(rest) // batch_size * batch_size
            yield from rest[:whole].reshape(-1, batch_size)
            rest = rest[whole:]
        if len(rest):
            yield rest


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
