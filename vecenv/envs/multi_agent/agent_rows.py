"""Rows of agents: PettingZoo envs as gymnasium-style envs with all agents in one Dict observation.

The workers of ParallelVectorEnv and AECVectorEnv host these. A row of the batch is

    obs         ParallelRows: {agent: observation}. AECRows: the observation of the agent to move, or such a dict where
                the agents' observation spaces differ
    action_mask the legal actions: {agent: bool (n,)}, or bool (n,) of the agent to move
    agent       AECRows: the index of the agent to move
    rewards     float64 (num_agents,), and `terminated`, `truncated`, `active`, `alive`: bool (num_agents,)

so that the arrays of the engine carry everything. The flag `terminated` of the step itself means that no agent is
alive; the info is {agent: info}, without empty ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.backends.memory.arena import space_tree
from vecenv.envs.multi_agent.agent_spaces import AgentSpaces, zeros
from vecenv.errors import EnvContractError

COLUMNS = ("rewards", "terminated", "truncated", "active", "alive")
"""The parts of a row with one number per agent."""

Row = dict[str, Any]


class AgentTurns:
    """Steps an AECEnv. Between the turns dead agents are removed from it, by steps with the action None.

    After `reset` and `step`:
        agent: the one whose turn it is; `obs`, `mask` and `info` are for this agent. At the end of the episode it is
            the env's `agent_selection`, one of the agents that died last.
        rewards, terminated, truncated: (num_agents,) what happened to each agent since the turn before.
        active: the agents that were alive in the turn before, `alive` those that are alive now.
        done: no agent is alive.
    """

    def __init__(self, env: Any, spaces: AgentSpaces) -> None:
        self.env, self.spaces = env, spaces
        self.agent: Any = None
        self.obs: Any = None
        self.mask: np.ndarray | None = None
        self.info: Any = {}
        self.last_flags = (False, False)
        """Terminated and truncated of `agent`."""
        self.done = True
        self.rewards = np.zeros(len(spaces.agents))
        self.alive = np.zeros(len(spaces.agents), dtype=np.bool_)
        self._ended: set[Any] = set()
        """The agents whose end has been reported."""

    def reset(self, **kwargs: Any) -> None:
        """Start an episode."""
        self.env.reset(**kwargs)
        self.alive = np.zeros_like(self.alive)
        self._ended.clear()
        self._go_to_next_turn({})

    def step(self, action: Any) -> None:
        """Step the agent whose turn it is. RuntimeError if the episode is over, or has not begun."""
        if self.done:
            raise RuntimeError("no agent is alive to act: the episode is over or was never begun; call reset()")
        self.env.step(action)
        self._go_to_next_turn(self.env.rewards)

    def _go_to_next_turn(self, rewards: Mapping[Any, Any]) -> None:
        env, self.active = self.env, self.alive
        self.rewards = np.zeros(len(self.alive))
        self.terminated, self.truncated = np.zeros((2, len(self.alive)), dtype=np.bool_)
        for agent, reward in rewards.items():
            self.rewards[self.spaces.position(agent)] += reward
        while True:
            self._note_deaths()
            self.done = not self.alive.any()
            agent = env.agent_selection
            if self.done or not (env.terminations[agent] or env.truncations[agent]):
                break
            env.step(None)  # gives no rewards
            if agent in env.agents:  # this loop would never end
                raise EnvContractError(f"env.step(None) did not remove the dead agent {agent!r} from env.agents")
        if agent in env.agents:
            obs, _, terminated, truncated, info = env.last()
            self.agent, self.last_flags = agent, (bool(terminated), bool(truncated))
            self.obs, self.mask, self.info = self.spaces.split(agent, obs, info)

    def _note_deaths(self) -> None:
        env, self.alive = self.env, np.zeros_like(self.alive)
        terminations, truncations = env.terminations, env.truncations
        for agent in env.agents:
            j, terminated, truncated = self.spaces.position(agent), terminations[agent], truncations[agent]
            if not terminated and not truncated:
                self.alive[j] = True
                self._ended.discard(agent)
            elif agent not in self._ended:
                self._ended.add(agent)
                self.terminated[j], self.truncated[j] = terminated, truncated


class _Rows:
    """Base of both classes. `env` is the PettingZoo env; `get_env_attr` finds its attributes through this name."""

    kind: str

    def __init__(self, env_fn: Callable[[], Any], agents: Sequence[Any] | None) -> None:
        self.env = env_fn()
        self.agent_spaces = AgentSpaces(self.env, self.kind, agents)
        self.metadata = dict(getattr(self.env, "metadata", None) or {})
        self.render_mode = getattr(self.env, "render_mode", None)
        self._zeros = {agent: zeros(space_tree(space, "obs")) for agent, space in self.agent_spaces.observation.items()}

    def _space(self, **parts: Any) -> spaces.Dict:
        """The space of a row with these parts, the rewards and the flags."""
        n = len(self.agent_spaces.agents)
        columns = {name: _flags(n) for name in COLUMNS} | {"rewards": spaces.Box(-np.inf, np.inf, (n,), np.float64)}
        return spaces.Dict({**parts, **columns})

    unwrapped = property(attrgetter("env.unwrapped"))
    """The innermost env, by which backends detect one env object behind two ids."""
    render = property(attrgetter("env.render"))
    close = property(attrgetter("env.close"))


class ParallelRows(_Rows):
    """A ParallelEnv: in each step all agents that are alive act."""

    kind = "parallel"

    def __init__(self, env_fn: Callable[[], Any], agents: Sequence[Any] | None) -> None:
        super().__init__(env_fn, agents)
        known = self.agent_spaces
        masks = {agent: _flags(size) for agent, size in known.mask_size.items()}
        self.action_space = _by_agent(known.action)
        self.observation_space = self._space(obs=_by_agent(known.observation), action_mask=_by_agent(masks))

    def reset(self, **kwargs: Any) -> tuple[Row, dict[Any, Any]]:
        """Start an episode: no agent is `active` in its first row."""
        obs, infos = self.env.reset(**kwargs)
        return self._row((), obs, {}, {}, {}, infos)

    def step(self, action: Mapping[Any, Any]) -> tuple[Row, float, bool, bool, dict[Any, Any]]:
        """All agents that are alive act; what `action` has for the others is ignored."""
        active = list(self.env.agents)
        row, infos = self._row(active, *self.env.step({agent: action[agent] for agent in active}))
        return row, 0.0, not row["alive"].any(), False, infos

    def _row(
        self, active: Any, obs: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any
    ) -> tuple[Row, dict[Any, Any]]:
        known, active, alive = self.agent_spaces, set(active), set(self.env.agents)
        for agent in {*rewards, *terminated, *truncated, *alive} - known.index.keys():
            known.position(agent)  # raises
        row: Row = {"obs": {}, "action_mask": {}}
        events, given = [], {}
        for agent in known.agents:
            ended, cut = bool(terminated.get(agent)), bool(truncated.get(agent))
            acted, lives = agent in active, agent in alive and not (ended or cut)
            # An agent that was not alive before and is not alive now gets no reward.
            reward = float(rewards.get(agent, 0.0)) if acted or lives else 0.0
            events.append((reward, acted and ended, acted and cut, acted, lives))
            mask = None
            if agent in obs and (acted or lives):
                row["obs"][agent], mask, info = known.split(agent, obs[agent], infos.get(agent, {}))
                if info:
                    given[agent] = info
            elif lives:
                raise EnvContractError(f"agent {agent!r} is alive, but the env returned no observation for it")
            else:
                row["obs"][agent] = self._zeros[agent]
            if (size := known.mask_size.get(agent)) is not None:
                # Every action of an absent agent is legal: policies need a legal one in each row.
                row["action_mask"][agent] = np.ones(size, dtype=np.bool_) if mask is None else mask
        return row | dict(zip(COLUMNS, map(np.array, zip(*events, strict=True)), strict=True)), given


class AECRows(_Rows):
    """An AECEnv: each step is the turn of one agent that is alive."""

    kind = "aec"

    def __init__(self, env_fn: Callable[[], Any], agents: Sequence[Any] | None) -> None:
        super().__init__(env_fn, agents)
        known = self.agent_spaces
        self._turns = AgentTurns(self.env, known)
        self._single_obs, self._single_action = known.equal("observation"), known.equal("action")
        first = known.agents[0]
        parts = {"action_mask": _flags(max(known.mask_size.values()))} if known.mask_size else {}
        self.action_space = known.action[first] if self._single_action else _by_agent(known.action)
        self.observation_space = self._space(
            obs=known.observation[first] if self._single_obs else _by_agent(known.observation),
            agent=spaces.Discrete(len(known.agents)),
            **parts,
        )

    def reset(self, **kwargs: Any) -> tuple[Row, dict[Any, Any]]:
        """Start an episode."""
        self._turns.reset(**kwargs)
        return self._row()

    def step(self, action: Any) -> tuple[Row, float, bool, bool, dict[Any, Any]]:
        """The agent to move acts; where the agents differ, `action` has an entry for each."""
        self._turns.step(action if self._single_action else action[self._turns.agent])
        row, info = self._row()
        return row, 0.0, self._turns.done, False, info

    def _row(self) -> tuple[Row, dict[Any, Any]]:
        turns, known = self._turns, self.agent_spaces
        row: Row = {name: getattr(turns, name) for name in COLUMNS}
        row["obs"] = turns.obs if self._single_obs else {**self._zeros, turns.agent: turns.obs}
        row["agent"] = known.index[turns.agent]
        if known.mask_size:
            # One width for all agents: actions beyond an agent's own space are illegal.
            row["action_mask"] = np.zeros(max(known.mask_size.values()), dtype=np.bool_)
            if turns.mask is not None:  # with no agent alive all are legal: policies need a legal one in each row
                row["action_mask"][: len(turns.mask)] = turns.mask | turns.done
        return row, {turns.agent: turns.info} if turns.info else {}


def _by_agent(agent_spaces: Mapping[Any, Any]) -> spaces.Dict:
    """A Dict space in the order of the agents: gymnasium sorts the keys of a dict, but not pairs."""
    return spaces.Dict(list(agent_spaces.items()))


def _flags(n: int) -> spaces.Box:
    return spaces.Box(0, 1, (n,), np.bool_)  # type: ignore[arg-type]
