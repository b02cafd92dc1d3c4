"""PettingZooEnv: a turn-based PettingZoo env as one gymnasium env, the agent to move being part of the observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.envs.multi_agent.agent_rows import AgentTurns
from vecenv.envs.multi_agent.agent_spaces import AgentSpaces, make_env

_OTHER_NAMES = {"observation": "obs", "action_mask": "mask"}


class TurnSpace(spaces.Dict):
    """The observation space of PettingZooEnv.

    `space["observation"]` is another name of `space["obs"]`: code that was written for tianshou looks there for what
    an agent sees.
    """

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(_OTHER_NAMES.get(key, key))


class PettingZooEnv(gymnasium.Env):
    """A PettingZoo AECEnv, one turn a step (form of tianshou's PettingZooEnv), for every vector env.

    The observation is a dict for the agent whose turn it is: `agent_id` (its name), `obs` (what it sees) and, where
    the agents have Discrete actions, `mask` (bool (n,), the legal ones; all True if the env gives none). `step` takes
    the action of this agent. The reward is a vector, float64 (num_agents,) in the order of `agents`: what each agent
    got since the step before.

    Dead agents never have a turn: they are removed from the env between the steps. `terminated` and `truncated` become
    true only when no agent is alive; the observation, the flags and the info are then those of the env's last
    `agent_selection`. An illegal move ends the episode if the env has PettingZoo's TerminateIllegalWrapper, as all its
    classic games have (-1 for the offender); otherwise the env decides, and may raise.

    Arguments:
        env: an AECEnv, or the id of one in PettingZoo's registry. All its agents need the same spaces: ValueError if
            they differ, see AECVectorEnv. TypeError for a ParallelEnv.
        possible_agents: all agents that can appear, for an env without `possible_agents`.

    >>> from vecenv import DummyVectorEnv
    >>> with DummyVectorEnv([lambda: PettingZooEnv("classic/tictactoe-v3")] * 2) as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     obs, rew, terminated, truncated, info = venv.step([4, 0])
    >>> obs["agent_id"][0], obs["mask"][0], rew.shape
    ('player_2', array([ True,  True,  True,  True, False,  True,  True,  True,  True]), (2, 2))
    """

    def __init__(self, env: Any, *, possible_agents: Sequence[str] | None = None) -> None:
        self.env = env = make_env("aec", env) if isinstance(env, str) else env
        self._spaces = AgentSpaces(env, "aec", possible_agents)
        self.agents = self._spaces.agents
        if odd := [agent for agent in self.agents if not isinstance(agent, str) or not agent]:
            raise TypeError(
                f"agents must be named by strings to be part of an observation, got {odd}; use AECVectorEnv"
            )
        self.agent_idx = dict(self._spaces.index)
        self._turns = AgentTurns(env, self._spaces)
        self.metadata = dict(getattr(env, "metadata", {}))
        self.render_mode = getattr(env, "render_mode", None)
        self.action_space = self._spaces.shared("action", "use AECVectorEnv")
        letters = "".join(sorted({letter for agent in self.agents for letter in agent}))
        parts = {
            "agent_id": spaces.Text(max(map(len, self.agents)), charset=letters),
            "obs": self._spaces.shared("observation", "use AECVectorEnv"),
        }
        if size := self._spaces.mask_size.get(self.agents[0]):
            parts["mask"] = spaces.Box(0, 1, (size,), np.bool_)
        self.observation_space = TurnSpace(parts)

    @property
    def rewards(self) -> np.ndarray:
        """The reward of each agent in the last step."""
        return self._turns.rewards

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Start an episode: (obs, info) of the agent that moves first."""
        self._turns.reset(seed=seed, options=options)
        return self._obs(), self._turns.info

    def step(self, action: Any) -> tuple[dict[str, Any], np.ndarray, bool, bool, Any]:
        """The agent `agent_id` acts: (obs, rewards, terminated, truncated, info). RuntimeError if none is alive."""
        turns = self._turns
        turns.step(action)
        terminated, truncated = turns.last_flags if turns.done else (False, False)
        return self._obs(), turns.rewards, terminated, truncated, turns.info

    def _obs(self) -> dict[str, Any]:
        obs = {"agent_id": self._turns.agent, "obs": self._turns.obs}
        if self._turns.mask is not None:
            obs["mask"] = self._turns.mask
        return obs

    def render(self) -> Any:
        """A frame of the env."""
        return self.env.render()

    def close(self) -> None:
        """Close the env."""
        self.env.close()
