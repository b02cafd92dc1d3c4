"""Convert the actions of a batch to a tree of arrays, or to a list of actions if arrays cannot hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.layout import Leaf, ObjectLeaf, space_tree
from vecenv.nest import cast_exactly, tensor_on_host


class Actions:
    """Converter of actions. `layout`: tree of leaves, or None if arrays cannot hold the actions.

    With `casts`, actions are cast to the dtype of their space. Facades set `casts=False`, so that envs get the caller's
    actions unchanged. A backend with `takes_objects=False` always gets cast actions.
    """

    def __init__(self, layout: Any, spaces: Sequence[Any], takes_objects: bool, checks: bool) -> None:
        self._layout, self._spaces, self._takes_objects, self._checks = layout, spaces, takes_objects, checks
        self._trees = [space_tree(space, "action") for space in spaces]
        self.casts = True

    def batch(self, action: Any, ids: Sequence[int], resets: np.ndarray | None) -> Any:
        """Convert `action` with `batch_actions`, or with `uncast_actions` if actions are not cast.

        If `checks`, raise ValueError for an action outside its space, except for envs in the mask `resets`.
        """
        casts = self.casts or not self._takes_objects
        if self._layout is None and isinstance(action, tuple) and isinstance(self._trees[0], tuple):
            raise TypeError("for Tuple spaces with a Text, Graph or Sequence, pass a list with one action per env")
        batch = batch_actions(action, ids, self._layout) if casts or self._checks else None
        if batch is not None and self._layout is None:
            batch = [cast_numbers(row, self._trees[i], i) for i, row in zip(ids, batch, strict=True)]
        if self._checks:
            self._check(batch, ids, resets)
        return batch if casts else uncast_actions(action, ids, self._layout)

    def _check(self, batch: Any, ids: Sequence[int], resets: np.ndarray | None) -> None:
        for row, i in enumerate(ids):
            space, action = self._spaces[i], batch[row] if batch.__class__ is list else nest.take(batch, row)
            ignored = resets is not None and resets[row]
            if not ignored and not space.contains(action):
                raise ValueError(
                    f"action for env {i} is {action!r}, which is not in its action space {space}; pass an action of "
                    "the space, or leave out check_actions=True"
                )


class TensorActions(Actions):
    """Converter that leaves tensors on their device, and checks their shape and kind. Other actions become arrays."""

    def batch(self, action: Any, ids: Sequence[int], resets: np.ndarray | None) -> Any:
        leaves = [] if action.__class__ is list else list(nest.leaves(action))
        if not leaves or any(isinstance(leaf, np.ndarray) or not hasattr(leaf, "__dlpack__") for leaf in leaves):
            return super().batch(action, ids, resets)
        return nest.merge(lambda pair: _tensor(pair[0], pair[1], len(ids)), [self._layout, action])


def _tensor(leaf: Leaf, action: Any, k: int) -> Any:
    shape = (k, *leaf.shape)
    if tuple(action.shape) != shape and not (action.shape[:1] == (k,) and (*action.shape[1:], *leaf.shape) == (1,)):
        raise ValueError(f"{leaf.path} has the shape {tuple(action.shape)}, expected {shape}: one row per env")
    if leaf.dtype.kind in "iub" and "float" in str(action.dtype):
        raise TypeError(f"{leaf.path} is a tensor of {action.dtype}, expected integers, as {leaf.dtype}")
    return action.reshape(shape)


def batch_actions(action: Any, ids: Sequence[int], layout: Any) -> Any:
    """Return `action` as arrays with the shapes and dtypes of the action space, one row per env in `ids`.

    For Dict and Tuple spaces, `action` is a tree of batches, or a sequence with a dict or tuple per env. If `layout` is
    None, tuples are actions of envs. Returns a list if `layout` is None or arrays cannot hold the actions.

    Raises:
        ValueError: the number of actions or a shape is wrong (() and (1,) count as equal).
        TypeError: a float for an integer space is not whole, or is out of range. `action` is a string or set.
    """
    if layout.__class__ is Leaf:
        return _array(action, ids, layout)
    action = on_host(action)
    rows = None if is_tree_of_batches(action, layout) else _as_rows(action, ids)
    batch = (
        None
        if layout is None
        else _join_leaves(action if rows is None else rows, ids, layout, _array, rows is not None)
    )
    if batch is None:
        return _rows_of_tree(action, ids) if rows is None else rows
    return batch


def is_tree_of_batches(action: Any, form: Any) -> bool:
    """Return True if `action` is a dict or tuple of batches, and False for a sequence with an action per env.

    A tuple is a sequence of actions if each entry has the structure of `form` (the tree of the space's leaves).

    >>> form = (0, 0)
    >>> is_tree_of_batches(([1, 2], [3, 4]), form), is_tree_of_batches(((1, 3), (2, 4)), form)
    (True, False)
    """
    if isinstance(action, Mapping):
        return True
    if not (isinstance(action, tuple) and isinstance(form, tuple) and len(action) == len(form)):
        return False
    return not all(is_sample(each, form) for each in action)


def is_sample(action: Any, form: Any) -> bool:
    """Return True if the dicts and tuples of `action` have the structure of `form`."""
    if isinstance(form, tuple):
        return isinstance(action, tuple) and len(action) == len(form) and all(map(is_sample, action, form))
    if isinstance(form, dict):
        return _has_form(action, form) and all(is_sample(action[key], child) for key, child in form.items())
    return True


def uncast_actions(action: Any, ids: Sequence[int], layout: Any) -> Any:
    """Return a tree of arrays if each action has exactly its space's type, dtype and shape, else a list of actions."""
    is_array = action.__class__ is np.ndarray and layout.__class__ is Leaf
    if is_array and action.dtype == layout.dtype and action.shape == (len(ids), *layout.shape):
        return action
    rows = _rows_of_tree(action, ids) if is_tree_of_batches(action, layout) else _as_rows(action, ids)
    batch = None if layout is None else _join_leaves(rows, ids, layout, _exact_rows, by_env=True)
    return rows if batch is None else batch


def _exact_rows(rows: list[Any], ids: Sequence[int], leaf: Leaf) -> Any:
    cls = np.ndarray if leaf.shape else leaf.dtype.type
    if all(row.__class__ is cls and row.dtype == leaf.dtype and row.shape == leaf.shape for row in rows):
        return np.array(rows, leaf.dtype)
    return _checked_rows(rows, ids, leaf)


def _array(action: Any, ids: Sequence[int], leaf: Leaf) -> Any:
    k = len(ids)
    if action.__class__ is np.ndarray and action.dtype is leaf.dtype and action.shape == (k, *leaf.shape):
        return action
    if leaf.dtype == object:  # texts, in the layout of a data set
        rows = _as_rows(action, ids)
        return nest.object_array(rows) if all(isinstance(row, str) for row in rows) else rows
    try:
        array = np.asarray(on_host(action))
    except (ValueError, TypeError):  # `action` has rows of different shapes, or GPU tensors
        return _checked_rows(action, ids, leaf)
    if array.dtype == object:
        array = _numeric(array)
    if array.dtype.kind not in "biufc":
        return _checked_rows(action, ids, leaf)
    _check_count(array, ids)
    if array.shape[1:] + leaf.shape == (1,):
        array = array.reshape(k, *leaf.shape)
    if array.shape[1:] != leaf.shape:
        raise ValueError(
            f"{leaf.path} for envs {list(ids)} has the shape {array.shape}, expected {(k, *leaf.shape)}: one row "
            f"per env, with the shape {leaf.shape} of the action space"
        )
    if array.dtype != leaf.dtype:
        cast = cast_exactly(array, leaf.dtype)
        if cast is None and array.dtype.kind == "f" and leaf.dtype.kind in "iu":
            raise TypeError(
                f"{leaf.path} for envs {list(ids)} must be whole numbers that fit the {leaf.dtype} of the action "
                f"space, got {array!r}"
            )
        return list(array) if cast is None else cast
    return array


def cast_numbers(action: Any, tree: Any, env_id: int) -> Any:
    """Return an env's action with the dtypes of `tree`, if the action has the structure of `tree`."""
    if isinstance(tree, Leaf):
        return _array([action], [env_id], tree)[0]
    if isinstance(tree, ObjectLeaf) or not _has_form(action, tree):
        return action
    if isinstance(tree, dict):
        return {key: cast_numbers(action[key], child, env_id) for key, child in tree.items()}
    return tuple(cast_numbers(part, child, env_id) for part, child in zip(action, tree, strict=True))


def _checked_rows(action: Any, ids: Sequence[int], leaf: Leaf) -> list[Any]:
    rows = _as_rows(action, ids)
    for i, row in zip(ids, rows, strict=True):
        try:
            array = np.asarray(row)
        except (ValueError, TypeError):
            continue
        if array.dtype.kind in "biufc" and array.shape != leaf.shape and array.shape + leaf.shape != (1,):
            raise ValueError(
                f"{leaf.path} for env {i} has the shape {array.shape}, expected {leaf.shape} as in its action "
                f"space: {row!r}"
            )
    return rows


def _join_leaves(action: Any, ids: Sequence[int], layout: Any, join: Callable[..., Any], by_env: bool) -> Any:
    """Apply `join` to each leaf. Return the tree, or `None` if `join` returns a list or the structures differ."""
    if isinstance(layout, Leaf):
        _check_count(action, ids)
        array = join(action, ids, layout)
        return array if array.__class__ is np.ndarray else None
    if not all(_has_form(each, layout) for each in (action if by_env else [action])):
        return None
    keys = list(layout) if isinstance(layout, dict) else range(len(layout))
    children = (([row[key] for row in action] if by_env else action[key], layout[key]) for key in keys)
    parts = [_join_leaves(child, ids, part, join, by_env) for child, part in children]
    if any(part is None for part in parts):
        return None
    return dict(zip(keys, parts, strict=True)) if isinstance(layout, dict) else tuple(parts)


def _has_form(action: Any, layout: Any) -> bool:
    if isinstance(layout, dict):
        return isinstance(action, Mapping) and action.keys() == layout.keys()
    return isinstance(action, (tuple, list)) and len(action) == len(layout)


def on_host(action: Any) -> Any:
    """Convert tensors, arrays and numbers of other libraries in `action` to numpy."""
    if isinstance(action, dict):
        return {key: on_host(part) for key, part in action.items()}
    if action.__class__ in (list, tuple):
        return action.__class__(on_host(part) for part in action)
    value = tensor_on_host(action)
    if value is action and (isinstance(value, (np.ndarray, np.generic)) or not hasattr(value, "__array__")):
        return value
    return np.asarray(value)[()]


def _numeric(array: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(array.tolist())
    except ValueError:
        return array


def _as_rows(action: Any, ids: Sequence[int]) -> list[Any]:
    if isinstance(action, Mapping):
        return _rows_of_tree(action, ids)
    action = on_host(action)
    if isinstance(action, (str, bytes, Set)):
        raise TypeError(
            f"got the {type(action).__name__} {action!r} for envs {list(ids)}; pass a list with one action per env"
        )
    _check_count(action, ids)
    return list(action)


def _rows_of_tree(action: Any, ids: Sequence[int]) -> list[Any]:
    batch = nest.map(np.asarray, on_host(dict(action) if isinstance(action, Mapping) else action))
    leaves = list(nest.leaves(batch))
    if not leaves:
        raise ValueError(f"got an empty {type(action).__name__} for envs {list(ids)}; pass one action per env")
    for leaf in leaves:
        _check_count(leaf, ids)
    return [nest.take(batch, j) for j in range(len(ids))]


def _check_count(action: Any, ids: Sequence[int]) -> None:
    try:
        count = len(action)
    except TypeError:
        raise ValueError(
            f"got the single action {action!r} for envs {list(ids)}; "
            f"pass one action per env, as a list or an array of shape ({len(ids)}, ...)"
        ) from None
    if count != len(ids):
        raise ValueError(f"got {count} actions for {len(ids)} envs {list(ids)}; pass one action per env")
