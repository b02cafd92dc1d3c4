"""AgentActions: the actions for a batch of multi-agent envs, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.memory.layout import Leaf, space_tree
from vecenv.engine.actions import batch_actions
from vecenv.envs.multi_agent.agent_spaces import AgentSpaces, zeros


class AgentActions:
    """Converts the caller's actions into a batch for the engine, and refuses those that do not fit.

    Actions are a dict of batches, one for each agent, or with `single` one batch for the agents to move. With
    `check_legal` each action has to be in the space of its agent and allowed by its mask.
    """

    def __init__(self, known: AgentSpaces, num_envs: int, single: bool, check_legal: bool) -> None:
        self._known = known
        self._single = single
        self._check_legal = check_legal
        self._layouts = {agent: space_tree(space, "action") for agent, space in known.action.items()}
        self._all_arrays = all(isinstance(leaf, Leaf) for leaf in nest.leaves(self._layouts))
        self._acts = np.zeros((num_envs, len(known.agents)), dtype=np.bool_)
        """The agents that act in the next step of each env; none in an env that has to be reset."""
        self._masks: Any = None

    def note(self, raw: Any, ids: np.ndarray) -> None:
        """Note from rows of the envs `ids` which agents act next, and their masks."""
        acts = raw["alive"]
        self._acts[ids] = acts & (raw["agent"][:, None] == np.arange(acts.shape[1])) if "agent" in raw else acts
        if self._check_legal and "action_mask" in raw:
            if self._masks is None:
                n = len(self._acts)
                self._masks = nest.map(lambda mask: np.ones((n, *mask.shape[1:]), dtype=np.bool_), raw["action_mask"])
            nest.put(self._masks, ids, raw["action_mask"])

    def discard(self, ids: Sequence[int]) -> None:
        """Discard which agents act in these envs: until a reset the engine refuses to step them anyway."""
        self._acts[ids] = False

    def batch(self, actions: Any, ids: np.ndarray) -> Any:
        """The actions for the envs `ids`: a tree of arrays, or a list of one action an env.

        Agents that do not act may be left out; their entries are zeros. Raises the ValueError and TypeError that
        ParallelVectorEnv documents.
        """
        acting, asked = self._acts[ids], ids.tolist()
        if self._single:
            batch = _fitting(actions, asked, self._layouts[self._known.agents[0]], "action of the agent to move")
        else:
            self._check_agents(actions, asked, acting)
            batch = {
                agent: _fitting(actions[agent], asked, layout, f"action of agent {agent!r}")
                if agent in actions
                else zeros(layout, len(asked))
                for agent, layout in self._layouts.items()
            }
        if self._check_legal:
            for row, j in np.argwhere(acting).tolist():
                agent = self._known.agents[j]
                self._check_one(nest.take(batch if self._single else batch[agent], row), agent, asked[row])
        return batch if self._all_arrays else [nest.take(batch, row) for row in range(len(asked))]

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
        """ValueError for an action that is not in the agent's space, or that its mask forbids."""
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


def _fitting(batch: Any, asked: list[int], layout: Any, path: str) -> Any:
    """The actions of one agent in the envs `asked`: a tree of arrays, with lists for what has no fixed shape."""
    if isinstance(layout, (dict, tuple)):
        if isinstance(layout, dict):
            keys, fits = list(layout), isinstance(batch, Mapping) and batch.keys() == layout.keys()
        else:
            keys, fits = list(range(len(layout))), isinstance(batch, tuple) and len(batch) == len(layout)
        if not fits:
            form = f"a {type(layout).__name__} with the batches {keys}"
            raise ValueError(f"{path} for envs {asked} must be {form}, got {batch!r}")
        parts = {key: _fitting(batch[key], asked, layout[key], f"{path}[{key!r}]") for key in keys}
        return parts if isinstance(layout, dict) else tuple(parts.values())
    is_array = isinstance(layout, Leaf)
    try:
        fitting = batch_actions(batch, asked, layout if is_array else None)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path}: {error}") from None
    if not is_array or isinstance(fitting, np.ndarray):
        return fitting
    for i, action in zip(asked, fitting, strict=True):
        shape = np.array(action, dtype=object).shape
        if shape != layout.shape:
            raise ValueError(f"{path} for env {i} has the shape {shape}, expected {layout.shape}: {action!r}")
    raise TypeError(f"{path} for envs {asked} cannot be cast to {layout.dtype.name}: {batch!r}")
