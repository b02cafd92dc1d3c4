"""`Layout`: the arrays that hold the observations and actions of a batch of envs.

A leaf is a part of a nested observation or action, for example `obs["image"]`. Parts with a fixed shape are array
leaves. Other parts are object leaves, which are pickled: Text, Graph, Sequence, OneOf and custom spaces, parts whose
keys, shapes or dtypes differ between envs, and envs without a space. An action with an object leaf is pickled whole.
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
    """Array leaf. Error messages show its `path`, for example `obs['camera']`."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, path: str, shape: Sequence[int], dtype: Any) -> Leaf:
        """Build a leaf with numpy's own dtype object, so that `array.dtype is leaf.dtype` holds.

        The dtype of a space or pickle may be a copy.
        """
        return cls(path, tuple(shape), np.dtype(np.dtype(dtype).str))

    def __reduce__(self) -> Any:
        return Leaf.of, (self.path, self.shape, self.dtype.str)


@dataclass(frozen=True)
class ObjectLeaf:
    path: str
    is_text: bool = False
    """True if the elements of the space are texts, as of Text and of MiniGrid's MissionSpace."""


@dataclass(frozen=True)
class Layout:
    obs: Any
    action: Any


def space_tree(space: Any, path: str) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: space_tree(child, f"{path}[{key!r}]") for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(space_tree(child, f"{path}[{i}]") for i, child in enumerate(space.spaces))
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        assert space.shape is not None
        return Leaf.of(path, space.shape, space.dtype)
    return ObjectLeaf(path, is_text=getattr(getattr(space, "dtype", None), "kind", "") == "U")


def merge_trees(trees: Sequence[Any], path: str) -> Any:
    first = trees[0]
    if all(tree == first for tree in trees):
        return first
    if isinstance(first, dict) and all(isinstance(tree, dict) and tree.keys() == first.keys() for tree in trees):
        return {key: merge_trees([tree[key] for tree in trees], f"{path}[{key!r}]") for key in first}
    if isinstance(first, tuple) and all(isinstance(tree, tuple) and len(tree) == len(first) for tree in trees):
        return tuple(merge_trees([tree[i] for tree in trees], f"{path}[{i}]") for i in range(len(first)))
    return ObjectLeaf(path)


def common_tree(spaces_of_envs: Sequence[Any], path: str) -> Any:
    """Return the tree of leaves of a batch of envs with these spaces (`None` for an env without a space)."""
    return merge_trees([space_tree(space, path) for space in spaces_of_envs], path)


def common_layout(observation_spaces: Sequence[Any], action_spaces: Sequence[Any]) -> Layout:
    """Return the layout of a batch of envs with these spaces (`None` for an env without a space)."""
    obs, action = common_tree(observation_spaces, "obs"), common_tree(action_spaces, "action")
    leaves = list(nest.leaves(action))
    return Layout(obs, action if leaves and all(isinstance(leaf, Leaf) for leaf in leaves) else None)
