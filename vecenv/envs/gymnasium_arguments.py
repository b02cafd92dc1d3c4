"""Arguments of gymnasium's vector API: autoreset modes, seeds, options with a reset mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from vecenv.arguments import check_seed, spread_seeds


def as_autoreset_mode(mode: Any) -> AutoresetMode:
    """Convert a value or name (in any case) to an AutoresetMode. Return an AutoresetMode unchanged.

    Raises ValueError for other values.

    >>> as_autoreset_mode("same_step"), as_autoreset_mode("SameStep")
    (<AutoresetMode.SAME_STEP: 'SameStep'>, <AutoresetMode.SAME_STEP: 'SameStep'>)
    """
    if isinstance(mode, AutoresetMode):
        return mode
    wanted = mode.lower().replace("_", "") if isinstance(mode, str) else None
    for each in AutoresetMode:
        if wanted == each.value.lower():
            return each
    listed = ", ".join(f'{each.name} ("{each.value}")' for each in AutoresetMode)
    raise ValueError(f"autoreset_mode must be one of {listed}, got {mode!r}")


def as_seeds(seed: Any, n: int) -> list[int | None] | None:
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
    if options is None:
        return None, None
    if not isinstance(options, Mapping):
        raise TypeError(f"reset() takes one dict of options for all envs, or None; got {options!r}")
    others = {key: value for key, value in options.items() if key != "reset_mask"}
    if "reset_mask" not in options:
        return None, others
    mask, name = options["reset_mask"], "`options['reset_mask']`"
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, got {type(mask)}")
    if mask.shape != (n,):
        raise ValueError(f"{name} must have shape `({n},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"{name} must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(f"{name} must contain a boolean array with at least one True value, got reset_mask={mask}")
    return mask, others
