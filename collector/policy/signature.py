"""What a policy is called with, read from the names of its parameters (see `collector.policy`)."""

from __future__ import annotations

import inspect
import sys
from typing import Any, NamedTuple

from gymnasium import spaces

from collector.policy.interface import Policy


class Signature(NamedTuple):
    """The arguments that a policy takes."""

    keys: tuple[str, ...] = ()
    """The entries of a dict observation that it takes; empty: it takes the observation whole."""
    state: bool = False
    env_id: bool = False
    tensordict: bool = False


def is_tensordict_module(policy: Policy) -> bool:
    """Whether a policy is a module of tensordict's; where there is one, tensordict has been imported."""
    tensordict = sys.modules.get("tensordict")
    return tensordict is not None and isinstance(policy, tensordict.nn.TensorDictModuleBase)


def signature_of(policy: Policy, observation_space: spaces.Space[Any] | None) -> Signature:
    """Read the signature of a policy. Raises `TypeError` where it needs arguments that no observation has."""
    if is_tensordict_module(policy):
        return Signature(tensordict=True)
    try:
        parameters = inspect.signature(getattr(policy, "forward", policy)).parameters
    except (TypeError, ValueError):  # written in C
        return Signature()
    named = [p for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    keys = set(observation_space.spaces) if isinstance(observation_space, spaces.Dict) else set()
    # Entries of the observation take precedence, and the first parameter is always the observation.
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
