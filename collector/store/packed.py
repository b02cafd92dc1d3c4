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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import numpy as np

from collector.batch.conversions import join
from collector.episodes.episode import Episode, EpisodeBatch
from collector.store.safe_folder import DatasetError
from collector.store.schema import DTYPES, LARGEST_SIZE, LayoutLine
from vecenv import nest

OF_EPISODES = {"episode": "<i8", "seed": "<i8", "env_id": "<i4"}
FLAGS = ("terminated", "truncated")
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
        """True if an array has one row more for each episode."""
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


def layout_of(episodes: EpisodeBatch) -> Layout:
    """Layout of the arrays of episodes. Raises `DatasetError` where they cannot be stored."""
    return Layout.of(episodes.obs, episodes.action, episodes.reward)


def offsets_of(episodes: EpisodeBatch) -> np.ndarray:
    """int64 `(E + 1,)`: where the steps of each begin."""
    return np.concatenate([[0], np.cumsum(episodes.lengths)]).astype(np.int64)


def nbytes_of(episodes: EpisodeBatch) -> int:
    """Size of the arrays."""
    return sum(
        array.nbytes for name in EpisodeBatch.__dataclass_fields__ for array in nest.leaves(getattr(episodes, name))
    )


def arrays_of(episodes: EpisodeBatch) -> dict[str, np.ndarray]:
    """The arrays by name, as a shard has them."""
    layout = layout_of(episodes)
    found = {name: getattr(episodes, name) for name in ("reward", *FLAGS)}
    found |= dict([*pairs_of(layout.obs, episodes.obs), *pairs_of(layout.action, episodes.action)])
    found = {name: np.ascontiguousarray(array, layout.columns[name].dtype) for name, array in found.items()}
    found["offsets"] = offsets_of(episodes)
    return found | {name: np.asarray(getattr(episodes, name), dtype) for name, dtype in OF_EPISODES.items()}


def batch_of(layout: Layout, arrays: Mapping[str, np.ndarray]) -> EpisodeBatch:
    """The episodes of the arrays of a shard."""
    obs, action = (nest.map(arrays.__getitem__, tree) for tree in (layout.obs, layout.action))
    named = {name: arrays[name] for name in ("reward", *FLAGS, *OF_EPISODES)}
    return EpisodeBatch(obs, action, lengths=np.diff(arrays["offsets"]), **named)


def returns_of(episodes: EpisodeBatch) -> np.ndarray:
    """float64 `(E,)`: the sum of the rewards of each, as `Episode.total_reward` has it."""
    reward, offsets = episodes.reward, offsets_of(episodes)
    exact = bool((reward == np.rint(reward)).all() and np.abs(reward).sum() < 2**53)  # as of integers, in any order
    if reward.ndim == 1 and exact and len(episodes):
        return np.add.reduceat(reward, offsets[:-1])
    return np.array([reward[a:b].sum() for a, b in pairwise(offsets.tolist())], np.float64)


def check_whole(episodes: EpisodeBatch) -> None:
    """Raise `DatasetError` where these are no whole episodes, or have rewards that are not finite."""
    steps, count, offsets = len(episodes.reward), len(episodes), offsets_of(episodes)
    shapes = layout_of(episodes).shapes(steps, count)
    for name, array in arrays_of(episodes).items():
        if array.shape != shapes[name].shape:
            raise DatasetError(
                f"{name} of {count} episodes with {steps} steps has the shape {array.shape}, expected "
                f"{shapes[name].shape}"
            )
    if offsets[-1] != steps or (episodes.lengths < 1).any():
        raise DatasetError(f"the lengths of {count} episodes are {episodes.lengths[:5]}..., for {steps} steps")
    if not np.array_equal(np.flatnonzero(episodes.terminated | episodes.truncated), offsets[1:] - 1):
        raise DatasetError("only whole episodes can be stored: each must be over in its last step, and in no other")
    if not np.isfinite(episodes.reward).all():
        step = int(np.flatnonzero(~np.isfinite(episodes.reward.reshape(steps, -1)).all(1))[0])
        which = int(np.searchsorted(offsets[1:] - 1, step))
        raise DatasetError(
            f"episode {int(episodes.episode[which])} of env {int(episodes.env_id[which])} has the reward "
            f"{episodes.reward[step]} in step {step - int(offsets[which])}; NaN and infinity are not stored: "
            "leave the episode out or correct the env"
        )


def pack(episodes: Sequence[Episode]) -> EpisodeBatch:
    """Episodes as one batch, in new memory. Raises `DatasetError` where they do not fit together."""
    first = episodes[0]
    for episode in episodes:
        _check_form(episode, first)
    names = ("obs", "action", "reward", *FLAGS)
    try:
        columns = {name: join([getattr(episode, name) for episode in episodes]) for name in names}
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"these episodes have arrays of several forms, and cannot be stored as one: {error}"
        ) from None
    return EpisodeBatch(
        **columns,
        lengths=np.array([len(episode) for episode in episodes], np.int64),
        episode=np.array([episode.number for episode in episodes], np.int64),
        seed=np.array([-1 if episode.seed is None else episode.seed for episode in episodes], np.int64),
        env_id=np.array([episode.env_id for episode in episodes], np.int32),
    )


def _check_form(episode: Episode, first: Episode) -> None:
    """Raise `DatasetError` where an episode is not whole, or has other dtypes than the first."""
    length = len(episode)
    rows = [len(leaf) for leaf in nest.leaves(episode.obs)], [len(leaf) for leaf in nest.leaves(episode.action)]
    flags = {len(episode.terminated), len(episode.truncated)}
    if {*rows[0]} - {length + 1} or {*rows[1]} - {length} or flags != {length}:
        raise DatasetError(
            f"an episode of {length} steps has {rows[0]} observations and {rows[1]} actions; expected T + 1 and T"
        )
    for name in ("obs", "action"):
        dtypes, expected = ([leaf.dtype for leaf in nest.leaves(getattr(each, name))] for each in (episode, first))
        if dtypes != expected:
            raise DatasetError(f"{name} of an episode is {dtypes}, and {expected} in one before")


def concatenate(parts: Sequence[EpisodeBatch]) -> EpisodeBatch:
    """All episodes of several batches, in order."""
    names = EpisodeBatch.__dataclass_fields__
    return (
        parts[0]
        if len(parts) == 1
        else EpisodeBatch(**{name: join([getattr(p, name) for p in parts]) for name in names})
    )
