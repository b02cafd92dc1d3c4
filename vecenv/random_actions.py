"""Random actions: `sample_action` draws only legal actions if the env gives an action mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.nest import as_array

MASK_FORMS = """\
A mask is None (all actions are legal), or
  Discrete(n): an array of n bools or of n numbers 0 and 1
  MultiDiscrete: one flat array with the masks of all parts in turn, or a tuple with an array per part
  MultiBinary: an array of the space's shape: 0 and 1 set the bit, 2 leaves the bit random
  Dict, Tuple: a dict or tuple with a mask per part"""


def sample_action(space: spaces.Space[Any], obs: Any, info: Any) -> Any:
    """Draw an action that is legal after `obs` and `info` of an env. The mask in `info` replaces the mask in `obs`.

    >>> sample_action(spaces.Discrete(4), None, {"action_mask": np.array([0, 0, 1, 0], np.int8)})
    np.int64(2)
    """
    return draw_action(space, find_mask(space, obs, info))


def sample_actions(spaces: Sequence[Any], obs: Any, infos: Any) -> Any:
    """Return legal actions: an array, as a policy does, or a list if they have different dtypes or shapes."""
    actions = [sample_action(space, nest.take(obs, i), infos[i]) for i, space in enumerate(spaces)]
    kinds = {(getattr(action, "dtype", None), getattr(action, "shape", None)) for action in actions}
    return np.stack(actions) if len(kinds) == 1 and isinstance(actions[0], (np.ndarray, np.generic)) else actions


def seed_spaces(spaces: Sequence[Any]) -> None:
    for i, space in enumerate(spaces):
        if space is None:
            raise ValueError(f"env {i} has no action_space, which is needed to draw random actions")
        space.seed(i)


def find_mask(space: spaces.Space[Any], obs: Any, info: Any) -> Any:
    """Return the mask that an env gives in `info["action_mask"]` or its observation (see `mask_in`), or None."""
    found = info.get("action_mask") if isinstance(info, dict) else None
    return mask_in(obs, space) if found is None else found


def mask_in(obs: Any, space: spaces.Space[Any], *rows: int) -> Any:
    """Return the mask in an observation, or in a batch of `rows` observations, or None.

    The key is "action_mask". For Discrete actions, the key may also be "mask", as in PettingZooEnv.
    """
    if not isinstance(obs, dict):
        return None
    found: Any = obs.get("action_mask")
    if found is None:
        found = obs.get("mask")
        fits = isinstance(space, spaces.Discrete) and getattr(found, "shape", ()) == (*rows, space.n)
        if not fits or found.dtype.kind not in "bui":
            return None
    return found


def draw_action(space: spaces.Space[Any], mask: Any) -> Any:
    """Draw an action that `mask` allows. If it allows none, return the first action.

    Raises:
        ValueError: the mask does not fit the space. The message has the forms of a mask.
    """
    if mask is None:
        return space.sample()
    try:
        if isinstance(space, spaces.Discrete):
            allowed = as_array(mask)
            if allowed.shape == (space.n,) and allowed.dtype.kind in "biuf":
                legal = allowed.nonzero()[0]
                return space.start + space.dtype.type(legal[space.np_random.integers(len(legal))] if len(legal) else 0)
        return space.sample(_as_sampled(space, mask))
    except Exception as error:
        raise ValueError(f"an action mask does not fit {space}: {mask!r} ({error}). {MASK_FORMS}") from None


def _as_sampled(space: spaces.Space[Any], mask: Any) -> Any:
    """Return the mask in gymnasium's types. A MultiDiscrete mask may be flat. Dict masks may lack entries."""
    if mask is None:
        return None
    if isinstance(space, spaces.Dict):
        return {key: _as_sampled(part, mask.get(key)) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_as_sampled(part, each) for part, each in zip(space.spaces, mask, strict=True))
    if isinstance(space, spaces.MultiDiscrete) and not isinstance(mask, (tuple, list)):
        flat = as_array(mask)
        if flat.shape != (space.nvec.sum(),):
            raise ValueError(f"it has the shape {flat.shape}")
        mask = tuple(np.split(flat, np.cumsum(space.nvec.ravel())[:-1]))
    return nest.map(lambda leaf: as_array(leaf).astype(np.int8), mask)
