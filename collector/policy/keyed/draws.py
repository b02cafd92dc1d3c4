"""Random elements of spaces out of random bits, with a mapping of our own for each space.

`space.sample()` draws from a generator, whose stream may change with numpy. These mappings are exact but for two that
no finite bounds allow: normal and exponential numbers need a logarithm, which is that of the C library.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from collector.episodes.keys import scaled, uniforms
from collector.policy.keyed.masks import choose_allowed, mask_of_part, masks_of_elements
from vecenv.spaces import bounds_of


def words_of(space: spaces.Space[Any]) -> int:
    """How many random 64-bit integers an element takes. `TypeError` for a space that has no array form."""
    if isinstance(space, spaces.Dict):
        return sum(map(words_of, space.values()))
    if isinstance(space, spaces.Tuple):
        return sum(map(words_of, space.spaces))
    if bounds_of(space) is None:
        raise TypeError(
            f"random actions are drawn from Box, Discrete, MultiDiscrete and MultiBinary spaces, and from Dict and "
            f"Tuple spaces of these; got {space}"
        )
    assert space.shape is not None
    return math.prod(space.shape)


def draw_keyed(space: spaces.Space[Any], bits: np.ndarray, mask: Any = None) -> Any:
    """Elements of the space for random bits `(k, words_of(space))`: `(k, ...)`, or a dict or tuple of such.

    Uniform where the space is bounded; as gymnasium's `sample` a normal number where it has no bounds, and an
    exponential one beyond its bound where it has one. mask: the allowed elements, as for `space.sample(mask)`, with a
    row for each row of the bits.

    Raises `TypeError` and `ValueError` for masks of another form.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        drawn, start = {}, 0
        for key, part in parts:
            stop = start + words_of(part)
            drawn[key] = draw_keyed(part, bits[:, start:stop], mask_of_part(mask, key))
            start = stop
        return drawn if isinstance(space, spaces.Dict) else tuple(drawn.values())
    assert space.shape is not None
    shape = (len(bits), *space.shape)
    if mask is not None and not isinstance(space, spaces.Box):
        return _masked(space, bits, mask).reshape(shape)
    low, high = (each.ravel() for each in bounds_of(space) or ())
    values = _floats(low, high, uniforms(bits)) if low.dtype.kind == "f" else _integers(low, high, bits)
    if mask is not None:
        raise TypeError(f"a Box has no action masks, and there is one for {space}")
    return values.reshape(shape)


def _integers(low: np.ndarray, high: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Uniform whole numbers from `low` to `high`, both included; sums of 64-bit integers wrap to the right one."""
    wide = np.uint64 if low.dtype == np.uint64 else np.int64
    first, last = (each.astype(wide).view(np.uint64) for each in (low, high))
    return (first + scaled(bits, last - first + np.uint64(1))).view(wide).astype(low.dtype)


def _floats(low: np.ndarray, high: np.ndarray, unit: np.ndarray) -> np.ndarray:
    below, above = np.isfinite(low), np.isfinite(high)
    first, last = (np.where(np.isfinite(each), each, 0.0).astype(np.float64) for each in (low, high))
    values = first * (1.0 - unit) + last * unit  # not first + (last - first) * unit, which may overflow
    free, upwards, downwards = ~below & ~above, below & ~above, ~below & above
    if free.any():
        values[:, free] = normals(unit[:, free])
    if upwards.any():
        values[:, upwards] = first[upwards] + _exponentials(unit[:, upwards])
    if downwards.any():
        values[:, downwards] = last[downwards] - _exponentials(unit[:, downwards])
    return np.clip(values.astype(low.dtype), low, high)  # rounding may lead beyond a bound


def normals(unit: np.ndarray) -> np.ndarray:
    """Uniform numbers as standard normal ones, by the inverse of the distribution function."""
    from statistics import NormalDist  # here, because few need it, and it imports much

    inverse = NormalDist().inv_cdf
    return np.array([inverse(each) for each in unit.ravel().tolist()]).reshape(unit.shape)


def _exponentials(unit: np.ndarray) -> np.ndarray:
    return np.array([-math.log(each) for each in unit.ravel().tolist()]).reshape(unit.shape)


def _masked(space: spaces.Space[Any], bits: np.ndarray, mask: Any) -> np.ndarray:
    """Elements `(k, words)` of a space of whole numbers, of those that the mask allows."""
    rows = len(bits)
    if isinstance(space, spaces.MultiBinary):
        low, high = (each.ravel() for each in bounds_of(space) or ())
        allowed = masks_of_elements(space, mask, rows)[0]
        # 0 and 1 are the value itself, 2 leaves it open.
        return np.where(allowed == 2, _integers(low, high, bits), allowed).astype(low.dtype)
    starts = np.atleast_1d(np.asarray(getattr(space, "start", 0))).ravel()
    masks = masks_of_elements(space, mask, rows)
    chosen = [choose_allowed(bits[:, at], allowed) for at, allowed in enumerate(masks)]
    return (np.stack(chosen, axis=1) + starts).astype(space.dtype)
