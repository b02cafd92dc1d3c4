"""Uniform random actions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from collector.policy.action_trees import common_layout, is_of_arrays, parts
from vecenv import nest


class RandomPolicy:
    """Uniform random actions, reproducible whatever the number of envs that step together.

    Env i gets the actions that `action_spaces[i].sample()` would give, one after another, drawn ahead in blocks
    from a copy of the space: the space that was passed in is not advanced. Spaces: Box, Discrete, MultiDiscrete,
    MultiBinary, and Dict and Tuple of these, whose actions are a dict or tuple of arrays; others raise `TypeError`.

    Observations that are a dict with an `action_mask` (or `mask`, as PettingZooEnv has it), bool (k, n), of Discrete
    actions get one of the legal ones, each as likely as the others; the first action where none is.

    Example::

        policy = RandomPolicy(venv.action_space)
        actions = policy(obs)                     # one for each env
        actions = policy(obs, env_id=[0, 3])      # for these two: `obs` has two rows
    """

    BLOCK = 256

    def __init__(self, action_spaces: Sequence[spaces.Space[Any]]) -> None:
        for env_id, space in enumerate(action_spaces):
            if not is_of_arrays(space):
                raise TypeError(
                    f"random actions are drawn from array spaces, and Dict and Tuple of these; that of env {env_id} is "
                    f"{space}"
                )
            first = action_spaces[0]
            if not common_layout([first, space]):
                raise TypeError(
                    f"random actions need spaces of one shape and dtype; that of env {env_id} is {space}, "
                    f"that of env 0 is {first}"
                )
        self._spaces = [copy.deepcopy(space) for space in action_spaces]
        self._ids = np.arange(len(self._spaces))
        self._block: Any = None
        self._used = np.full(len(self._spaces), self.BLOCK)
        self._sure = 0
        """Actions that every env can still take before one of the blocks is used up."""

    def __call__(self, obs: Any, env_id: Any = None) -> Any:
        """One action for each env of `env_id` (None: all): `(k, ...)`, of the spaces' dtype; or a tree of these."""
        ids = self._ids if env_id is None else np.asarray(env_id)
        if (masks := masks_of(obs, self._spaces[0], len(ids))) is not None:
            drawn = [draw_legal(self._spaces[i], mask) for i, mask in zip(ids.tolist(), masks, strict=True)]
            return np.array(drawn, self._spaces[0].dtype)
        if self._sure == 0:
            for i in np.flatnonzero(self._used == self.BLOCK).tolist():
                self._refill(i)
            self._sure = self.BLOCK - int(self._used.max())
        self._sure -= 1
        actions = nest.take(self._block, (ids, self._used[ids]))
        self._used[ids] += 1
        return actions

    def draw_like(self, action_spaces: Sequence[spaces.Space[Any]]) -> None:
        """Draw from now on what the random streams of these spaces, which have been seeded, would give."""
        for own, seeded in zip(self._spaces, action_spaces, strict=True):
            for (_, part), (_, given) in zip(parts(own), parts(seeded), strict=True):
                part.np_random.bit_generator.state = given.np_random.bit_generator.state
        self._used[:], self._sure = self.BLOCK, 0

    def _refill(self, env_id: int) -> None:
        drawn = draw(self._spaces[env_id], self.BLOCK)
        if self._block is None:
            self._block = nest.map(lambda rows: np.empty((len(self._spaces), *rows.shape), rows.dtype), drawn)
        nest.put(self._block, env_id, drawn)
        self._used[env_id] = 0


def draw(space: spaces.Space[Any], size: int) -> Any:
    """What `size` calls of `space.sample()` give, stacked: `(size, ...)`, or a tree of these; in one draw where the
    space allows it.
    """
    if isinstance(space, spaces.Discrete) and space.dtype.itemsize >= 4:  # smaller ones share a draw of 32 bits
        return space.start + space.np_random.integers(space.n, size=size, dtype=space.dtype.type)
    if isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f" and space.is_bounded():
        return space.np_random.uniform(space.low, space.high, (size, *space.shape)).astype(space.dtype)
    return nest.stack([space.sample() for _ in range(size)])


def masks_of(obs: Any, space: spaces.Space[Any], rows: int) -> np.ndarray | None:
    """The legal actions of each row, bool `(rows, n)`, where observations say which: under "action_mask" or "mask"."""
    if obs.__class__ is not dict or not isinstance(space, spaces.Discrete):
        return None
    found = obs.get("action_mask", obs.get("mask"))
    masks = None if found is None else np.asarray(found)
    if masks is None or masks.dtype.kind not in "bui" or masks.shape != (rows, space.n):
        return None
    return masks.astype(np.bool_)


def draw_legal(space: spaces.Space[Any], mask: np.ndarray) -> int:
    """One of the legal actions of a Discrete space, each as likely as the others; the first action where none is."""
    assert isinstance(space, spaces.Discrete)
    legal = mask.nonzero()[0]
    return int(space.start) + (int(legal[space.np_random.integers(len(legal))]) if len(legal) else 0)
