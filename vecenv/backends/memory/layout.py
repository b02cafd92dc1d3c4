"""Layout of a row of the batch: one array leaf for each part of an observation or action with a fixed shape.

Spaces without a fixed shape (Text, Graph, Sequence, OneOf, custom ones), envs without a space and parts in which the
envs of a batch differ are object leaves: their values travel pickled, the other leaves of the same observation do
not. An action with an object leaf travels pickled as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest


@dataclass(frozen=True)
class Leaf:
    """A part of an observation or an action with one shape and dtype; `path` names it in messages, e.g.
    `obs['camera']`.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, path: str, shape: Sequence[int], dtype: Any) -> Leaf:
        """A leaf whose dtype `is` that of every array of this dtype: numpy keeps one object for each plain dtype, but
        spaces and pickles have copies. It is found by its name.
        """
        return cls(path, tuple(shape), np.dtype(np.dtype(dtype).str))

    def __reduce__(self) -> Any:
        return Leaf.of, (self.path, self.shape, self.dtype.str)


@dataclass(frozen=True)
class ObjectLeaf:
    """A part that is passed on as a Python object."""

    path: str


@dataclass(frozen=True)
class Layout:
    """The observation of all envs of a batch as a tree of leaves, and their action as a tree of array leaves (None
    where a part of it is an object leaf).
    """

    obs: Any
    action: Any


def space_tree(space: Any, path: str) -> Any:
    """The tree of leaves of one space."""
    if isinstance(space, spaces.Dict):
        return {key: space_tree(child, f"{path}[{key!r}]") for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(space_tree(child, f"{path}[{i}]") for i, child in enumerate(space.spaces))
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        assert space.shape is not None
        return Leaf.of(path, space.shape, space.dtype)
    return ObjectLeaf(path)


def merge_trees(trees: Sequence[Any], path: str) -> Any:
    """The tree that fits all `trees`: a part in which they differ becomes an object leaf."""
    first = trees[0]
    if all(tree == first for tree in trees):
        return first
    if isinstance(first, dict) and all(isinstance(tree, dict) and tree.keys() == first.keys() for tree in trees):
        return {key: merge_trees([tree[key] for tree in trees], f"{path}[{key!r}]") for key in first}
    if isinstance(first, tuple) and all(isinstance(tree, tuple) and len(tree) == len(first) for tree in trees):
        return tuple(merge_trees([tree[i] for tree in trees], f"{path}[{i}]") for i in range(len(first)))
    return ObjectLeaf(path)


def common_layout(observation_spaces: Sequence[Any], action_spaces: Sequence[Any]) -> Layout:
    """The layout of a batch of envs with these spaces (None for an env that has none)."""
    obs = merge_trees([space_tree(space, "obs") for space in observation_spaces], "obs")
    action = merge_trees([space_tree(space, "action") for space in action_spaces], "action")
    leaves = list(nest.leaves(action))
    return Layout(obs, action if leaves and all(isinstance(leaf, Leaf) for leaf in leaves) else None)
