"""Batches of spaces, actions and observations, as in gymnasium's `VectorEnv`.

vecenv's batches of arrays already have gymnasium's form. gymnasium's functions convert batches of other spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space, concatenate, create_empty_array, iterate

from vecenv import nest
from vecenv.actions import on_host

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def check_observation_mode(mode: Any) -> None:
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            raise TypeError(
                f"Expected both elements of observation_mode to be Spaces, got {type(mode[0])} and {type(mode[1])}; "
                "pass (batched space, single space)"
            )
    elif not isinstance(mode, str) or mode not in ("same", "different"):
        raise ValueError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}"
        )


def observation_spaces(mode: Any, found: Sequence[Any], cls: str) -> tuple[Any, Any]:
    """Return (batched, single) observation spaces of envs with the spaces `found`."""
    first = found[0]
    if mode == "same":
        for i, space in enumerate(found):
            if space != first:
                raise RuntimeError(
                    f"{cls}(..., observation_mode='same') however the sub-environments observation spaces are not "
                    f"equivalent: env {i} has {space}, env 0 has {first}. If this is intentional, use "
                    "`observation_mode='different'` instead."
                )
        return batch_space(first, len(found)), first
    batched, single = mode if isinstance(mode, tuple) else (_batch_of_different(found), first)
    for i, space in enumerate(found):
        if not is_space_dtype_shape_equiv(space, single):
            raise RuntimeError(
                f"{cls}(..., observation_mode='different' or custom space) however the sub-environments observation "
                f"spaces do not share a common shape and dtype: env {i} has {space}, expected the like of {single}."
            )
    return batched, single


def _batch_of_different(found: Sequence[Any]) -> Any:
    try:
        return batch_differing_spaces(found)
    except (AssertionError, TypeError, ValueError) as error:
        i = next((i for i, space in enumerate(found) if not is_space_dtype_shape_equiv(space, found[0])), None)
        if i is not None:
            error.args = (f"{error}. Env {i} has {found[i]}, env 0 has {found[0]}.",)
        raise


def action_spaces(found: Sequence[Any]) -> tuple[Any, Any]:
    for i, space in enumerate(found):
        if space != found[0]:
            raise RuntimeError(
                f"Some environments have an action space different from `{found[0]}`. In order to batch actions, the "
                f"action spaces from all environments must be equal. Env {i} has `{space}`."
            )
    return batch_space(found[0], len(found)), found[0]


def takes_arrays(batched: Any, single: Any) -> bool:
    return _is_array_space(single) and _is_gymnasiums(iterate, batched)


def is_tree_of_arrays(space: Any) -> bool:
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and _is_joined_by_gymnasium(space):
        children = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return all(is_tree_of_arrays(child) for child in children)
    return _is_array_space(space)


def _is_array_space(space: Any) -> bool:
    """Return True if gymnasium's own functions batch the space as an array. Programs may register other functions."""
    return isinstance(space, _ARRAYS) and _is_joined_by_gymnasium(space)


def _is_joined_by_gymnasium(space: Any) -> bool:
    return _is_gymnasiums(concatenate, space) and _is_gymnasiums(create_empty_array, space)


def _is_gymnasiums(function: Any, space: Any) -> bool:
    return bool(function.dispatch(type(space)).__module__ == function.__module__)


def split_actions(actions: Any, batched: Any, single: Any, as_arrays: bool) -> Any:
    """Return `actions` as a batch or a list of actions. `as_arrays` is the result of `takes_arrays`."""
    if as_arrays:
        if hasattr(actions, "__len__") and getattr(actions, "ndim", True):
            return actions
        try:
            return list(actions)
        except TypeError:
            raise TypeError(
                f"Unable to iterate over the following elements: {actions}; pass one action per env"
            ) from None
    if isinstance(single, spaces.Dict) and isinstance(actions, (list, tuple)):
        return list(actions)
    return list(iterate(batched, on_host(actions)))


def empty_batch(single: Any, n: int) -> Any:
    return create_empty_array(single, n=n, fn=np.zeros)


def row_joiner(space: Any, n: int) -> Callable[[Any], Any]:
    """Return a function that converts a batch to gymnasium's form. Unlike `join_rows`, it does not copy arrays."""
    gymnasiums = _is_joined_by_gymnasium(space)
    if gymnasiums and isinstance(space, spaces.Dict):
        parts = {key: row_joiner(child, n) for key, child in space.spaces.items()}
        return lambda obs: {key: join(obs[key]) for key, join in parts.items()}
    if gymnasiums and isinstance(space, spaces.Tuple):
        children = [row_joiner(child, n) for child in space.spaces]
        return lambda obs: tuple(join(part) for join, part in zip(children, obs, strict=True))
    is_array = _is_array_space(space)

    def join(obs: Any) -> Any:
        if gymnasiums and is_array != (obs.dtype == object):  # arrays stay arrays, and object arrays become tuples
            return obs if is_array else tuple(obs.tolist())
        return join_rows(obs, space, n, empty_batch(space, n))

    return join


def join_rows(obs: Any, single: Any, n: int, out: Any) -> Any:
    return concatenate(single, [nest.take(obs, i) for i in range(n)], out)
