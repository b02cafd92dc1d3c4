"""The state that a recurrent policy returns with its actions, and gets back in the next step."""

from __future__ import annotations

from typing import Any

import numpy as np

from collector.batch.arrays import copy_of
from collector.policy.interface import Policy
from vecenv import nest


class RecurrentState:
    """The state of a policy: a row for each env, on the policy's device.

    An env that begins an episode starts from zeros, or from a row of `policy.initial_state(k)`. Shapes and dtypes of
    zeros are those of what the policy returns when it is first called, with `state=None`. A call is three steps:
    `rows` here, `recall` and `keep` with what it returned on the policy's device: moving an index
    there from this process would block.
    """

    def __init__(self, policy: Policy, env_num: int) -> None:
        self._initial = getattr(policy, "initial_state", None)
        self._all_ids = self._env_ids = np.arange(env_num)
        self._in_order = False
        self._begun = np.ones(env_num, np.bool_)
        self._state: Any = None
        self.is_known = self._initial is not None
        """Whether no call with None is needed, to learn what a state is."""

    def begin(self, env_ids: Any) -> None:
        """Note that episodes begin in these envs."""
        self._begun[env_ids] = True

    def rows(self, env_ids: np.ndarray, needs_ids: bool) -> tuple[np.ndarray, ...]:
        """The envs of the next call, and which of its rows begin an episode.

        Empty where these are all envs in order and in mid-episode, unless `needs_ids` is set.
        """
        begun = self._begun[env_ids].nonzero()[0]
        self._env_ids, self._in_order = env_ids, np.array_equal(env_ids, self._all_ids)
        return () if self._in_order and not len(begun) and not needs_ids else (env_ids, begun)

    def recall(self, rows: tuple[Any, ...]) -> Any:
        """The state that the policy is called with; None before there is one."""
        if self._state is None and self._initial is not None:
            self._state = nest.map(copy_of, self._initial(len(self._all_ids)))
        if self._state is None:
            return None
        state = nest.map(copy_of, self._state) if self._in_order else nest.take(self._state, rows[0])
        if rows and len(rows[1]):
            first = self._initial(len(rows[1])) if self._initial is not None else nest.map(lambda rows: 0, state)
            nest.put(state, rows[1], first)
        return state

    def keep(self, rows: tuple[Any, ...], output: Any) -> dict[str, Any]:
        """Take the new state out of the policy's output, and return the rest.

        Raises `TypeError` where there is none, `ValueError` where it has another number of rows.
        """
        if isinstance(output, tuple) and len(output) == 2:
            output = {"action": output[0], "state": output[1]}
        if not isinstance(output, dict) or "state" not in output:
            raise TypeError(
                "the policy has a parameter `state`, so it must return a dict with 'action' and 'state', "
                f"or (action, state); got {type(output).__name__}"
            )
        output, self.is_known = dict(output), True
        # A state with gradients would keep the graphs of all earlier steps alive.
        state = nest.map(lambda leaf: leaf.detach() if hasattr(leaf, "detach") else leaf, output.pop("state"))
        if state is None and self._state is None:  # as `predict` of Stable-Baselines3's models that have none
            return output
        count = len(self._env_ids)
        for leaf in nest.leaves(state):
            if len(leaf) != count:
                shape = tuple(leaf.shape)
                hint = ": torch's recurrent layers have the rows second, so transpose(0, 1)"
                raise ValueError(
                    f"the policy returned 'state' of shape {shape} for {count} observations; "
                    f"its first dimension must be {count}{hint if shape[1:2] == (count,) else ''}"
                )
        if self._state is None:
            self._state = nest.map(self._zeros, state)
        nest.put(self._state, slice(None) if self._in_order else rows[0], state)
        self._begun[self._env_ids] = False
        return output

    def _zeros(self, leaf: Any) -> Any:
        shape = (len(self._all_ids), *leaf.shape[1:])
        return np.zeros(shape, leaf.dtype) if isinstance(leaf, np.ndarray) else leaf.new_zeros(shape)
