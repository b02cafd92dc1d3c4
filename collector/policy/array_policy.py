"""`ArrayPolicy`: calls a policy on arrays, with what its signature asks for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from collector.basics.timing import Clock
from collector.batch.step_extras import RowLayout, check_policy_names
from collector.policy.collector_policy import CollectorPolicy, Outputs, generators_kept
from collector.policy.output_check import OutputCheck
from collector.policy.policy_call import ExplorationType, PolicyCall, RecurrentState
from vecenv import nest
from vecenv.extending import add_note
from vecenv.nest import as_array


class ArrayPolicy(CollectorPolicy):
    """Calls a policy on arrays, and checks its outputs.

    call: the policy with its signature. check: checks against the action space. clock: counts the seconds of the
    policy, and those of transfers and checks. threads: the collector's `policy_threads`.
    """

    def __init__(self, call: PolicyCall, check: OutputCheck, clock: Clock, threads: int | None = None) -> None:
        self._call: Any = call
        self._check, self._clock, self._threads = check, clock, threads

    @property
    def layout(self) -> Mapping[str, RowLayout]:  # type: ignore[override]
        return self._check.layout

    def actions(self, obs: Any, env_ids: np.ndarray, infos: np.ndarray) -> Outputs:
        return self.outputs(obs, env_ids)

    def outputs(self, obs: Any, env_ids: np.ndarray, stepping: np.ndarray | None = None) -> Outputs:
        """Return the checked outputs of the policy for rows of these envs, of which `stepping` step (None: all)."""
        call: PolicyCall = self._call
        if call.state is not None and not call.state.is_known:
            self._learn_state(call.state, obs, env_ids)
        obs = self._placed(obs)
        # Rows are transferred like the observations, to the device of the policy.
        inputs = (obs, call.rows_of(env_ids, stepping)) if call.wants_rows else obs
        outputs = self._check(self._arrays(inputs), len(env_ids))
        self._clock.lap("transfer")
        return outputs

    def _placed(self, obs: Any) -> Any:
        """Return the observations that are on the policy's device already, or `obs`."""
        return obs

    def _arrays(self, inputs: Any) -> Outputs:
        """Return the outputs of the policy by name, as arrays that are valid until the next call."""
        self._clock.lap("transfer")
        found = self._called(inputs)
        return {name: each if each.__class__ is np.ndarray else as_array(each) for name, each in found.items()}

    def _called(self, inputs: Any) -> dict[str, Any]:
        """Return the policy's outputs by name, for inputs that are where the policy is."""
        outputs = self._check.by_leaf(self._call(inputs))
        self._clock.lap("policy")
        return outputs

    def begin(self, env_ids: Any) -> None:
        if self._call.state is not None:  # a recurrent policy restarts from its initial state
            self._call.state.begin(env_ids)

    def batch(self, wanted: ExplorationType) -> AbstractContextManager[None]:
        self._call.exploration = wanted
        return self._on_threads()

    @contextmanager
    def _on_threads(self) -> Iterator[None]:
        """Run torch's CPU operations of this thread on as many threads as the policy is to use, if the program uses
        torch.
        """
        threads: AbstractContextManager[None] = nullcontext()
        if self._threads is not None and sys.modules.get("torch") is not None:
            from collector.device.math_libraries import policy_threads

            threads = policy_threads(self._threads)
        with threads:
            yield

    def learn(self, obs: Any, env_ids: np.ndarray, infos: np.ndarray) -> None:
        """Call a policy that was never called, and discard what it returns; random generators are not advanced."""
        if not self._check.returned:
            with generators_kept():
                self.actions(nest.map(np.copy, obs), env_ids, infos)  # a policy may write into what it gets
            self.begin(slice(None))
            check_policy_names(self.layout)

    def _learn_state(self, state: RecurrentState, obs: Any, env_ids: np.ndarray) -> None:
        """Call the policy with `state=None` and discard what it returns: the state is zeros from the next call on."""
        state.is_known = True  # else this would not end
        try:
            with generators_kept():
                self.outputs(nest.map(np.copy, obs), env_ids)
        except Exception as error:
            state.is_known = False
            add_note(
                error,
                "this was the first call of a recurrent policy, with state=None, which shows what its state is: "
                "make zeros where state is None, or give the policy a method (or attribute) initial_state(k) that "
                "returns the state of k rows",
            )
            raise
        self.begin(slice(None))

    def close(self) -> None:
        self._call = None
