"""AgentTurns: a PettingZoo AECEnv as a sequence of turns of agents that are alive."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenv.envs.multi_agent.agent_spaces import AgentSpaces
from vecenv.errors import EnvContractError


class AgentTurns:
    """Plays an AECEnv. Dead agents are taken out of it (a step with the action None) between the turns.

    After `reset` and `step`:
        agent: whose turn it is; `obs`, `mask` and `info` are what this agent is told. At the end of the episode, the
            agent that the env names then, one of those that died last.
        rewards, terminated, truncated: (num_agents,) what happened to each agent since the turn before.
        active: the agents that were alive in the turn before, `alive` those that are alive now.
        done: nobody is alive.
    """

    def __init__(self, env: Any, spaces: AgentSpaces) -> None:
        self.env = env
        self.spaces = spaces
        n = len(spaces.agents)
        self.rewards = np.zeros(n)
        self.terminated, self.truncated, self.active, self.alive = (np.zeros(n, dtype=np.bool_) for _ in range(4))
        self.agent: Any = None
        self.obs: Any = None
        self.mask: np.ndarray | None = None
        self.info: Any = {}
        self.last_flags = (False, False)
        """Terminated and truncated of `agent`."""
        self.done = True
        self._gone: set[Any] = set()
        """The agents whose end has been told."""

    def reset(self, **kwargs: Any) -> None:
        """Start an episode."""
        self.env.reset(**kwargs)
        self.alive[:] = False
        self._gone.clear()
        self._begin()
        self._go_to_next_turn()

    def step(self, action: Any) -> None:
        """The agent whose turn it is acts. RuntimeError if the episode is over, or has not begun."""
        if self.done:
            raise RuntimeError(
                "nobody is alive to take this action: the episode is over or was never begun; call reset()"
            )
        self._begin()
        self.env.step(action)
        self._note_rewards()
        self._go_to_next_turn()

    def _begin(self) -> None:
        self.active[:] = self.alive
        self.rewards[:] = 0.0
        self.terminated[:] = False
        self.truncated[:] = False

    def _go_to_next_turn(self) -> None:
        env = self.env
        while True:
            self._note_deaths()
            self.done = not self.alive.any()
            agent = env.agent_selection
            if self.done or not (env.terminations[agent] or env.truncations[agent]):
                break
            env.step(None)  # pays no rewards
            if agent in env.agents:  # it would be its turn for ever
                raise EnvContractError(f"agent {agent!r} is dead and was stepped with None, but the env has kept it")
        if agent in env.agents:
            obs, _, terminated, truncated, info = env.last()
            self.agent, self.last_flags = agent, (bool(terminated), bool(truncated))
            self.obs, self.mask, self.info = self.spaces.split(agent, obs, info)

    def _note_rewards(self) -> None:
        for agent, reward in self.env.rewards.items():
            self.rewards[self.spaces.position(agent)] += reward

    def _note_deaths(self) -> None:
        env = self.env
        self.alive[:] = False
        for agent in env.agents:
            terminated, truncated = bool(env.terminations[agent]), bool(env.truncations[agent])
            if not terminated and not truncated:
                self.alive[self.spaces.position(agent)] = True
                self._gone.discard(agent)
            elif agent not in self._gone:
                self._gone.add(agent)
                j = self.spaces.position(agent)
                self.terminated[j], self.truncated[j] = terminated, truncated
