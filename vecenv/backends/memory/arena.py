"""`Arena`: one array per leaf of the batch, all in one block of memory that processes can share.

status      (n,)  uint8     what each env is asked to do, or that it has answered (see `opcodes`)
reward      (n,)  float64
terminated  (n,)  bool
truncated   (n,)  bool
action      (n, *shape)     for each leaf of the action, where all are array leaves
obs         (n, *shape)     for each array leaf of the observation
final       (n, *shape)     the last observation of an env that was reset in the round of its last step
info        (n, 512)  uint8 an info of numbers and small arrays (see `infos`)

A layout has one array leaf for each part of an observation or action with a fixed shape. Spaces without one (Text,
Graph, Sequence, OneOf, custom ones), envs without a space and parts in which the envs of a batch differ are object
leaves: their values travel pickled, the other leaves of the same observation do not. An action with an object leaf
travels pickled as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.backends.memory.infos import INFO_BYTES
from vecenv.backends.memory.shared_memory import PAGE


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


@dataclass
class Arena:
    """The arrays of a batch, or of a block of its envs."""

    status: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    seed: np.ndarray
    """With which an env is reset in the round of its last step; -1: with none."""
    action: Any
    """Tree of arrays (n, *shape), None where actions travel as objects."""
    obs: Any
    """Tree of arrays (n, *shape); an object leaf is an object array (n,), which is never shared."""
    final: Any
    """A tree like `obs`, whose object leaves are not used."""
    info: np.ndarray

    @classmethod
    def build(cls, layout: Layout, n: int, buffer: Any = None) -> Arena:
        """The arena of `n` envs on `buffer` (`arena_bytes` long), or on fresh private memory."""
        if buffer is None:
            buffer = bytearray(arena_bytes(layout, n))
        offsets = iter(_plan(layout, n)[0])

        def array(leaf: Any) -> np.ndarray:
            if not isinstance(leaf, Leaf):
                return np.empty(n, dtype=object)
            return np.ndarray((n, *leaf.shape), leaf.dtype, buffer, next(offsets))

        status, reward, terminated, truncated, seed = map(array, _SMALL)
        action = None if layout.action is None else nest.map(array, layout.action)
        obs, final = nest.map(array, layout.obs), nest.map(array, layout.obs)
        return cls(status, reward, terminated, truncated, seed, action, obs, final, array(_INFO))

    def block(self, start: int, stop: int) -> Arena:
        """The rows of envs `start` .. `stop - 1`, as views."""
        rows = slice(start, stop)
        action = None if self.action is None else nest.take(self.action, rows)
        obs = nest.take(self.obs, rows)
        small = self.status[rows], self.reward[rows], self.terminated[rows], self.truncated[rows], self.seed[rows]
        final = nest.take(self.final, rows)
        return Arena(*small, action, obs, final, self.info[rows])

    def actions(self) -> list[np.ndarray]:
        """The arrays that hosts read: the seeds, and those of the action, unless actions travel as objects."""
        return [self.seed, *([] if self.action is None else nest.leaves(self.action))]

    def outputs(self) -> list[np.ndarray]:
        """The arrays that hosts write, other than `status` and object leaves."""
        return [*_arrays(self.obs), self.reward, self.terminated, self.truncated]

    def finals(self) -> list[np.ndarray]:
        """The arrays of the last observations, other than object leaves."""
        return _arrays(self.final)


def _arrays(tree: Any) -> list[np.ndarray]:
    return [leaf for leaf in nest.leaves(tree) if leaf.dtype != object]


_SMALL = (
    Leaf("status", (), np.dtype(np.uint8)),
    Leaf("reward", (), np.dtype(np.float64)),
    Leaf("terminated", (), np.dtype(np.bool_)),
    Leaf("truncated", (), np.dtype(np.bool_)),
    Leaf("seed", (), np.dtype(np.int64)),
)
_INFO = Leaf("info", (INFO_BYTES,), np.dtype(np.uint8))


def _plan(layout: Layout, n: int) -> tuple[list[int], int, int]:
    """The offset of each array, of the end of those that every round uses, and of the end of all.

    Arrays start on pages, so that each can be registered with a GPU.
    """
    action = [] if layout.action is None else nest.leaves(layout.action)
    obs = [leaf for leaf in nest.leaves(layout.obs) if isinstance(leaf, Leaf)]
    used = [*_SMALL, *action, *obs]
    offsets = [0]
    for leaf in (*used, *obs, _INFO):
        size = n * leaf.dtype.itemsize * int(np.prod(leaf.shape, dtype=np.int64))
        offsets.append(offsets[-1] + -(-size // PAGE) * PAGE)
    return offsets, offsets[len(used)], offsets[-1]


def arena_bytes(layout: Layout, n: int) -> int:
    """The bytes that the arena of `n` envs takes."""
    return _plan(layout, n)[2]


def used_bytes(layout: Layout, n: int) -> int:
    """Bytes of them that every round uses: behind those are last observations (of autoreset) and infos."""
    return _plan(layout, n)[1]
