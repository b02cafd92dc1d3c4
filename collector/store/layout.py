"""Which arrays a shard has: one for each leaf of the observations and actions, and those that every shard has.

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
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from collector.store.errors import DatasetError
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
