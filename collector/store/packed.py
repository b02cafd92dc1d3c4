"""Whole episodes, one after another, as the arrays of a shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from collector.batch.arrays import join
from collector.episodes.episode import Episode
from collector.store.errors import DatasetError
from collector.store.layout import FLAGS, Layout, pairs_of
from vecenv import nest

_TREES = ("obs", "action")


@dataclass(frozen=True, eq=False)
class PackedEpisodes:
    """E whole episodes of S steps in all."""

    obs: Any
    """`(S + E, ...)`, or a tree of such: one more than it has steps for each episode."""
    action: Any
    """`(S, ...)`, or a tree of such."""
    reward: np.ndarray
    """float64 `(S,)` or `(S, m)`."""
    terminated: np.ndarray
    """bool `(S,)`."""
    truncated: np.ndarray
    """bool `(S,)`."""
    lengths: np.ndarray
    """int64 `(E,)`: steps of each."""
    episode: np.ndarray
    """int64 `(E,)`: numbers in the data set, -1 where the writer is to give them one."""
    seed: np.ndarray
    """int64 `(E,)`: -1 where it is not known."""
    env_id: np.ndarray
    """int32 `(E,)`: the env that each ran in."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def steps(self) -> int:
        """Steps of all of them."""
        return len(self.reward)

    @property
    def offsets(self) -> np.ndarray:
        """int64 `(E + 1,)`: where the steps of each begin."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    @property
    def nbytes(self) -> int:
        """Size of the arrays."""
        trees = (self.obs, self.action, self.reward, self.terminated, self.truncated)
        return sum(array.nbytes for tree in trees for array in nest.leaves(tree)) + 28 * len(self)

    def returns(self) -> np.ndarray:
        """float64 `(E,)`: the sum of the rewards of each, as `Episode.total_reward` has it."""
        if self.reward.ndim == 1 and len(self) and _sums_exactly(self.reward):
            return np.add.reduceat(self.reward, self.offsets[:-1])
        ends = self.offsets.tolist()
        return np.array([self.reward[a:b].sum() for a, b in pairwise(ends)], np.float64)

    def layout(self) -> Layout:
        """Which arrays it has."""
        return Layout.of(self.obs, self.action, self.reward)

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, as a shard has them."""
        layout, found = self.layout(), dict[str, np.ndarray]()
        for names, tree in ((layout.obs, self.obs), (layout.action, self.action)):
            found |= dict(pairs_of(names, tree))
        found |= {"reward": self.reward, "terminated": self.terminated, "truncated": self.truncated}
        found = {name: np.ascontiguousarray(array, layout.columns[name].dtype) for name, array in found.items()}
        return found | {"offsets": self.offsets, "episode": self.episode, "seed": self.seed, "env_id": self.env_id}

    def check(self) -> None:
        """Raise `DatasetError` where these are no whole episodes, or have rewards that are not finite."""
        steps, episodes = self.steps, len(self)
        layout = self.layout()  # refuses what cannot be stored
        for name, array in self.arrays().items():
            expected = layout.shapes(steps, episodes)[name].shape
            if array.shape != expected:
                raise DatasetError(
                    f"{name} of {episodes} episodes with {steps} steps has the shape {array.shape}, expected {expected}"
                )
        ends = self.offsets[1:] - 1
        if int(self.lengths.sum()) != steps or (self.lengths < 1).any():
            raise DatasetError(f"the lengths of {episodes} episodes are {self.lengths[:5]}..., for {steps} steps")
        over = np.flatnonzero(self.terminated | self.truncated)
        if not np.array_equal(over, ends):
            raise DatasetError("only whole episodes can be stored: each must be over in its last step, and in no other")
        if not np.isfinite(self.reward).all():
            step = int(np.flatnonzero(~np.isfinite(self.reward.reshape(steps, -1)).all(1))[0])
            which = int(np.searchsorted(ends, step))
            raise DatasetError(
                f"episode {int(self.episode[which])} of env {int(self.env_id[which])} has the reward "
                f"{self.reward[step]} in step {step - int(self.offsets[which])}; NaN and infinity are not stored: "
                "leave the episode out or correct the env"
            )

    def __getitem__(self, which: int) -> Episode:
        """One of the episodes: views of the arrays."""
        first = int(self.lengths[:which].sum())
        return cut_episode(self, first, int(self.lengths[which]), which)

    def __iter__(self) -> Iterator[Episode]:
        return (
            cut_episode(self, first, length, which)
            for which, (first, length) in enumerate(zip(self.offsets.tolist(), self.lengths.tolist(), strict=False))
        )


