"""`AgentSpaces`: spaces and action masks of PettingZoo's agents. `AgentActions`: checks and batches of actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.actions import batch_actions
from vecenv.errors import EnvContractError
from vecenv.layout import Leaf, space_tree

MASK = "action_mask"
_API_NAMES = {"aec": ("an AECEnv", "AECVectorEnv or PettingZooEnv"), "parallel": ("a ParallelEnv", "ParallelVectorEnv")}


def make_pettingzoo(kind: str, env_id: str) -> Any:
    try:
        from pettingzoo import make
    except ImportError as error:
        raise ImportError(
            f"{env_id!r} is an id of PettingZoo's registry, which needs PettingZoo 1.27 or newer: "
            "pip install -U 'vecenv[pettingzoo]'"
        ) from error
    return make(kind, env_id)


class AgentSpaces:
    """Spaces of all agents of an env, in the order of `agents`. `kind` is "aec" or "parallel".

    `mask_size` maps each agent with Discrete actions to the length of its action mask. If the env puts this mask into
    the agent's observation, `observation[agent]` is a Dict space of the other keys, or if the only other key is
    "observation", the space of this key.
    """

    def __init__(self, env: Any, kind: str, agents: Sequence[Any] | None) -> None:
        self.agents = _agents_of(env, kind, agents)
        self.index = {agent: j for j, agent in enumerate(self.agents)}
        self.action: dict[Any, Any] = {agent: _space_of(env, "action_space", agent) for agent in self.agents}
        self.mask_size = {
            agent: int(space.n) for agent, space in self.action.items() if isinstance(space, spaces.Discrete)
        }
        self.observation: dict[Any, Any] = {agent: _space_of(env, "observation_space", agent) for agent in self.agents}
        self._rest: dict[Any, list[Any]] = {}
        """{agent: keys of its observation except the action mask}, for agents that observe a mask."""
        for agent in self.mask_size:
            space = self.observation[agent]
            if isinstance(space, spaces.Dict) and MASK in space.spaces and len(space.spaces) > 1:
                self._rest[agent] = [key for key in space.spaces if key != MASK]
                self.observation[agent] = self._without_mask(agent, space, spaces.Dict)

    def _without_mask(self, agent: Any, whole: Any, make: Callable[[dict[Any, Any]], Any] = dict) -> Any:
        keys = self._rest[agent]
        return whole["observation"] if keys == ["observation"] else make({key: whole[key] for key in keys})

    def split_mask(
        self, agent: Any, obs: Any, info: Mapping[str, Any]
    ) -> tuple[Any, np.ndarray | None, Mapping[str, Any]]:
        """Remove the action mask from the observation or info. Return (obs, mask, info).

        The mask is all True if the env has no mask, and None unless actions are Discrete.
        """
        size = self.mask_size.get(agent)
        if size is None:
            return obs, None, info
        if agent in self._rest:
            mask, obs = obs[MASK], self._without_mask(agent, obs)
        elif MASK in info:
            mask, info = info[MASK], {key: value for key, value in info.items() if key != MASK}
        else:
            return obs, np.ones(size, dtype=np.bool_), info
        array = np.asarray(mask).astype(np.bool_)
        if array.shape != (size,):
            raise EnvContractError(f"agent {agent!r}: the action mask has the shape {array.shape}, expected ({size},)")
        return obs, array, info

    def position(self, agent: Any) -> int:
        if agent not in self.index:
            raise EnvContractError(
                f"the agent {agent!r} is not one of the possible agents {self.agents}; pass possible_agents=[...] with "
                "all agents that can appear"
            )
        return self.index[agent]

    def has_shared_space(self, kind: str) -> bool:
        first, *others = getattr(self, kind).values()
        return all(space == first for space in others)

    def shared_space(self, kind: str, hint: str) -> Any:
        found = getattr(self, kind)
        if not self.has_shared_space(kind):
            raise ValueError(f"the agents differ in their {kind} space; {hint}. Their spaces: {found}")
        return found[self.agents[0]]


def common_spaces(found: Sequence[AgentSpaces]) -> AgentSpaces:
    first = found[0]
    for i, other in enumerate(found):
        if other.agents != first.agents:
            raise ValueError(
                f"all envs must have the same possible agents in the same order: env 0 has {first.agents}, "
                f"env {i} has {other.agents}"
            )
        for kind in ("observation", "action"):
            for agent, mine in getattr(first, kind).items():
                if mine != (theirs := getattr(other, kind)[agent]):
                    raise ValueError(
                        f"all envs must be alike: the {kind} space of agent {agent!r} is {mine} in env 0, but {theirs} "
                        f"in env {i}"
                    )
    return first


def _agents_of(env: Any, kind: str, given: Sequence[Any] | None) -> list[Any]:
    known = callable(getattr(env, "observation_space", None)) and callable(getattr(env, "step", None))
    found = None if not known else "aec" if callable(getattr(env, "last", None)) else "parallel"
    if found != kind:
        instead = ", which is {}: use {}".format(*_API_NAMES[found]) if found else ""
        raise TypeError(f"expected {_API_NAMES[kind][0]} of PettingZoo, got {env}{instead}")
    agents = getattr(env, "possible_agents", None) if given is None else given
    if agents is None:
        raise TypeError(f"{env} has no possible_agents; pass possible_agents=[...] with all agents that can appear")
    agents = list(agents)
    if not agents or len(set(agents)) != len(agents):
        raise ValueError(f"possible_agents must have at least one agent and no duplicates, got {agents}")
    return agents


def _space_of(env: Any, name: str, agent: Any) -> spaces.Space[Any]:
    error = None
    try:
        space = getattr(env, name)(agent)
    except (AttributeError, KeyError) as caught:  # PettingZoo's method reads the dict `observation_spaces`
        space, error = None, caught
    if isinstance(space, spaces.Space):
        return space
    got = f"returned {space!r}" if error is None else f"raised {type(error).__name__}: {error}"
    raise TypeError(
        f"{name}({agent!r}) of {env} {got}, expected a gymnasium space; define the method {name}(agent) or the dict "
        f"{name}s in a subclass of the env"
    ) from error


def zeros(layout: Any, *batch: int) -> Any:
    """Return zeros (*batch, *shape) per leaf, for an absent agent. Leaves without a fixed shape become `None`."""

    def zero(leaf: Any) -> Any:
        return np.zeros((*batch, *leaf.shape), leaf.dtype) if isinstance(leaf, Leaf) else np.full(batch, None)[()]

    return nest.map(zero, layout)


class AgentActions:
    """Converter that checks the caller's actions and batches them for the engine.

    The caller passes a dict with a batch per agent. With `single` (one agent moves in each env), the caller passes
    one batch with an action per env.
    """

    def __init__(self, known: AgentSpaces, num_envs: int, single: bool, check_legal: bool) -> None:
        self._known = known
        self._single = single
        self._check_legal = check_legal
        self._layouts = {agent: space_tree(space, "action") for agent, space in known.action.items()}
        for agent, layout in self._layouts.items():
            if not all(isinstance(leaf, Leaf) for leaf in nest.leaves(layout)):
                raise TypeError(
                    f"the action space of agent {agent!r} is {known.action[agent]}, expected a space of arrays: Box, "
                    "Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these"
                )
        self._acts = np.zeros((num_envs, len(known.agents)), dtype=np.bool_)
        """Mask (num_envs, num_agents) of the agents that act next. All False for an env that needs a reset."""
        self._masks: Any = None

    def record(self, raw: Any, ids: np.ndarray) -> None:
        acts = raw["alive"]
        self._acts[ids] = acts & (raw["agent"][:, None] == np.arange(acts.shape[1])) if "agent" in raw else acts
        if self._check_legal and "action_mask" in raw:
            if self._masks is None:
                n = len(self._acts)
                self._masks = nest.map(lambda mask: np.ones((n, *mask.shape[1:]), dtype=np.bool_), raw["action_mask"])
            nest.put(self._masks, ids, raw["action_mask"])

    def discard(self, ids: Sequence[int]) -> None:
        """Record that no agent acts in these envs until a reset."""
        self._acts[ids] = False

    def batch(self, actions: Any, ids: np.ndarray) -> Any:
        """Check the actions for the envs `ids`. Return a tree of arrays. Missing agents get zeros."""
        acting, asked = self._acts[ids], ids.tolist()
        if self._single:
            batch = _batch_of_agent(actions, asked, self._layouts[self._known.agents[0]], "action of the agent to move")
        else:
            self._check_agents(actions, asked, acting)
            batch = {
                agent: _batch_of_agent(actions[agent], asked, layout, f"action of agent {agent!r}")
                if agent in actions
                else zeros(layout, len(asked))
                for agent, layout in self._layouts.items()
            }
        if self._check_legal:
            for row, j in np.argwhere(acting).tolist():
                agent = self._known.agents[j]
                self._check_one(nest.take(batch if self._single else batch[agent], row), agent, asked[row])
        return batch

    def _check_agents(self, actions: Any, asked: list[int], acting: np.ndarray) -> None:
        agents = self._known.agents
        if not isinstance(actions, Mapping):
            raise TypeError(
                f"actions for envs {asked} must be a dict with a batch for each agent of {agents}, got a "
                f"{type(actions).__name__}"
            )
        if unknown := [agent for agent in actions if agent not in self._layouts]:
            raise ValueError(f"actions for envs {asked} have the unknown agent {unknown[0]!r}; the agents are {agents}")
        for j, agent in enumerate(agents):
            if agent not in actions and acting[:, j].any():
                i = asked[acting[:, j].argmax()]
                raise ValueError(f"no actions for agent {agent!r}, which acts next in env {i}; got {list(actions)}")

    def _check_one(self, action: Any, agent: Any, env_id: int) -> None:
        space = self._known.action[agent]
        if not space.contains(action):
            raise ValueError(f"the action {action!r} of agent {agent!r} in env {env_id} is not in its space {space}")
        if agent not in self._known.mask_size:
            return
        mask = (self._masks[agent] if isinstance(self._masks, dict) else self._masks)[env_id]
        if not mask[int(action) - int(space.start)]:
            raise ValueError(
                f"the action {action!r} of agent {agent!r} in env {env_id} is illegal now; its legal actions are "
                f"{(np.flatnonzero(mask) + space.start).tolist()}"
            )


def _batch_of_agent(batch: Any, asked: list[int], layout: Any, path: str) -> Any:
    try:
        # A bare tuple could be one action per env, and a list could be taken for a tuple of batches.
        is_tree = isinstance(layout, Leaf) or not isinstance(batch, list)
        fitting = batch_actions({path: batch}, asked, {path: layout}) if is_tree else None
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path}: {error}") from None
    if isinstance(fitting, dict):
        return fitting[path]
    if isinstance(layout, Leaf):
        raise TypeError(f"{path} for envs {asked} cannot be cast to {layout.dtype.name}: {batch!r}")
    keys = list(layout) if isinstance(layout, dict) else list(range(len(layout)))
    raise ValueError(f"{path} for envs {asked} must be a {type(layout).__name__} of batches {keys}, got {batch!r}")
