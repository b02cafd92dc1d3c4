"""Batches of actions: converted once for all envs, whatever array library they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.host.row_writer import cast_exactly
from vecenv.backends.memory.layout import Leaf
from vecenv.nest import tensor_on_host


def batch_actions(action: Any, ids: Sequence[int], leaf: Leaf | None, *, wide: bool = False) -> np.ndarray | list[Any]:
    """`action` as one array (k, *shape) of the dtype of the action space, or as a list of k objects where there is no
    such array.

    Integers are cast where they stay what they are; floats for an integer space must be whole numbers (else
    TypeError). Floats are cast between float types; with `wide` those of a larger type than the space's stay what they
    are, as float64. Rows of another shape than the space's are passed on as they are: the env decides. ValueError if
    there are not k rows.
    """
    k = len(ids)
    if leaf is None:
        return _as_rows(action, ids)
    if action.__class__ is np.ndarray and action.dtype is leaf.dtype and action.shape == (k, *leaf.shape):
        return action
    try:
        array = np.asarray(_on_host(action))
    except (ValueError, TypeError):  # ragged, or tensors of another device in a list
        return _as_rows(action, ids)
    if array.dtype == object:
        array = _tight(array)
    if array.dtype.kind not in "biufc":
        return _as_rows(action, ids)
    _check_count(array, ids)
    if array.shape[1:] + leaf.shape == (1,):
        array = array.reshape(k, *leaf.shape)
    if array.shape[1:] != leaf.shape:
        return list(array)
    if wide and array.dtype.kind == leaf.dtype.kind == "f" and array.dtype.itemsize > leaf.dtype.itemsize:
        return array.astype(np.float64, copy=False)
    if array.dtype != leaf.dtype:
        cast = cast_exactly(array, leaf.dtype)
        if cast is None and array.dtype.kind == "f" and leaf.dtype.kind in "iu":
            raise TypeError(
                f"actions for envs {list(ids)} are {array.dtype} and not whole numbers, "
                f"the action space has {leaf.dtype}: {array!r}"
            )
        return list(array) if cast is None else cast
    return array


def _on_host(action: Any) -> Any:
    """The same with every torch tensor as an array."""
    try:
        return _arrays(action)
    except RecursionError:  # nested deeper than anybody looks
        return action


def _arrays(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: _arrays(part) for key, part in action.items()}
    if action.__class__ in (list, tuple):
        return action.__class__(_arrays(part) for part in action)
    return tensor_on_host(action)


def _tight(array: np.ndarray) -> np.ndarray:
    """An array of objects as one of numbers, if that is what they are."""
    try:
        return np.asarray(array.tolist())
    except ValueError:
        return array


def _as_rows(action: Any, ids: Sequence[int]) -> list[Any]:
    """One object for each env; a dict of batches is split into a dict for each env."""
    action = _on_host(action)
    if isinstance(action, (str, bytes, Set)):
        raise TypeError(
            f"got the {type(action).__name__} {action!r} for envs {list(ids)}; pass a list with one action each"
        )
    if isinstance(action, Mapping):
        batch = nest.map(np.asarray, _on_host(dict(action)))
        leaves = list(nest.leaves(batch))
        if not leaves:
            raise ValueError(f"got an empty dict of actions for envs {list(ids)}; pass one action for each")
        for leaf in leaves:
            _check_count(leaf, ids)
        return [nest.take(batch, j) for j in range(len(ids))]
    _check_count(action, ids)
    return list(action)


def _check_count(action: Any, ids: Sequence[int]) -> None:
    try:
        count = len(action)
    except TypeError:
        raise ValueError(
            f"got the single action {action!r} for envs {list(ids)}; "
            f"pass one for each, an array of shape ({len(ids)}, ...)"
        ) from None
    if count != len(ids):
        raise ValueError(f"got {count} actions for {len(ids)} envs {list(ids)}")
