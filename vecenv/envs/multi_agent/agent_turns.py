"""AgentTurns: a PettingZoo AECEnv as a sequence of turns of agents that are alive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vecenv.envs.multi_agent.agent_spaces import AgentSpaces
from vecenv.errors import EnvContractError


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
