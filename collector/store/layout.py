"""Which arrays a shard has: one for each leaf of the observations and actions, and those that every shard has.

A shard with E episodes of S steps in all holds

    obs          (S + E, ...)   one more than it has steps for each episode, the last observation included
    action       (S, ...)
    reward       (S,) float64, or (S, m) where rewards are vectors
    terminated   (S,) bool
    truncated    (S,) bool
    offsets      (E + 1,) int64: episode e has the steps `offsets[e]:offsets[e + 1]`
    episode      (E,) int64: its number in the data set
    seed         (E,) int64: what its env was reset with; -1 where that is not known
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
from vecenv import nest

DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
OF_EPISODES = {"episode": "<i8", "seed": "<i8", "env_id": "<i4"}
FLAGS = ("terminated", "truncated")
DEEPEST = 32
LARGEST = 2**48
"""The most bytes that an array may be declared with; numbers below stay far from the limits of int64."""


@dataclass(frozen=True)
class Column:
    """One array: the dtype, and the shape of a row."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Size of one row."""
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
        """That of episodes with such arrays `(rows, ...)`. Raises `DatasetError` where they cannot be stored."""
        trees = {"obs": named("obs", obs), "action": named("action", action)}
        arrays = {
            name: array for key, tree in (("obs", obs), ("action", action)) for name, array in _zip(trees[key], tree)
        }
        columns = {name: Column(stored_dtype(name, array), array.shape[1:]) for name, array in arrays.items()}
        columns["reward"] = Column(np.dtype("<f8"), reward.shape[1:])
        columns |= {flag: Column(np.dtype("|b1"), ()) for flag in FLAGS}
        return cls(trees["obs"], trees["action"], columns)

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
        return sum(each.row_bytes for each in self.shapes(steps, episodes).values())

    def as_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        arrays = {name: [each.dtype.str, list(each.shape)] for name, each in self.columns.items()}
        return {"obs": _as_lists(self.obs), "action": _as_lists(self.action), "arrays": arrays}

    @classmethod
    def from_json(cls, value: Any) -> Layout:
        """The layout of a manifest. Raises `DatasetError` where it is none."""
        if type(value) is not dict or value.keys() != {"obs", "action", "arrays"} or type(value["arrays"]) is not dict:
            raise DatasetError("its layout is no object with obs, action and arrays")
        obs, action = (_from_lists(value[key], key) for key in ("obs", "action"))
        columns = {name: _column(name, each) for name, each in value["arrays"].items()}
        if columns.keys() != {*nest.leaves(obs), *nest.leaves(action), "reward", *FLAGS}:
            raise DatasetError("the arrays of its layout are not those that its trees name")
        if columns["reward"].dtype != np.float64 or any(columns[flag] != Column(np.dtype("?"), ()) for flag in FLAGS):
            raise DatasetError("its layout has rewards that are not float64, or flags that are not bool")
        return cls(obs, action, columns)


def stored_dtype(name: str, array: np.ndarray) -> np.dtype:
    """The dtype that an array has in a file. Raises `DatasetError` where files of arrays have none for it."""
    if array.dtype.hasobject:
        raise DatasetError(f"{name} holds Python objects; only arrays of numbers can be stored")
    dtype = array.dtype.newbyteorder("<")
    if dtype.str not in DTYPES:
        raise DatasetError(f"{name} is {array.dtype}; arrays of bool, integers and floats up to 64 bits can be stored")
    return dtype


def named(prefix: str, tree: Any) -> Any:
    """A tree with the name of its array at each leaf.

    >>> named("obs", {"a": np.zeros(1), "b": (np.zeros(1),)})
    {'a': 'obs.0', 'b': ('obs.1',)}
    """
    if not isinstance(tree, (dict, tuple)):
        return prefix
    numbers = count()
    return nest.map(lambda _: f"{prefix}.{next(numbers)}", tree)


def _zip(names: Any, tree: Any) -> Iterator[tuple[str, np.ndarray]]:
    return zip(nest.leaves(names), nest.leaves(tree), strict=True)


def _as_lists(tree: Any) -> Any:
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise DatasetError(f"the keys of a Dict space are {list(tree)}; only text can be stored")
        return {key: _as_lists(child) for key, child in tree.items()}
    return [_as_lists(child) for child in tree] if isinstance(tree, tuple) else tree


def _from_lists(value: Any, prefix: str, depth: int = 0) -> Any:
    """The tree, with the names that its leaves must have."""
    tree = _tree(value, 0)
    if tree != named(prefix, tree):
        raise DatasetError(f"its layout names the arrays of {prefix} otherwise than {prefix}.0, {prefix}.1, ...")
    return tree


def _tree(value: Any, depth: int) -> Any:
    if depth > DEEPEST or not isinstance(value, (dict, list, str)):
        raise DatasetError("its layout has a tree that is nested too deeply, or has no names of arrays")
    if isinstance(value, dict):
        return {key: _tree(child, depth + 1) for key, child in value.items()}
    return tuple(_tree(child, depth + 1) for child in value) if isinstance(value, list) else value


def _column(name: str, value: Any) -> Column:
    if type(value) is not list or len(value) != 2 or value[0] not in DTYPES or type(value[1]) is not list:
        raise DatasetError(f"its layout gives {name[:80]!r} no dtype of numbers and shape, got {str(value)[:80]}")
    sizes = value[1]
    if len(sizes) > DEEPEST or not all(type(size) is int and 0 <= size < LARGEST for size in sizes):
        raise DatasetError(f"its layout gives {name[:80]!r} the shape {str(sizes)[:80]}")
    column = Column(np.dtype(value[0]), tuple(sizes))
    if column.row_bytes > LARGEST:
        raise DatasetError(f"its layout gives {name[:80]!r} rows of {column.row_bytes:,} bytes")
    return column
