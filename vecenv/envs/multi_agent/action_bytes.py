"""ActionBytes: the actions of several agents as one row of bytes, so that they travel as one array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.memory.layout import Leaf, space_tree
from vecenv.engine.arguments.actions import batch_actions


@dataclass(frozen=True)
class _Field:
    """The bytes `start` to `stop - 1` of a row hold this part of an action."""

    leaf: Leaf
    start: int
    stop: int


class ActionBytes:
    """Where the action of each agent lies in a row of `size` bytes.

    TypeError for an action space with a part that has no fixed shape.

    >>> from gymnasium import spaces
    >>> layout = ActionBytes({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,))})
    >>> rows = layout.empty(2)
    >>> layout.pack(rows, "b", [[0.5, 1], [0, -1]], ids=[0, 1])
    >>> layout.unpack(rows[1], "b")
    array([ 0., -1.], dtype=float32)
    """

    def __init__(self, action_spaces: Mapping[Any, Any]) -> None:
        self.size = 0
        self._fields = {
            agent: nest.map(self._place, space_tree(space, f"the action of agent {agent!r}"))
            for agent, space in action_spaces.items()
        }

    def _place(self, leaf: Any) -> _Field:
        if not isinstance(leaf, Leaf):
            raise TypeError(f"{leaf.path} has no fixed shape in its action space, which is needed in a batch")
        start = self.size
        self.size += leaf.dtype.itemsize * int(np.prod(leaf.shape, dtype=np.int64))
        return _Field(leaf, start, self.size)

    def empty(self, k: int) -> np.ndarray:
        """Rows of zeros for `k` envs: uint8 (k, size)."""
        return np.zeros((k, self.size), dtype=np.uint8)

    def pack(self, rows: np.ndarray, agent: Any, batch: Any, ids: Sequence[int]) -> None:
        """Write the actions of one agent in the envs `ids`, an array (k, ...) or a tree of such, into `rows`.

        ValueError for a wrong shape or number and TypeError for a wrong dtype, with the agent and the env named.
        """
        _pack(rows, self._fields[agent], batch, ids, agent)

    def unpack(self, row: np.ndarray, agent: Any) -> Any:
        """The action of one agent: what `pack` wrote, in the dtypes of its space."""
        return nest.map(lambda field: _read(row, field), self._fields[agent])


def _pack(rows: np.ndarray, fields: Any, batch: Any, ids: Sequence[int], agent: Any) -> None:
    if isinstance(fields, _Field):
        array = _fitting(batch, fields.leaf, ids)
        rows[:, fields.start : fields.stop] = np.ascontiguousarray(array).view(np.uint8).reshape(len(ids), -1)
        return
    keys = list(fields) if isinstance(fields, dict) else list(range(len(fields)))
    if isinstance(fields, dict):
        fits = isinstance(batch, Mapping) and batch.keys() == fields.keys()
    else:
        fits = isinstance(batch, tuple) and len(batch) == len(fields)
    if not fits:
        form = f"a dict with the keys {keys}" if isinstance(fields, dict) else f"a tuple of {len(keys)}"
        raise ValueError(
            f"the action of agent {agent!r} for envs {list(ids)} must be {form}, each a batch; got {batch!r}"
        )
    for key in keys:
        _pack(rows, fields[key], batch[key], ids, agent)


def _fitting(batch: Any, leaf: Leaf, ids: Sequence[int]) -> np.ndarray:
    """`batch` as an array (k, *shape) of the leaf's dtype."""
    try:
        array = batch_actions(batch, ids, leaf)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{leaf.path}: {error}") from None
    if isinstance(array, np.ndarray):
        return array
    for i, row in zip(ids, array, strict=True):
        shape = getattr(row, "shape", None) if hasattr(row, "shape") else np.shape(np.array(row, dtype=object))
        if shape != leaf.shape:
            raise ValueError(f"{leaf.path} for env {i} has the shape {shape}, expected {leaf.shape}: {row!r}")
    raise TypeError(f"{leaf.path} for envs {list(ids)} cannot become {leaf.dtype.name}: {batch!r}")


def _read(row: np.ndarray, field: _Field) -> Any:
    value = row[field.start : field.stop].copy().view(field.leaf.dtype)
    return value.reshape(field.leaf.shape) if field.leaf.shape else value[0]
