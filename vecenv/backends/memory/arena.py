"""`Arena`: memory that holds a batch of n envs, with a row per env. Processes can share the memory.

status      (n,)  uint8     operation that the parent requests, or the answer (see `ipc/opcodes.py`)
reward      (n,)  float64
terminated  (n,)  bool
truncated   (n,)  bool
seed        (n,)  int64     with `autoreset`: seed for the reset after an env's last step, or -1
owner       (n,)  int32     index of the worker that serves the env
action      (n, *shape)     an array per leaf of the action, if all are array leaves
obs         (n, *shape)     an array per array leaf of the observation
final       (n, *shape)     with `autoreset`: last observation of the episode that has ended
info        (n, 512)  uint8 an info of numbers and small arrays (see `infos.py`)

See `vecenv/layout.py` for array leaves and object leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.memory.infos import INFO_BYTES
from vecenv.backends.memory.shared_memory import PAGE
from vecenv.layout import Layout, Leaf


@dataclass
class Arena:
    status: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    seed: np.ndarray
    owner: np.ndarray
    action: Any
    """Tree of arrays, or `None` if actions are pickled."""
    obs: Any
    """Tree of arrays (n, *shape). An object leaf is an object array (n,), which processes do not share."""
    final: Any
    info: np.ndarray

    @classmethod
    def build(cls, layout: Layout, n: int, buffer: Any = None) -> Arena:
        if buffer is None:
            buffer = bytearray(arena_bytes(layout, n))
        offsets = iter(_plan(layout, n)[0])

        def array(leaf: Any) -> np.ndarray:
            if not isinstance(leaf, Leaf):
                return np.empty(n, dtype=object)
            return np.ndarray((n, *leaf.shape), leaf.dtype, buffer, next(offsets))

        status, reward, terminated, truncated, seed, owner = (array(leaf) for leaf in _SMALL)
        action = None if layout.action is None else nest.map(array, layout.action)
        obs, final = nest.map(array, layout.obs), nest.map(array, layout.obs)
        return cls(status, reward, terminated, truncated, seed, owner, action, obs, final, array(_INFO))

    def block(self, start: int, stop: int) -> Arena:
        rows = slice(start, stop)
        action = None if self.action is None else nest.take(self.action, rows)
        obs = nest.take(self.obs, rows)
        small = self.status[rows], self.reward[rows], self.terminated[rows], self.truncated[rows], self.seed[rows]
        final = nest.take(self.final, rows)
        return Arena(*small, self.owner[rows], action, obs, final, self.info[rows])

    def actions(self) -> list[np.ndarray]:
        return [self.seed, *([] if self.action is None else nest.leaves(self.action))]

    def put_actions(self, ids: np.ndarray | None, actions: Any) -> None:
        nest.put(self.action, ... if ids is None else ids, actions)

    def outputs(self) -> list[np.ndarray]:
        return [*_arrays(self.obs), self.reward, self.terminated, self.truncated]

    def finals(self) -> list[np.ndarray]:
        return _arrays(self.final)


class ColumnArena(Arena):
    """Arena of envs that a library steps together. Each round has new arrays, or tensors, instead of rows in memory."""

    def put_actions(self, ids: np.ndarray | None, actions: Any) -> None:
        """Keep the actions of all envs, in the order of their ids. `ids` is a permutation."""
        self.action = actions if ids is None else nest.take(actions, np.argsort(ids))


def _arrays(tree: Any) -> list[np.ndarray]:
    return [leaf for leaf in nest.leaves(tree) if leaf.dtype != object]


_SMALL = (
    Leaf("status", (), np.dtype(np.uint8)),
    Leaf("reward", (), np.dtype(np.float64)),
    Leaf("terminated", (), np.dtype(np.bool_)),
    Leaf("truncated", (), np.dtype(np.bool_)),
    Leaf("seed", (), np.dtype(np.int64)),
    Leaf("owner", (), np.dtype(np.int32)),
)
_INFO = Leaf("info", (INFO_BYTES,), np.dtype(np.uint8))


def _plan(layout: Layout, n: int) -> tuple[list[int], int, int]:
    """Return the offset of each array, the size without `final` and `info`, and the full size, all in bytes.

    Offsets are multiples of a page, so that the caller can register an array in shared memory with a GPU.
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
    return _plan(layout, n)[2]


def used_bytes(layout: Layout, n: int) -> int:
    return _plan(layout, n)[1]
