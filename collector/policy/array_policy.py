"""Policies on numpy arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from gymnasium import spaces

from collector.basics.timing import Clock
from collector.batch.forms import copy_of
from collector.batch.step_extras import InfoExtras, RowLayout, check_policy_names, dtype_of_rows, has_columns
from collector.policy.action_trees import action_layouts, flatten, unflatten
from collector.policy.collector_policy import CollectorPolicy, Outputs
from collector.policy.keyed_noise import restored_generators
from collector.policy.policy_call import ExplorationType, PolicyCall
from collector.policy.recurrent_state import RecurrentState
from vecenv import nest
from vecenv.actions import batch_actions
from vecenv.errors import add_note
from vecenv.nest import as_array, cast_exactly

OutputLayout = dict[str, RowLayout]


class ArrayPolicy(CollectorPolicy):
    """Policy on numpy arrays.

    columns: converter of the info entries that the policy takes, or `None`. `clock` and `threads`: see `make_policy`.
    """

    def __init__(
        self,
        call: PolicyCall,
        check: OutputCheck,
        clock: Clock,
        threads: int | None = None,
        columns: InfoExtras | None = None,
    ) -> None:
        self._call: Any = call
        self._check, self._clock, self._threads, self._columns = check, clock, threads, columns

    @property
    def layout(self) -> Mapping[str, RowLayout]:  # type: ignore[override]
        return self._check.layout

    def actions(self, obs: Any, env_ids: np.ndarray, infos: np.ndarray, stepping: np.ndarray | None = None) -> Outputs:
        """Call the policy with a row per env of `env_ids`, and return the checked outputs.

        infos: latest info of every env. stepping: the envs that step, or `None` for all.
        """
        call: PolicyCall = self._call
        if call is None:
            raise RuntimeError("the collector was shut down during this batch, for example by a step hook")
        if call.state is not None and not call.state.is_known:
            self._learn_state(call.state, obs, env_ids, infos)
        obs = self._placed(obs)
        of_infos = {} if self._columns is None else self._columns(_infos_of(env_ids, infos), env_ids)
        call.infos = np.asarray(_infos_of(env_ids, infos)) if call.takes_info else None
        inputs = (obs, call.rows_of(env_ids, stepping), of_infos) if call.wants_rows else obs
        outputs = self._check(self._arrays(inputs), len(env_ids))
        self._clock.lap("transfer")
        return outputs

    def _placed(self, obs: Any) -> Any:
        return obs

    def _arrays(self, inputs: Any) -> Outputs:
        """Return the outputs as arrays by name, valid until the next call."""
        self._clock.lap("transfer")
        found = self._call_policy(inputs)
        return {name: each if each.__class__ is np.ndarray else as_array(each) for name, each in found.items()}

    def _call_policy(self, inputs: Any) -> dict[str, Any]:
        outputs = self._check.flatten_actions(self._call(inputs))
        self._clock.lap("policy")
        return outputs

    def begin(self, env_ids: Any) -> None:
        if self._call is not None and self._call.state is not None:
            self._call.state.begin(env_ids)

    def batch(self, wanted: ExplorationType) -> AbstractContextManager[None]:
        self._call.exploration = wanted
        if self._threads is None or sys.modules.get("torch") is None:
            return nullcontext()
        from collector.device.math_libraries import policy_threads

        return policy_threads(self._threads)

    def learn(self, obs: Any, env_ids: np.ndarray, infos: np.ndarray) -> None:
        """Learn `layout` by a call of the policy, if unknown. Restore the global random generators."""
        if not self._check.returned:
            with restored_generators():
                self.actions(nest.map(np.copy, obs), env_ids, infos)  # a policy may write into its inputs
            self.begin(slice(None))

    def _learn_state(self, state: RecurrentState, obs: Any, env_ids: np.ndarray, infos: np.ndarray) -> None:
        state.is_known = True  # first, so that `actions` does not call `_learn_state` again
        try:
            with restored_generators():
                self.actions(nest.map(copy_of, obs), env_ids, infos)
        except Exception as error:
            state.is_known = False
            add_note(
                error,
                "this was the first call of a recurrent policy, with state=None, to learn the form of its state: "
                "make zeros if state is None, or give the policy a method (or attribute) initial_state(k) that "
                "returns the state of k rows",
            )
            raise
        self.begin(slice(None))

    def close(self) -> None:
        self._call = None


def _infos_of(env_ids: np.ndarray, infos: Any) -> Any:
    """Return an info per row. Padding rows and envs without an episode get another env's info."""
    if has_columns(infos) and len(env_ids) == len(infos):
        return infos
    found: np.ndarray = infos[np.minimum(env_ids, len(infos) - 1)]
    if any(info is None for info in found):
        known: Any = next((info for info in infos if info is not None), {})
        found = nest.object_array([known if info is None else info for info in found])
    return found


