"""How a policy is called: what its signature asks for, and the state that it is given back."""

from __future__ import annotations

import inspect
import sys
import time
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from collector.batch.flat_rollout import copy_of
from collector.policy.exploration import ExplorationType
from collector.policy.interface import Policy, read_output
from vecenv import nest


class Signature(NamedTuple):
    """What a policy is called with."""

    keys: tuple[str, ...] = ()
    """The entries of a dict observation that it takes; empty: it takes the observation whole."""
    state: bool = False
    env_id: bool = False
    tensordict: bool = False


def signature_of(policy: Policy, observation_space: spaces.Space[Any] | None) -> Signature:
    """Read it once, when the collector is made.

    Raises `TypeError` where the policy needs arguments that are not there.
    """
    tensordict = sys.modules.get("tensordict")
    if tensordict is not None and isinstance(policy, tensordict.nn.TensorDictModuleBase):
        return Signature(tensordict=True)
    try:
        parameters = inspect.signature(getattr(policy, "forward", policy)).parameters
    except (TypeError, ValueError):  # written in C
        return Signature()
    named = [p for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    keys = set(observation_space.spaces) if isinstance(observation_space, spaces.Dict) else set()
    # Entries of the observation go before; and the first parameter is the observation, whatever its name.
    state = "state" in parameters and named[0].name != "state" and "state" not in keys
    env_id = "env_id" in parameters and "env_id" not in keys
    special = {name for name, is_special in (("state", state), ("env_id", env_id)) if is_special}
    required = [p.name for p in named if p.default is p.empty and p.name not in special]
    if required in (["tensordict"], ["td"]) or (named and len(required) <= 1 and _is_tensordict(named[0])):
        return Signature(tensordict=True)
    if required and keys.issuperset(required):
        return Signature(tuple(required), state, env_id)
    if len(required) > 1:
        known = f"they are a dict with the keys {sorted(keys)}" if keys else "they are one argument"
        raise TypeError(
            f"Arguments to policy.forward are incompatible with the observations: it needs {required}, {known}"
        )
    return Signature((), state, env_id)


def _is_tensordict(parameter: inspect.Parameter) -> bool:
    """Whether it is annotated as one. By name: annotations may be strings, and tensordict is not imported for it."""
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.strip("'\"").rpartition(".")[2] in ("TensorDict", "TensorDictBase")


class PolicyCall:
    """Calls a policy with what its signature asks for, and reads what it returns; on arrays and on tensors alike.

    Set `env_ids` to the environments of the rows before each call. `seconds` is the time spent in the policy. Where
    `wants_rows` is set, it is called with `(obs, rows())` in place of `obs`, so that both reach the policy's device the
    same way.
    """

    def __init__(self, policy: Policy, signature: Signature, exploration: ExplorationType, env_num: int) -> None:
        self.policy = policy
        self.env_ids = self._all_ids = np.arange(env_num)
        self.seconds = 0.0
        self.wants_rows = signature.state or signature.env_id
        self._signature = signature
        self._plain = signature == Signature()
        self._exploration = exploration
        self._in_order = False
        self.memory = RecurrentState(policy, env_num) if signature.state else None

    def rows(self) -> tuple[np.ndarray, ...]:
        """What the next call has to know of its rows: whose they are, and which begin an episode; nothing where all
        environments are in order and in mid-episode.
        """
        if self.memory is None:
            return (self.env_ids,)
        begun = self.memory.begun(self.env_ids)
        self._in_order = np.array_equal(self.env_ids, self._all_ids)
        if self._in_order and not len(begun) and not self._signature.env_id:
            return ()
        return self.env_ids, begun

    def __call__(self, obs: Any) -> dict[str, Any]:
        """The outputs by name; `action` is one of them."""
        begin = time.perf_counter()
        if self._plain:
            outputs = read_output(self.policy(obs), self._exploration)
        elif self._signature.tensordict:
            from collector.batch.tensordict_form import ask_tensordict

            outputs = ask_tensordict(self.policy, obs, self._exploration)
        else:
            outputs = self._ask(*obs) if self.wants_rows else self._ask(obs, ())
        self.seconds += time.perf_counter() - begin
        return outputs

    def _ask(self, obs: Any, rows: tuple[Any, ...]) -> dict[str, Any]:
        keys, _, wants_ids, _ = self._signature
        whole = () if keys else (obs,)
        named = {key: obs[key] for key in keys}
        if wants_ids:
            named["env_id"] = rows[0]
        if self.memory is None:
            return read_output(self.policy(*whole, **named), self._exploration)
        where = slice(None) if self._in_order else rows[0]
        named["state"] = self.memory.recall(where, rows[1] if rows else ())
        output = self.memory.keep(self.env_ids, where, self.policy(*whole, **named))
        return read_output(output, self._exploration)


class RecurrentState:
    """The recurrent state of a policy: a row for each environment, on the policy's device.

    An environment that begins an episode starts from zeros, or from a row of `policy.initial_state(k)`. Indices of
    `recall` and `keep` are on that device too: one that had to go there would make this process wait.
    """

    def __init__(self, policy: Policy, env_num: int) -> None:
        self._initial = getattr(policy, "initial_state", None)
        self._env_num = env_num
        self._rows: Any = None
        self._fresh = np.ones(env_num, np.bool_)

    def begin(self, env_ids: Any) -> None:
        """Episodes begin in these environments."""
        self._fresh[env_ids] = True

    def begun(self, env_ids: np.ndarray) -> np.ndarray:
        """The rows of these environments that begin an episode."""
        return self._fresh[env_ids].nonzero()[0]

    def recall(self, where: Any, begun: Any) -> Any:
        """The state of the environments `where`, of which those in the rows `begun` begin; None before there is one."""
        if self._rows is None and self._initial is not None:
            self._rows = nest.map(copy_of, self._initial(self._env_num))
        if self._rows is None:
            return None
        state = nest.take(self._rows, where)
        if isinstance(where, slice):
            state = nest.map(copy_of, state)
        if len(begun):
            first = self._initial(len(begun)) if self._initial is not None else nest.map(lambda rows: 0, state)
            nest.put(state, begun, first)
        return state

    def keep(self, env_ids: np.ndarray, where: Any, output: Any) -> Any:
        """Take the new state of `env_ids`, which are `where`, out of the policy's output, and return the rest.

        Raises `TypeError` where there is none, `ValueError` where it has another number of rows.
        """
        if isinstance(output, tuple) and len(output) == 2:
            output = {"action": output[0], "state": output[1]}
        if not isinstance(output, dict) or "state" not in output:
            raise TypeError(
                "the policy has a parameter `state`, so it must return a dict with 'action' and 'state', "
                f"or (action, state); got {type(output).__name__}"
            )
        output = dict(output)
        state = nest.map(_without_graph, output.pop("state"))
        if state is None and self._rows is None:  # as `predict` of Stable-Baselines3's models that have none
            return output
        for leaf in nest.leaves(state):
            if len(leaf) != len(env_ids):
                raise ValueError(
                    f"the policy returned 'state' of shape {tuple(leaf.shape)} for {len(env_ids)} observations; "
                    f"its first dimension must be {len(env_ids)}"
                )
        if self._rows is None:
            self._rows = nest.map(self._zeros, state)
        nest.put(self._rows, where, state)
        self._fresh[env_ids] = False
        return output

    def _zeros(self, leaf: Any) -> Any:
        shape = (self._env_num, *leaf.shape[1:])
        return np.zeros(shape, leaf.dtype) if isinstance(leaf, np.ndarray) else leaf.new_zeros(shape)


def _without_graph(leaf: Any) -> Any:
    """The same values; a state that kept its gradients would hold on to all steps before."""
    return leaf.detach() if hasattr(leaf, "detach") else leaf