def _sums_exactly(reward: np.ndarray) -> bool:
    """Whether sums are the same in any order, as they are of integers: then many are added at once."""
    return bool((reward == np.rint(reward)).all() and np.abs(reward).sum() < 2**53)


def cut_episode(arrays: Any, first: int, length: int, which: int) -> Episode:
    """The episode with the steps `first:first + length`, which is number `which` of those in `arrays`: as views."""
    steps, rows = slice(first, first + length), slice(first + which, first + which + length + 1)
    seed = int(arrays.seed[which])
    return Episode(
        nest.take(arrays.obs, rows),
        nest.take(arrays.action, steps),
        arrays.reward[steps],
        arrays.terminated[steps],
        arrays.truncated[steps],
        int(arrays.env_id[which]),
        number=int(arrays.episode[which]),
        seed=None if seed < 0 else seed,
    )


def pack(episodes: Sequence[Episode], *, of_one_collector: bool = False) -> PackedEpisodes:
    """Episodes as one. Raises `DatasetError` where they do not fit together.

    `of_one_collector`: an `EpisodeCutter` has made them, so that each has all its rows and the dtypes of the others;
    it is not looked at one by one.
    """
    first = episodes[0]
    try:
        trees = {name: join([getattr(episode, name) for episode in episodes]) for name in _TREES}
        flat = {name: np.concatenate([getattr(episode, name) for episode in episodes]) for name in ("reward", *FLAGS)}
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"these episodes have arrays of several forms, and cannot be stored as one: {error}"
        ) from None
    for episode in () if of_one_collector else episodes:
        check_form(episode, first)
    return PackedEpisodes(
        **trees,
        **flat,
        lengths=np.array([len(episode) for episode in episodes], np.int64),
        episode=np.array([episode.number for episode in episodes], np.int64),
        seed=np.array([-1 if episode.seed is None else episode.seed for episode in episodes], np.int64),
        env_id=np.array([episode.env_id for episode in episodes], np.int32),
    )


def check_form(episode: Episode, first: Episode) -> None:
    """Raise `DatasetError` where an episode is not whole, or has other dtypes than the first."""
    length = len(episode)
    rows = [len(leaf) for leaf in nest.leaves(episode.obs)], [len(leaf) for leaf in nest.leaves(episode.action)]
    if (
        {*rows[0]} - {length + 1}
        or {*rows[1]} - {length}
        or not length == len(episode.terminated) == len(episode.truncated)
    ):
        raise DatasetError(
            f"an episode of {length} steps has {rows[0]} observations and {rows[1]} actions; expected T + 1 and T"
        )
    for name in _TREES:
        dtypes, expected = ([leaf.dtype for leaf in nest.leaves(getattr(each, name))] for each in (episode, first))
        if dtypes != expected:
            raise DatasetError(f"{name} of an episode is {dtypes}, and {expected} in one before")


def concatenate(parts: Sequence[PackedEpisodes]) -> PackedEpisodes:
    """All episodes of several, in order."""
    if len(parts) == 1:
        return parts[0]
    names = PackedEpisodes.__dataclass_fields__
    return PackedEpisodes(**{name: join([getattr(part, name) for part in parts]) for name in names})
