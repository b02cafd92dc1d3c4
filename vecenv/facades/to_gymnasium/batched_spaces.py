"""Batched spaces: what gymnasium calls the spaces of a vector env, and the data that belongs to them.

Whatever is not an array goes through gymnasium's own functions (`batch_space`, `iterate`, `create_empty_array`,
`concatenate`), because users register their spaces with these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    concatenate,
    create_empty_array,
    iterate,
)

from vecenv import nest
from vecenv.engine.arguments.actions import on_host
from vecenv.facades.to_gymnasium.space_errors import SpaceErrors, space_error

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def observation_spaces(mode: Any, found: Sequence[Any], errors: SpaceErrors, cls: str) -> tuple[Any, Any]:
    """(batched, single) observation space of envs with the spaces `found`.

    RuntimeError if `mode` does not fit them; where mode "different" finds no common batch, the error of gymnasium's
    `batch_differing_spaces`, with the env named.
    """
    _check_present("observation_space", found)
    first = found[0]
    if mode == "same":
        for i, space in enumerate(found):
            if space != first:
                raise space_error(errors.unequal_observations, cls, i, space, first)
        return batch_space(first, len(found)), first
    batched, single = mode if isinstance(mode, tuple) else (_batch_of_different(found), first)
    for i, space in enumerate(found):
        if not is_space_dtype_shape_equiv(space, single):
            raise space_error(errors.unlike_observations, cls, i, space, single)
    return batched, single


def _batch_of_different(found: Sequence[Any]) -> Any:
    try:
        return batch_differing_spaces(found)
    except (AssertionError, TypeError, ValueError) as error:
        i = next((i for i, space in enumerate(found) if not is_space_dtype_shape_equiv(space, found[0])), None)
        if i is not None:
            error.args = (f"{error}. Env {i} has {found[i]}, env 0 has {found[0]}.",)
        raise


def action_spaces(found: Sequence[Any], errors: SpaceErrors, cls: str) -> tuple[Any, Any]:
    """(batched, single) action space of envs with the spaces `found`; RuntimeError if they differ."""
    _check_present("action_space", found)
    for i, space in enumerate(found):
        if space != found[0]:
            raise space_error(errors.unequal_actions, cls, i, space, found[0])
    return batch_space(found[0], len(found)), found[0]


def _check_present(name: str, found: Sequence[Any]) -> None:
    for i, space in enumerate(found):
        if not isinstance(space, Space):
            raise TypeError(f"env {i} has the {name} {space!r}; gymnasium's VectorEnv needs a gymnasium Space")


def is_array_space(space: Any) -> bool:
    """Whether gymnasium, too, makes one array of a batch: a user may have registered other functions for the space."""
    return isinstance(space, _ARRAYS) and _is_joined_by_gymnasium(space)


def is_tree_of_arrays(space: Any) -> bool:
    """Whether the batch of a space is an array, or a dict or tuple of such."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and _is_joined_by_gymnasium(space):
        children = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return all(is_tree_of_arrays(child) for child in children)
    return is_array_space(space)


def _is_joined_by_gymnasium(space: Any) -> bool:
    return _is_gymnasiums(concatenate, space) and _is_gymnasiums(create_empty_array, space)


def _is_gymnasiums(function: Any, space: Any) -> bool:
    return bool(function.dispatch(type(space)).__module__ == function.__module__)


class ActionSplitter:
    """Turns the actions of a call into what the engine takes: one array, or a list of one action an env."""

    def __init__(self, batched: Any, single: Any) -> None:
        self._batched = batched
        self.takes_arrays = is_array_space(single) and _is_gymnasiums(iterate, batched)
        """Whether an array with a row for each env is taken as it is."""
        self._is_dict = isinstance(single, spaces.Dict)

    def split(self, actions: Any) -> Any:
        """`actions` as an array or a list; TypeError for what cannot be iterated. The engine checks their number."""
        if self.takes_arrays:
            if actions.__class__ is np.ndarray and actions.ndim:
                return actions
            return actions if hasattr(actions, "__len__") and getattr(actions, "ndim", True) else _listed(actions)
        if self._is_dict and isinstance(actions, (list, tuple)):
            return list(actions)
        return list(iterate(self._batched, on_host(actions)))


def _listed(actions: Any) -> list[Any]:
    try:
        return list(actions)
    except TypeError:
        raise TypeError(f"Unable to iterate over the following elements: {actions}; pass one action an env") from None


class ObservationJoiner:
    """Turns a batch of the engine into one of the single observation space, the way gymnasium joins observations.

    With `reuse`, what is not an array of the engine is written to the same arrays every time.
    """

    def __init__(self, single: Any, n: int, reuse: bool) -> None:
        self._single, self._n = single, n
        self._is_tree = is_tree_of_arrays(single)
        self._reused = create_empty_array(single, n=n, fn=np.zeros) if reuse and not self._is_tree else None

    def join(self, obs: Any) -> Any:
        """The batch as it is where it is a tree of arrays, else `concatenate` of the envs' observations."""
        if self._is_tree:
            return obs
        rows = [nest.take(obs, i) for i in range(self._n)]
        out: Any = self._reused
        if out is None:
            out = create_empty_array(self._single, n=self._n, fn=np.zeros)
        return concatenate(self._single, rows, out)
