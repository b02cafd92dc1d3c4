"""`RecurrentState`: the state of a recurrent policy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from collector.batch.forms import copy_of
from vecenv import nest


class RecurrentState:
    """State of a recurrent policy: a row per env, on the policy's device.

    A call of the policy uses `rows`, `recall` and `keep`, in this order. The result of `rows` moves to the device with
    the observations, because a separate transfer would block.
    """

    def __init__(self, policy: Any, env_num: int) -> None:
        self._initial = getattr(policy, "initial_state", None)
        self._all_ids = self._env_ids = self._stepping = np.arange(env_num)
        self._in_order = False
        self._begun = np.ones(env_num, np.bool_)
        self._state: Any = None
        self.is_known = self._initial is not None

    def begin(self, env_ids: Any) -> None:
        self._begun[env_ids] = True

    def rows(self, env_ids: np.ndarray, stepping: np.ndarray | None, needs_ids: bool) -> tuple[np.ndarray, ...]:
        """Return the next call's env ids, the positions of rows that begin an episode, and `stepping` if given.

        Without `stepping`, returns () if all envs are in order, no episode begins, and `needs_ids` is False.
        stepping: ids of the envs whose state changes; `None`: all.
        """
        begun = self._begun[env_ids].nonzero()[0]
        self._env_ids, self._in_order = env_ids, np.array_equal(env_ids, self._all_ids)
        self._stepping = env_ids if stepping is None else stepping
        if stepping is not None:
            return env_ids, begun, stepping
        return () if self._in_order and not len(begun) and not needs_ids else (env_ids, begun)

    def recall(self, rows: tuple[Any, ...]) -> Any:
        if self._state is None and self._initial is not None:
            self._state = nest.map(copy_of, self._first_rows(len(self._all_ids)))
        if self._state is None:
            return None
        state = nest.map(copy_of, self._state) if self._in_order else nest.take(self._state, rows[0])
        if rows and len(rows[1]):
            first = nest.map(lambda rows: 0, state) if self._initial is None else self._first_rows(len(rows[1]))
            nest.put(state, rows[1], first)
        return state

    def _first_rows(self, count: int) -> Any:
        state = self._initial(count)  # type: ignore[misc]
        _check_rows(state, count, "initial_state")
        return state

    def keep(self, rows: tuple[Any, ...], output: Any) -> dict[str, Any]:
        """Store the state, and return the other outputs. Raises `TypeError` or `ValueError` for wrong states."""
        output, self.is_known = with_state(output), True
        # A state with gradients would keep the autograd graphs of earlier steps alive.
        state = nest.map(lambda leaf: leaf.detach() if hasattr(leaf, "detach") else leaf, output.pop("state"))
        if state is None and self._state is None:  # for example SB3's `predict` without a recurrent state
            return output
        _check_rows(state, len(self._env_ids), "the policy")
        if self._state is None:
            self._state = nest.map(self._zeros, state)
        _check_fits(state, self._state)
        if len(rows) > 2:
            nest.put(self._state, rows[2], nest.take(state, rows[2]))
        else:
            nest.put(self._state, slice(None) if self._in_order else rows[0], state)
        self._begun[self._stepping] = False
        return output

    def _zeros(self, leaf: Any) -> Any:
        shape = (len(self._all_ids), *leaf.shape[1:])
        return np.zeros(shape, leaf.dtype) if isinstance(leaf, np.ndarray) else leaf.new_zeros(shape)


def _check_rows(state: Any, count: int, source: str) -> None:
    for leaf in nest.leaves(state):
        if not hasattr(leaf, "shape"):
            raise TypeError(
                f"{source} returned 'state' as {type(leaf).__name__}; it must be an array or tensor with a row per "
                "observation, or a dict or tuple of these"
            )
        shape = tuple(leaf.shape)
        if shape[:1] != (count,):
            hint = ": torch's recurrent layers have the rows second, so transpose(0, 1)"
            raise ValueError(
                f"{source} returned 'state' of shape {shape} for {count} observations; "
                f"its first dimension must be {count}{hint if shape[1:2] == (count,) else ''}"
            )


def _check_fits(state: Any, stored: Any) -> None:
    """Raise TypeError if a write of `state` into `stored` would repeat numbers, drop entries or cut off decimals."""
    new, old = (dict(nest.items(tree)) for tree in (state, stored))
    if new.keys() == old.keys() and all(_fits(new[path], leaf) for path, leaf in old.items()):
        return
    after, before = (nest.map(lambda leaf: (tuple(leaf.shape[1:]), leaf.dtype), tree) for tree in (state, stored))
    raise TypeError(f"the policy returned 'state' as {after} (shape of a row, dtype) after {before} before")


def _fits(rows: Any, stored: Any) -> bool:
    if rows.shape[1:] != stored.shape[1:]:
        return False
    arrays = [isinstance(each, np.ndarray) for each in (rows, stored)]
    if all(arrays):
        return np.can_cast(rows.dtype, stored.dtype, "same_kind")
    return any(arrays) or bool(sys.modules["torch"].can_cast(rows.dtype, stored.dtype))


def with_state(output: Any) -> dict[str, Any]:
    if isinstance(output, tuple) and len(output) == 2:
        return {"action": output[0], "state": output[1]}
    if not isinstance(output, dict) or "state" not in output:
        raise TypeError(
            "the policy has a parameter `state`, so it must return a dict with 'action' and 'state', "
            f"or (action, state); got {type(output).__name__}"
        )
    return dict(output)