class OutputCheck:
    def __init__(self, env: Any) -> None:
        self.layout: OutputLayout = {}
        self.returned: OutputLayout = {}
        """Row shape and dtype of each output, before casts to the action space."""
        self.expected = action_layouts(env.action_space)
        """Row shape and dtype of each leaf of an action, or empty (see `action_layouts`)."""
        self._last: Any = None
        self._to_cast: list[str] = []
        self._space: Any = env.action_space[0]
        self._is_tree = isinstance(self._space, (spaces.Dict, spaces.Tuple))

    def __call__(self, outputs: Outputs, rows: int) -> Outputs:
        """Check the outputs, cast actions, and rebuild Dict and Tuple actions. Raises `ValueError` or `TypeError`."""
        form = rows, {name: (values.shape, values.dtype) for name, values in outputs.items()}
        if form != self._last:
            self._check(outputs, rows)
            self._last = form
        for name in self._to_cast:
            outputs[name] = self._cast(name, as_array(outputs[name]))
        if "action" not in outputs:
            action = unflatten(outputs, self._space)
            outputs = {"action": action, **{name: outputs[name] for name in outputs if name not in self.expected}}
        return outputs

    def flatten_actions(self, outputs: dict[Any, Any]) -> dict[str, Any]:
        """Replace Dict or Tuple actions by an entry per array, such as `action['move']`.

        If the action space is not a space of arrays, such as Text and Sequence, the result has one action per env.
        """
        if self.expected and not self._is_tree:
            return outputs
        action = outputs.pop("action")
        if isinstance(action, list):
            return {"action": nest.object_array([nest.tensor_on_host(each) for each in action]), **outputs}
        if not (self._is_tree and isinstance(action, (dict, tuple))):
            return {"action": action, **outputs}
        if not self.expected and isinstance(action, tuple):
            raise TypeError(
                f"the policy returned 'action' as a tuple; the action space {self._space} has leaves that are not "
                "arrays, or the spaces of the envs differ: return one action per env, as a list or an object array"
            )
        if not self.expected:
            count = len(next(nest.leaves(action), ()))
            return {"action": nest.object_array(batch_actions(action, range(count), None)), **outputs}
        return {**flatten(action, self._space), **outputs}

    def _check(self, outputs: Outputs, rows: int) -> None:
        check_policy_names(outputs)
        for name, values in outputs.items():
            if values.shape[:1] != (rows,):
                should = f"{(rows, *self.expected[name][0])}" if name in self.expected else f"({rows}, ...)"
                raise ValueError(
                    f"the policy returned {name!r} of shape {values.shape} for {rows} observations; it must be {should}"
                )
        layout = {
            name: (tuple(values.shape[1:]), dtype_of_rows(as_array(values[:0]))) for name, values in outputs.items()
        }
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
        self._to_cast = [
            name
            for name, each in layout.items()
            if in_space.get(name, each) != each or as_array(outputs[name][:0]).dtype != each[1]
        ]
        self.returned = layout
        self.layout = {
            name: in_space.get(name, each) for name, each in layout.items() if name == "action" or name not in in_space
        }

    def _cast(self, name: str, action: np.ndarray) -> np.ndarray:
        """Cast actions to the action space, because batches store the actions that envs execute. Texts: to objects."""
        if name not in self.expected:
            return action.astype(object)
        shape, dtype = self.expected[name]
        cast = action if action.dtype == dtype else cast_exactly(action, dtype)
        if cast is None or (action.dtype.kind == "f" and dtype.kind != "f"):
            raise TypeError(
                f"the policy returned {name!r} of dtype {action.dtype}; for the action space it must be {dtype}, or "
                f"fit it: {action!r}"
            )
        return cast.reshape(len(action), *shape)
