"""PettingZoo envs for tests. Workers import this module, so it imports little."""

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import parallel_to_aec
from pettingzoo.utils.agent_selector import AgentSelector


class Zoo(ParallelEnv):
    """Four animals with unequal spaces. The ant dies in step 3, the dog arrives in step 2, and time is up in step 6.

    Observations hold the seed and the time, rewards the agent's action. The bee's mask is in its observation, the ant's
    mask in its info. The cat has a Dict observation and a Dict action.
    """

    metadata = {"name": "zoo_v0", "render_modes": ["rgb_array"], "is_parallelizable": True}
    render_mode = "rgb_array"
    possible_agents = ["cat", "ant", "bee", "dog"]
    _obs = {
        "ant": spaces.Box(-99, 99, (2,), np.float32),
        "bee": spaces.Dict({"observation": spaces.Box(-99, 99, (3,), np.int64), "action_mask": spaces.MultiBinary(4)}),
        "cat": spaces.Dict({"eyes": spaces.Box(0, 255, (2, 2), np.uint8), "mood": spaces.Discrete(99)}),
        "dog": spaces.Discrete(99),
    }
    _act = {
        "ant": spaces.Discrete(3),
        "bee": spaces.Discrete(4),
        "cat": spaces.Dict({"paw": spaces.Box(-1, 1, (2,), np.float32), "purr": spaces.Discrete(2)}),
        "dog": spaces.MultiDiscrete([3, 2]),
    }

    def __init__(self, raises_at=None):
        self.raises_at = raises_at
        self.closed = 0

    def observation_space(self, agent):
        return self._obs[agent]

    def action_space(self, agent):
        return self._act[agent]

    def reset(self, seed=None, options=None):
        self.seed_used = seed if seed is not None else getattr(self, "seed_used", 0) + 1
        self.t = (options or {}).get("t", 0)
        self.agents = ["cat", "ant", "bee"]
        return {agent: self._see(agent) for agent in self.agents}, {agent: self._say(agent) for agent in self.agents}

    def _see(self, agent):
        s, t = self.seed_used % 50, self.t
        return {
            "ant": np.array([s, t], np.float32),
            "bee": {"observation": np.array([s, t, 1]), "action_mask": np.array([0, 1, 1, t % 2], np.int8)},
            "cat": {"eyes": np.full((2, 2), s + t, np.uint8), "mood": t},
            "dog": s + t,
        }[agent]

    def _say(self, agent):
        if agent == "ant":
            return {"action_mask": np.array([1, self.t % 2, 1], np.int8)}
        return {"t": self.t} if agent == "cat" else {}

    def step(self, actions):
        assert set(actions) == set(self.agents), (set(actions), self.agents)
        self.t += 1
        if self.t == self.raises_at:
            raise ValueError("the zoo is closed")
        rewards = {agent: _reward(agent, action) for agent, action in actions.items()}
        acted = list(self.agents)
        over = self.t >= 6
        if self.t == 2:
            self.agents = [*self.agents, "dog"]
        there = list(dict.fromkeys([*acted, *self.agents]))
        terminated = {agent: agent == "ant" and self.t == 3 for agent in there}
        truncated = dict.fromkeys(there, over)
        obs = {agent: self._see(agent) for agent in there}
        infos = {agent: self._say(agent) for agent in there}
        self.agents = [agent for agent in self.agents if not terminated[agent] and not truncated[agent]]
        return obs, {agent: rewards.get(agent, 0.0) for agent in there}, terminated, truncated, infos

    def render(self):
        return np.full((2, 2, 3), self.t, np.uint8)

    def time(self):
        return self.t

    def close(self):
        self.closed += 1


def _reward(agent, action):
    if agent == "cat":
        return float(np.sum(action["paw"])) + 10 * int(action["purr"])
    return float(np.sum(action)) + 0.5


