"""Check, clip and sample elements of gymnasium spaces with numpy."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.nest import tree_of

__all__ = ["bounds_of", "is_in", "project", "rand", "separate_generators"]


def is_in(space: spaces.Space[Any], value: Any) -> bool:
    """Return True if `value` is an element of the space, or a batch `(..., *space.shape)` of elements.

    `value` may have any dtype and array library. Integer spaces need whole numbers: 1.0 is in Discrete(2), 0.5 is not.
    Raises TypeError for spaces without an array form (Text, Graph, ...).

    >>> box = spaces.Box(-2, 2, (1,))
    >>> is_in(box, [1.5]), is_in(box, np.zeros((4, 1))), is_in(box, [3.0]), is_in(box, 1.5)
    (True, True, False, False)
    """
    if isinstance(space, spaces.Dict):
        return (
            isinstance(value, dict) and value.keys() == space.keys() and all(is_in(space[k], value[k]) for k in value)
        )
    if isinstance(space, spaces.Tuple):
        parts = value if isinstance(value, (tuple, list)) else ()
        return len(parts) == len(space) and all(map(is_in, space, parts))
    low, high = _bounds(space)
    array = nest.as_array(value)
    if array.dtype.kind not in "biuf" or array.shape[array.ndim - low.ndim :] != low.shape or array.ndim < low.ndim:
        return False
    whole = low.dtype.kind == "f" or bool(np.all(array == np.rint(array)))
    return whole and bool(np.all((array >= low) & (array <= high)))


def project(space: spaces.Space[Any], value: Any) -> Any:
    """Return the element of the space that is nearest to `value`, which may be a batch `(..., *space.shape)`.

    The result has the space's dtype. Numbers are clipped, and rounded for integer spaces (halves to even). NaN stays
    NaN in float spaces.

    Raises ValueError for NaN in integer spaces or a wrong shape, and TypeError for spaces without an array form.

    >>> project(spaces.Box(-2, 2, (1,)), [3.0]), project(spaces.Discrete(4, start=1), 9)
    (array([2.], dtype=float32), array(4))
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return nest.merge(lambda pair: project(*pair), [tree_of(space), value])
    low, high = _bounds(space)
    array = nest.as_array(value)
    if array.shape[max(0, array.ndim - low.ndim) :] != low.shape:
        raise ValueError(f"the value has the shape {array.shape}, expected {low.shape}, or such in a batch: {space}")
    if low.dtype.kind != "f" and array.dtype.kind == "f":
        if np.isnan(array).any():
            raise ValueError(f"NaN has no nearest element in {space}")
        array = np.rint(array)
    with np.errstate(invalid="ignore", over="ignore"):
        inside = array.astype(low.dtype)  # may overflow outside the bounds, but is not used there
    return np.where(array >= high, high, np.where(array <= low, low, inside))


def rand(space: spaces.Space[Any], n: int | None = None) -> Any:
    """Return a sample of the space, or a stacked batch of `n` samples.

    >>> rand(spaces.Discrete(3), 5).shape
    (5,)
    """
    if n is None:
        return space.sample()
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return nest.map(lambda part: rand(part, n), tree_of(space))
    low, _ = _bounds(space)
    return np.array([space.sample() for _ in range(n)], low.dtype).reshape((n, *low.shape))


def separate_generators(given: Sequence[Any]) -> None:
    """Reseed each space that has a copy of an earlier space's generator, because copies would draw equal values.

    >>> first = spaces.Discrete(1000, seed=0)
    >>> copies = [first, copy.deepcopy(first)]
    >>> separate_generators(copies)
    >>> bool(copies[0].sample() == copies[1].sample())
    False
    """
    sources: dict[bytes, np.random.Generator] = {}
    for space in given:
        generators = list(_generators(space))
        if not generators:  # the first sample makes a generator with a random seed
            continue
        state = pickle.dumps([each.bit_generator.state for each in generators])
        if state in sources:
            space.seed(int(sources[state].integers(2**31)))
        else:
            sources[state] = copy.deepcopy(generators[0])


def _generators(space: Any) -> Iterator[np.random.Generator]:
    if (own := getattr(space, "_np_random", None)) is not None:
        yield own
    parts = getattr(space, "spaces", ())
    for part in parts.values() if isinstance(parts, dict) else parts:
        yield from _generators(part)


def _bounds(space: spaces.Space[Any]) -> tuple[np.ndarray, np.ndarray]:
    if (bounds := bounds_of(space)) is None:
        raise TypeError(f"{space} has no array form; expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple")
    return bounds


def bounds_of(space: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the bounds (low, high) as arrays, or `None` for a space without an array form."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return np.asarray(space.start, space.dtype), np.asarray(space.start + space.n - 1, space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.start, space.dtype), np.asarray(space.start + space.nvec - 1, space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype)
    return None
