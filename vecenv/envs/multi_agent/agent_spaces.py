"""AgentSpaces: the agents of a PettingZoo env, their spaces, and where their action masks are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.backends.memory.layout import Leaf, space_tree
from vecenv.errors import EnvContractError

MASK = "action_mask"


def make_env(kind: str, env_id: str) -> Any:
    """An env of PettingZoo's registry; `kind` is "aec" or "parallel"."""
    try:
        from pettingzoo import make
    except ImportError as error:
        raise ImportError(
            f"{env_id!r} is an id of PettingZoo's registry, which needs PettingZoo 1.27 or newer: "
            "pip install -U 'vecenv[pettingzoo]'"
        ) from error
    return make(kind, env_id)


def as_env_fns(kind: str, env_fns: Any) -> Any:
    """The `env_fns` with a function in the place of each id."""
    if isinstance(env_fns, (list, tuple)):
        return [partial(make_env, kind, fn) if isinstance(fn, str) else fn for fn in env_fns]
    return env_fns


class AgentSpaces:
    """The spaces of all agents of an env, in the order of `agents`.

    A mask that is part of an agent's observation is taken out of it: `observation` holds what is left, which is the
    entry "observation" if there is no other. Masks belong to Discrete action spaces: `mask_size` has their lengths.
    """

    def __init__(self, env: Any, agents: Sequence[Any]) -> None:
        self.agents = list(agents)
        self.index = {agent: j for j, agent in enumerate(self.agents)}
        self.action: dict[Any, Any] = {agent: env.action_space(agent) for agent in self.agents}
        self.mask_size = {
            agent: int(space.n) for agent, space in self.action.items() if isinstance(space, spaces.Discrete)
        }
        seen = {agent: env.observation_space(agent) for agent in self.agents}
        self._rest = {agent: _keys_beside_mask(seen[agent]) for agent in self.mask_size if _has_mask(seen[agent])}
        self.observation = {agent: self._without_mask(agent, space) for agent, space in seen.items()}

    def _without_mask(self, agent: Any, space: Any) -> Any:
        keys = self._rest.get(agent)
        if keys is None:
            return space
        return space["observation"] if keys == ["observation"] else spaces.Dict({key: space[key] for key in keys})

    def split(self, agent: Any, obs: Any, info: Mapping[str, Any]) -> tuple[Any, np.ndarray | None, Mapping[str, Any]]:
        """(obs, mask, info) with the mask taken from where the env put it.

        All True if there is none, None for an action space that is not Discrete.
        """
        size = self.mask_size.get(agent)
        if size is None:
            return obs, None, info
        keys = self._rest.get(agent)
        if keys is not None:
            mask = obs[MASK]
            obs = obs["observation"] if keys == ["observation"] else {key: obs[key] for key in keys}
        elif MASK in info:
            mask, info = info[MASK], {key: value for key, value in info.items() if key != MASK}
        else:
            return obs, np.ones(size, dtype=np.bool_), info
        array = np.asarray(mask).astype(np.bool_)
        if array.shape != (size,):
            raise EnvContractError(f"agent {agent!r}: the action mask has the shape {array.shape}, expected ({size},)")
        return obs, array, info

    def position(self, agent: Any) -> int:
        """The index of an agent; EnvContractError for one that is not in `agents`."""
        try:
            return self.index[agent]
        except KeyError:
            raise EnvContractError(
                f"the agent {agent!r} is not one of the possible agents {self.agents}; pass possible_agents=[...] with "
                "all that can appear"
            ) from None

    def equal(self, kind: str) -> bool:
        """Whether all agents have the same space; `kind` is "observation" or "action"."""
        first, *others = getattr(self, kind).values()
        return all(space == first for space in others)


def common_spaces(found: Sequence[AgentSpaces]) -> AgentSpaces:
    """The spaces of all envs; ValueError, with the env and the agent named, if an env differs from the first."""
    first = found[0]
    for i, other in enumerate(found):
        if other.agents != first.agents:
            raise ValueError(
                f"all envs must have the same possible agents in the same order: env 0 has {first.agents}, "
                f"env {i} has {other.agents}"
            )
        for kind in ("observation", "action"):
            for agent in first.agents:
                mine, theirs = getattr(first, kind)[agent], getattr(other, kind)[agent]
                if mine != theirs:
                    raise ValueError(
                        f"the {kind} space of agent {agent!r} is {mine} in env 0, but {theirs} in env {i}; "
                        "all envs must be alike"
                    )
    return first


def _has_mask(space: Any) -> bool:
    return isinstance(space, spaces.Dict) and MASK in space.spaces and len(space.spaces) > 1


def _keys_beside_mask(space: spaces.Dict) -> list[Any]:
    return [key for key in space.spaces if key != MASK]


def possible_agents(env: Any, given: Sequence[Any] | None) -> list[Any]:
    """All agents that can appear in the env, in a fixed order: those `given`, else the env's `possible_agents`."""
    agents = getattr(env, "possible_agents", None) if given is None else given
    if agents is None:
        raise TypeError(f"{env} has no possible_agents; pass possible_agents=[...] with all agents that can appear")
    agents = list(agents)
    if not agents or len(set(agents)) != len(agents):
        raise ValueError(f"the possible agents must be one or more, no two the same; got {agents}")
    return agents


def zeros(space: Any) -> Any:
    """The observation of an agent that is not there: zeros of the space, None where it has no fixed shape."""
    return nest.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, Leaf) else None, space_tree(space, "obs")
    )


_CLASSES = {"aec": "an AECEnv", "parallel": "a ParallelEnv"}
_ADAPTERS = {"aec": "AECVectorEnv or PettingZooEnv", "parallel": "ParallelVectorEnv"}


def check_kind(env: Any, kind: str, taker: str) -> None:
    """TypeError if `env` is not a PettingZoo env of this kind, with the class to use instead of `taker`."""
    if not callable(getattr(env, "observation_space", None)) or not callable(getattr(env, "step", None)):
        raise TypeError(f"{taker} takes {_CLASSES[kind]} of PettingZoo, got {env!r}")
    found = "aec" if callable(getattr(env, "last", None)) else "parallel"
    if found != kind:
        raise TypeError(f"{taker} takes {_CLASSES[kind]}, {env} is {_CLASSES[found]}: use {_ADAPTERS[found]}")
