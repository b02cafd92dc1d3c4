"""The arena: one contiguous array for each leaf of the batch, all in one block of memory that may be shared.

status      (n,)  uint8     what each env is asked to do, or that it has answered (see `opcodes`)
reward      (n,)  float64
terminated  (n,)  bool
truncated   (n,)  bool
action      (n, *shape)     for each leaf of the action, where all are array leaves
obs         (n, *shape)     for each array leaf of the observation
final       (n, *shape)     the last observation of an env that was reset in the round of its last step
info        (n, 512)  uint8 an info of numbers and small arrays (see `info_rows`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.memory.infos import INFO_BYTES
from vecenv.backends.memory.layout import Layout, Leaf
from vecenv.backends.memory.shared_memory import PAGE


@dataclass
class Arena:
    """The arrays of a batch, or of a block of its envs."""

    status: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
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

        status, reward, terminated, truncated = (array(leaf) for leaf in _SMALL)
        action = None if layout.action is None else nest.map(array, layout.action)
        obs, final = nest.map(array, layout.obs), nest.map(array, layout.obs)
        return cls(status, reward, terminated, truncated, action, obs, final, array(_INFO))

    def block(self, start: int, stop: int) -> Arena:
        """The rows of envs `start` .. `stop - 1`, as views."""
        rows = slice(start, stop)
        action = None if self.action is None else nest.take(self.action, rows)
        obs = nest.take(self.obs, rows)
        flags = self.terminated[rows], self.truncated[rows]
        final = nest.take(self.final, rows)
        return Arena(self.status[rows], self.reward[rows], *flags, action, obs, final, self.info[rows])

    def actions(self) -> list[np.ndarray]:
        """The arrays of the action; none where actions travel as objects."""
        return [] if self.action is None else list(nest.leaves(self.action))

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
