"""Discrete observations of one env as envs return them: Python ints, where the batch has numpy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

Restore = Callable[[Any], Any]


def int_restorer(space: Any) -> Restore | None:
    """What makes Python ints of the Discrete parts of an observation of `space`; None where there are none.

    Only numpy's default integers are made Python's: a Discrete space of another dtype has been given that on purpose,
    and what a wrapper has changed stays what it is.

    >>> restore = int_restorer(spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1))))
    >>> restore((np.int64(2), np.float32(0.5)))
    (2, np.float32(0.5))
    """
    if isinstance(space, spaces.Discrete):
        return _as_int if space.dtype == np.int64 else None
    if isinstance(space, spaces.Dict):
        of_keys = {key: restore for key, child in space.spaces.items() if (restore := int_restorer(child))}
        return _of_dict(of_keys) if of_keys else None
    if isinstance(space, spaces.Tuple):
        of_places = [int_restorer(child) for child in space.spaces]
        return _of_tuple(of_places) if any(of_places) else None
    return None


def _as_int(value: Any) -> Any:
    return int(value) if value.__class__ is np.int64 else value


def _of_dict(of_keys: dict[Any, Restore]) -> Restore:
    def restore(obs: Any) -> Any:
        if not isinstance(obs, dict):
            return obs
        return {key: of_keys[key](value) if key in of_keys else value for key, value in obs.items()}

    return restore


def _of_tuple(of_places: list[Restore | None]) -> Restore:
    def restore(obs: Any) -> Any:
        if not isinstance(obs, tuple) or len(obs) != len(of_places):
            return obs
        return tuple(value if one is None else one(value) for one, value in zip(of_places, obs, strict=True))

    return restore
