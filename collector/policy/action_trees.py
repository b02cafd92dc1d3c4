"""Flatten actions of Dict and Tuple spaces into arrays with names (`action['move']`), and rebuild the actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from collector.batch.step_extras import RowLayout
from vecenv import nest
from vecenv.nest import tree_of

ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def action_parts(space: spaces.Space[Any]) -> Iterator[tuple[str, spaces.Space[Any]]]:
    for path, leaf in nest.items(tree_of(space)):
        yield "action" + "".join(f"[{key!r}]" for key in path), leaf


def is_of_arrays(space: spaces.Space[Any]) -> bool:
    return all(isinstance(part, ARRAYS) for _, part in action_parts(space))


def action_layouts(action_spaces: Sequence[spaces.Space[Any]]) -> dict[str, RowLayout]:
    """Return shape and dtype of each leaf, or {} if these differ between envs or a leaf is not an array."""
    first, *others = ([(path, part.shape, part.dtype) for path, part in action_parts(each)] for each in action_spaces)
    if any(each != first for each in others):
        return {}
    layout = {path: (tuple(shape), np.dtype(dtype)) for path, shape, dtype in first if shape is not None and dtype}
    return layout if len(layout) == len(first) else {}


def flatten(action: Any, space: spaces.Space[Any], path: str = "action") -> dict[str, Any]:
    """Return leaves by name. Raises `ValueError` if `action` and `space` have different structures."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return {path: action}
    if isinstance(space, spaces.Dict):
        fits = isinstance(action, Mapping) and action.keys() == space.spaces.keys()
        expected = f"a dict with the keys {list(space.spaces)}"
    else:
        fits = isinstance(action, tuple) and len(action) == len(space.spaces)
        expected = f"a tuple of {len(space.spaces)}"
    if not fits:
        got = f"a dict with the keys {list(action)}" if isinstance(action, Mapping) else f"{action!r}"
        raise ValueError(f"the policy returned {path!r} as {got}; for the action space it must be {expected}")
    leaves = {}
    children = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, child in children:
        leaves.update(flatten(action[key], child, f"{path}[{key!r}]"))
    return leaves


def unflatten(leaves: Mapping[str, Any], space: spaces.Space[Any]) -> Any:
    names = (name for name, _ in action_parts(space))
    return nest.map(lambda _: leaves[next(names)], tree_of(space))
