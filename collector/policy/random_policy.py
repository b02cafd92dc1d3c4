"""Random actions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from collector.policy.action_trees import action_layouts, action_parts, is_of_arrays
from vecenv import nest
from vecenv.random_actions import draw_action, mask_in


class RandomPolicy:
    """Policy that draws random actions. The actions of an env do not depend on which other envs step.

    Without masks, env i gets the results of consecutive `action_spaces[i].sample()` calls, on a copy of the space.
    Spaces are Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these. Other spaces, or spaces
    with different shapes or dtypes, raise `TypeError`.

    If observations are a dict with `action_mask`, per row a mask for `space.sample(mask)`, the policy draws only
    legal actions, with equal probability. For Discrete actions, the key may also be `mask` (as in PettingZooEnv), with
    a bool or integer per row and action. If no action is legal, the policy returns the first action.

    Example::

        policy = RandomPolicy(venv.action_space)
        actions = policy(obs)                     # an action per env
        actions = policy(obs, env_id=[0, 3])      # for these two envs: `obs` has two rows
    """

    BLOCK = 128
    """Number of actions drawn together for an env. A new seed discards unused actions."""

    def __init__(self, action_spaces: Sequence[spaces.Space[Any]]) -> None:
        for env_id, space in enumerate(action_spaces):
            if not is_of_arrays(space):
                raise TypeError(
                    "random actions need Box, Discrete, MultiDiscrete or MultiBinary spaces, or Dict and Tuple of "
                    f"these; env {env_id} has {space}"
                )
            first = action_spaces[0]
            if not action_layouts([first, space]):
                raise TypeError(
                    f"random actions need spaces of one shape and dtype; env {env_id} has {space}, env 0 has {first}"
                )
        self._spaces = [copy.deepcopy(space) for space in action_spaces]
        self._ids = np.arange(len(self._spaces))
        self._block: Any = None
        self._used = np.full(len(self._spaces), self.BLOCK)
        self._left = 0
        """Each env has at least this many unused actions."""

    def __call__(self, obs: Any, env_id: Any = None, masks: Sequence[Any] | None = None) -> Any:
        """Return actions of the envs `env_id` (`None`: all): `(k, ...)` in the spaces' dtype, or a tree of such arrays.

        masks: per row, a mask to replace the mask in `obs`; `None` keeps it. Raises `ValueError` if one does not fit.
        """
        ids = self._ids if env_id is None else np.asarray(env_id)
        found = masks_of(obs, self._spaces[0], len(ids))
        if masks is not None and found is not None:
            masks = [own if mask is None else mask for mask, own in zip(masks, found, strict=True)]
        elif masks is None:
            masks = found
        if masks is None:
            return self._from_blocks(ids)
        rows = enumerate(zip(ids.tolist(), masks, strict=True))
        return nest.stack(
            [
                nest.take(self._from_blocks(ids[row : row + 1]), 0)
                if mask is None
                else draw_action(self._spaces[env], mask)
                for row, (env, mask) in rows
            ]
        )

    def _from_blocks(self, ids: np.ndarray) -> Any:
        if self._left <= 0:
            # Refill only envs in `ids`. A refill advances the env's random stream, so it changes later masked actions.
            for env in ids[self._used[ids] == self.BLOCK].tolist():
                self._refill(env)
            self._left = self.BLOCK - int(self._used.max())
        self._left -= 1
        actions = nest.take(self._block, (ids, self._used[ids]))
        self._used[ids] += 1
        return actions

    def seed(self, env_ids: np.ndarray, seeds: Sequence[int]) -> None:
        """Restart the random streams of these envs with `space.seed(seed)`."""
        for env, seed in zip(env_ids.tolist(), seeds, strict=True):
            self._spaces[env].seed(seed)
        self._used[env_ids], self._left = self.BLOCK, 0

    def draw_like(self, action_spaces: Sequence[spaces.Space[Any]]) -> None:
        """Copy the random states of `action_spaces` into the policy's spaces."""
        for own, seeded in zip(self._spaces, action_spaces, strict=True):
            for (_, part), (_, given) in zip(action_parts(own), action_parts(seeded), strict=True):
                part.np_random.bit_generator.state = given.np_random.bit_generator.state
        self._used[:], self._left = self.BLOCK, 0

    def _refill(self, env_id: int) -> None:
        drawn = draw_many(self._spaces[env_id], self.BLOCK)
        if self._block is None:
            n = len(self._spaces)
            self._block = nest.map(lambda rows: np.empty((n, self.BLOCK, *rows.shape[1:]), rows.dtype), drawn)
        nest.put(self._block, env_id, drawn)
        self._used[env_id] = 0


def draw_many(space: spaces.Space[Any], size: int) -> Any:
    """Draw the same actions as `size` calls of `space.sample()`, stacked."""
    if isinstance(space, spaces.Dict):
        return {key: draw_many(part, size) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(draw_many(part, size) for part in space.spaces)
    # With smaller dtypes, actions would differ, because numpy cuts one 32-bit draw into several numbers.
    if isinstance(space, spaces.Discrete) and space.dtype.itemsize >= 4:
        return space.start + space.np_random.integers(space.n, size=size, dtype=space.dtype.type)
    if isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f" and space.is_bounded():
        return space.np_random.uniform(space.low, space.high, (size, *space.shape)).astype(space.dtype)
    return nest.stack([space.sample() for _ in range(size)])


def masks_of(obs: Any, space: spaces.Space[Any], rows: int) -> list[Any] | None:
    found = mask_in(obs, space, rows)
    return None if found is None else [nest.take(found, row) for row in range(rows)]
