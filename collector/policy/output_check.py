"""`OutputCheck`: checks what a policy returned against the action space, and casts actions to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from collector.batch.step_extras import RowLayout
from collector.policy.action_trees import common_layout, flatten, unflatten
from vecenv import nest
from vecenv.extending import cast_exactly

Outputs = dict[str, np.ndarray]
Layout = dict[str, RowLayout]


class OutputCheck:
    """Checks the outputs of a policy: their form once, and again when it changes."""

    def __init__(self, env: Any) -> None:
        self.layout: Layout = {}
        """Shape of a row and dtype of each output, once the policy was called; no actions that are trees of arrays."""
        self.returned: Layout = {}
        """The same as the policy returned it."""
        self.expected = common_layout(env.action_space)
        """Shape of a row and dtype of each leaf of the actions, if all envs have the same."""
        self._last: Any = None
        """Number of rows, and shapes and dtypes of the outputs, of the last call."""
        self._to_cast: list[str] = []
        self._space: Any = env.action_space[0]
        self._is_tree = isinstance(self._space, (spaces.Dict, spaces.Tuple))

    def __call__(self, outputs: Outputs, rows: int) -> Outputs:
        """Return the outputs for so many rows, with actions as the envs get them. Raises `ValueError` or `TypeError`
        for outputs that do not fit.
        """
        form = rows, {name: (values.shape, values.dtype) for name, values in outputs.items()}
        if form != self._last:
            self._check(outputs, rows)
            self._last = form
        for name in self._to_cast:
            outputs[name] = self._as_in_space(name, outputs[name])
        if "action" not in outputs:
            action = unflatten(outputs, self._space)
            outputs = {"action": action, **{name: outputs[name] for name in outputs if name not in self.expected}}
        return outputs

    def by_leaf(self, outputs: dict[Any, Any]) -> dict[str, Any]:
        """Return outputs with an entry for each leaf of actions of a Dict or Tuple space, or one array of objects."""
        if not self._is_tree:
            return outputs
        action = outputs.pop("action")
        if not isinstance(action, (dict, tuple)):
            return {"action": nest.object_array(action) if isinstance(action, list) else action, **outputs}
        if not self.expected:
            raise TypeError(
                f"the policy returned 'action' as a {type(action).__name__}; the action space {self._space} holds what "
                "has no array, or envs differ in it: return one action for each env, a list or an object array"
            )
        return {**flatten(action, self._space), **outputs}

    def _check(self, outputs: Outputs, rows: int) -> None:
        """Raise where outputs do not fit each other, those before, or the action space."""
        for name, values in outputs.items():
            if values.shape[:1] != (rows,):
                should = f"{(rows, *self.expected[name][0])}" if name in self.expected else f"({rows}, ...)"
                raise ValueError(
                    f"the policy returned {name!r} of shape {values.shape} for {rows} observations; it must be {should}"
                )
        layout = {name: (values.shape[1:], values.dtype) for name, values in outputs.items()}
        if self.returned and layout != self.returned:
            raise TypeError(f"the policy returned {layout} (shape of a row, dtype) after {self.returned} before")
        in_space = {name: each for name, each in self.expected.items() if name in layout}
        for name, (expected, _) in in_space.items():
            shape = layout[name][0]
            if shape != expected and shape + expected != (1,):
                raise ValueError(
                    f"the policy returned {name!r} of shape {(rows, *shape)}; for the action space it must be "
                    f"{(rows, *expected)}"
                )
        self._to_cast = [name for name, each in in_space.items() if layout[name] != each]
        self.returned = layout
        self.layout = {
            name: in_space.get(name, each) for name, each in layout.items() if name == "action" or name not in in_space
        }

    def _as_in_space(self, name: str, action: np.ndarray) -> np.ndarray:
        """The action (a leaf of it) as the envs get it, so that the stored action is the one that was executed."""
        shape, dtype = self.expected[name]
        cast = action if action.dtype == dtype else cast_exactly(action, dtype)
        if cast is None or (action.dtype.kind == "f" and dtype.kind != "f"):
            raise TypeError(
                f"the policy returned {name!r} of dtype {action.dtype}; for the action space it must be {dtype}, or "
                f"fit it: {action!r}"
            )
        return cast.reshape(len(action), *shape)
