"""The arrays of a shard: one for each leaf of the observations and actions, and those that every shard has.

A shard with E episodes of S steps in all holds

    obs          (S + E, ...)   one more than it has steps for each episode, the last observation included
    action       (S, ...)
    reward       (S,) float64, or (S, m) where rewards are vectors
    terminated   (S,) bool
    truncated    (S,) bool
    offsets      (E + 1,) int64: episode e has the steps `offsets[e]:offsets[e + 1]`
    episode      (E,) int64: its number in the data set
    seed         (E,) int64: the seed of its reset; -1 where that is not known
    env_id       (E,) int32: the env that it ran in

Dict and Tuple observations are `obs.0`, `obs.1`, ... in the order of the tree, and actions likewise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import numpy as np

from collector.batch.arrays import join
from collector.episodes.episode import Episode
from collector.store.errors import DatasetError
from collector.store.schema import DTYPES, LARGEST_SIZE, LayoutLine
from vecenv import nest

OF_EPISODES = {"episode": "<i8", "seed": "<i8", "env_id": "<i4"}
FLAGS = ("terminated", "truncated")
_TREES = ("obs", "action")
DEEPEST = 32


@dataclass(frozen=True)
class Column:
    """One array, or one row of it: dtype and shape."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the array, or of one row where the shape is that of a row."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The arrays of steps and observations in every shard of a data set."""

    obs: Any
    """The tree of the observations, with the name of the array at each leaf."""
    action: Any
    """The tree of the actions."""
    columns: dict[str, Column]
    """By name."""

    @classmethod
    def of(cls, obs: Any, action: Any, reward: np.ndarray) -> Layout:
        """Layout of episodes with such arrays `(rows, ...)`. Raises `DatasetError` where they cannot be stored."""
        names = _named("obs", obs), _named("action", action)
        columns = {
            name: Column(_stored_dtype(name, array), array.shape[1:])
            for pair in zip(names, (obs, action), strict=True)
            for name, array in pairs_of(*pair)
        }
        columns["reward"] = Column(np.dtype("<f8"), reward.shape[1:])
        return cls(*names, columns | {flag: Column(np.dtype("|b1"), ()) for flag in FLAGS})

    def is_of_obs(self, name: str) -> bool:
        """Whether an array has one row more for each episode."""
        return name == "obs" or name.startswith("obs.")

    def shapes(self, steps: int, episodes: int) -> dict[str, Column]:
        """All arrays of a shard, with their whole shapes."""
        whole = {
            name: Column(each.dtype, (steps + episodes * self.is_of_obs(name), *each.shape))
            for name, each in self.columns.items()
        }
        whole["offsets"] = Column(np.dtype("<i8"), (episodes + 1,))
        return whole | {name: Column(np.dtype(dtype), (episodes,)) for name, dtype in OF_EPISODES.items()}

    def nbytes(self, steps: int, episodes: int) -> int:
        """Size of the arrays of a shard."""
        return sum(each.nbytes for each in self.shapes(steps, episodes).values())

    def line(self) -> LayoutLine:
        """The line of the manifest. Raises `DatasetError` where a key of a Dict is no text."""
        arrays = {name: (each.dtype.str, list(each.shape)) for name, each in self.columns.items()}
        return LayoutLine(_as_lists(self.obs), _as_lists(self.action), arrays)

    @classmethod
    def of_line(cls, line: LayoutLine) -> Layout:
        """The layout of a line. Raises `DatasetError` where it is none."""
        trees = _tree(line.obs, "obs"), _tree(line.action, "action")
        columns = {name: Column(np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in line.arrays.items()}
        if columns.keys() != {*nest.leaves(trees[0]), *nest.leaves(trees[1]), "reward", *FLAGS}:
            raise DatasetError("the arrays of its layout are not those that its trees name")
        if columns["reward"].dtype != np.float64 or any(columns[flag] != Column(np.dtype("?"), ()) for flag in FLAGS):
            raise DatasetError("its layout has rewards that are not float64, or flags that are not bool")
        if large := [name for name, column in columns.items() if column.nbytes > LARGEST_SIZE]:
            raise DatasetError(f"its layout gives {large[0]} rows of {columns[large[0]].nbytes:,} bytes")
        return cls(*trees, columns)


def pairs_of(names: Any, tree: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Names and arrays of two trees of the same form."""
    return zip(nest.leaves(names), nest.leaves(tree), strict=True)


def _stored_dtype(name: str, array: np.ndarray) -> np.dtype:
    if array.dtype.hasobject:
        raise DatasetError(f"{name} holds Python objects; only arrays of numbers can be stored")
    dtype = array.dtype.newbyteorder("<")
    if dtype.str not in DTYPES:
        raise DatasetError(f"{name} is {array.dtype}; arrays of bool, integers and floats up to 64 bits can be stored")
    return dtype


def _named(prefix: str, tree: Any) -> Any:
    """A tree with the name of its array at each leaf.

    >>> _named("obs", {"a": np.zeros(1), "b": (np.zeros(1),)})
    {'a': 'obs.0', 'b': ('obs.1',)}
    """
    if not isinstance(tree, (dict, tuple)):
        return prefix
    numbers = count()
    return nest.map(lambda _: f"{prefix}.{next(numbers)}", tree)


def _as_lists(tree: Any) -> Any:
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise DatasetError(f"the keys of a Dict space are {list(tree)}; only text can be stored")
        return {key: _as_lists(child) for key, child in tree.items()}
    return [_as_lists(child) for child in tree] if isinstance(tree, tuple) else tree


def _tree(value: Any, prefix: str) -> Any:
    """The tree of a line, with the names that its leaves must have."""
    tree = _as_tuples(value, 0)
    if tree != _named(prefix, tree):
        raise DatasetError(f"its layout names the arrays of {prefix} otherwise than {prefix}.0, {prefix}.1, ...")
    return tree


def _as_tuples(value: Any, depth: int) -> Any:
    if depth > DEEPEST or not isinstance(value, (dict, list, str)):
        raise DatasetError("its layout has a tree that is nested too deeply, or has no names of arrays")
    if isinstance(value, dict):
        return {key: _as_tuples(child, depth + 1) for key, child in value.items()}
    return tuple(_as_tuples(child, depth + 1) for child in value) if isinstance(value, list) else value


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