class Herd(Zoo):
    """Three agents with equal spaces that observe (seed, time). Agent i dies in step 2 + i; time is up in step 4."""

    metadata = {"name": "herd_v0", "render_modes": [], "is_parallelizable": True}
    render_mode = None
    possible_agents = ["cow_0", "cow_1", "cow_2"]
    _obs = dict.fromkeys(possible_agents, spaces.Box(-99, 99, (2,), np.float32))
    _act = dict.fromkeys(possible_agents, spaces.Discrete(3))

    def reset(self, seed=None, options=None):
        self.seed_used = seed if seed is not None else getattr(self, "seed_used", 0) + 1
        self.t, self.agents = 0, list(self._obs)
        return {agent: self._see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def _see(self, agent):
        return np.array([self.seed_used % 50 + 1, self.t], np.float32)

    def step(self, actions):
        self.t += 1
        acted = list(self.agents)
        terminated = {agent: self.t == 2 + list(self._obs).index(agent) and self.t < 4 for agent in acted}
        truncated = dict.fromkeys(acted, self.t == 4)
        rewards = {agent: float(actions[agent]) + 1 for agent in acted}
        infos = {agent: {"t": self.t} if agent == "cow_0" else {} for agent in acted}
        self.agents = [agent for agent in acted if not terminated[agent] and not truncated[agent]]
        return {agent: self._see(agent) for agent in acted}, rewards, terminated, truncated, infos


class Masked(Herd):
    """Herd in which the legal actions of each agent alternate."""

    def _say(self, agent):
        return {"action_mask": np.arange(3) != self.t % 3}

    def reset(self, seed=None, options=None):
        obs, _ = super().reset(seed, options)
        return obs, {agent: self._say(agent) for agent in obs}

    def step(self, actions):
        obs, *others, _ = super().step(actions)
        return obs, *others, {agent: self._say(agent) for agent in obs}


class Talkative(Herd):
    """Herd in which the last agent acts with a word of up to 5 letters. Its reward is the length of the word."""

    _act = {**Herd._act, "cow_2": spaces.Text(5)}

    def step(self, actions):
        return super().step({agent: len(a) if isinstance(a, str) else a for agent, a in actions.items()})


class Nameless(Herd):
    """Herd without `possible_agents`."""

    @property
    def possible_agents(self):
        raise AttributeError("possible_agents")


class Relay(AECEnv):
    """Three runners with unequal spaces take turns. A runner that gets tired in its second turn drops out.

    The runner's reward is its action, the other runners' reward is 0.25. The second runner's action space is a Box.
    """

    metadata = {"name": "relay_v0", "render_modes": [], "is_parallelizable": False}
    render_mode = None
    possible_agents = ["runner_0", "runner_1", "runner_2"]
    _obs = {agent: spaces.Box(-99, 99, (2 + i,), np.float32) for i, agent in enumerate(possible_agents)}
    _act = {
        "runner_0": spaces.Discrete(3, start=1),
        "runner_1": spaces.Box(0, 1, (2,), np.float32),
        "runner_2": spaces.Discrete(5),
    }

    def __init__(self, laps=4):
        super().__init__()
        self.laps = laps

    def observation_space(self, agent):
        return self._obs[agent]

    def action_space(self, agent):
        return self._act[agent]

    def observe(self, agent):
        return np.full(self._obs[agent].shape, self.turn + 1, np.float32)

    def reset(self, seed=None, options=None):
        self.agents, self.turn = list(self.possible_agents), 0
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos = {agent: {} for agent in self.agents}
        self._selector = AgentSelector(self.agents)
        self.agent_selection = self._selector.reset()

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        for other in self.agents:
            self.rewards[other] = float(np.sum(action)) if other == agent else 0.25
        self.turn += 1
        if agent == "runner_0" and self.turn > 3:
            self.terminations[agent] = True
            self._selector.reinit([other for other in self._selector.agent_order if other != agent])
        if self.turn >= 3 * self.laps:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = self._selector.next()
        self._accumulate_rewards()
        self._deads_step_first()

    def render(self):
        return None

    def close(self):
        pass


def herd_in_turns():
    """Return the herd as an AEC env, in which the agents act in turn."""
    return parallel_to_aec(Herd())
