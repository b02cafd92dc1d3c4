"""The arguments of a gymnasium reset: seeds for n envs, and options that may name a part of the envs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vecenv.engine.arguments.seeding import check_seed, spread_seeds


def as_seeds(seed: Any, n: int) -> list[int | None] | None:
    """One seed for each env, or None for no seeds; ValueError for a wrong count or what is not a seed."""
    if seed is None:
        return None
    if np.ndim(seed) == 0:
        return spread_seeds(check_seed(seed.item() if isinstance(seed, np.ndarray) else seed), range(n))
    if len(seed) != n:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={n} but got length={len(seed)}."
        )
    return spread_seeds(seed, range(n))


def split_options(options: Mapping[str, Any] | None, n: int) -> tuple[np.ndarray | None, dict[str, Any] | None]:
    """(reset_mask or None, a new dict of the other options or None); the caller's `options` stay as they are.

    TypeError for options that are no dict; TypeError and ValueError for a mask that is not a bool array (n,) with a
    True in it.
    """
    if options is None:
        return None, None
    if not isinstance(options, Mapping):
        raise TypeError(f"reset() takes one dict of options for all envs, or None; got {options!r}")
    others = {key: value for key, value in options.items() if key != "reset_mask"}
    if "reset_mask" not in options:
        return None, others
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (n,):
        raise ValueError(f"`options['reset_mask']` must have shape `({n},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}"
        )
    return mask, others
