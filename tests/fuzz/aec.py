"""`AECVectorEnv` against PettingZoo's own loop: agents take turns, get rewards in other agents' turns, and die."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st
from hypothesis.stateful import initialize
from pettingzoo import AECEnv

from tests.fuzz.envs import ACTIONS, assert_same, number, row_of, stacked
from tests.fuzz.pettingzoo import AGENTS, NUMBERS, Agents, Games, N, without_mask
from vecenv import AECVectorEnv


def alike_or_not(names: list[str]) -> Any:
    """A name for each agent: the same one for all, or not."""
    one = st.sampled_from(names)
    return one.map(lambda name: [name] * len(AGENTS)) | st.lists(one, min_size=len(AGENTS), max_size=len(AGENTS))


class Table(Agents, AECEnv):  # type: ignore[type-arg, misc]
    """Who dies and what is paid follows from the seed, the number of the turn and the actions."""

    metadata = {"name": "table_v0", "render_modes": []}

    def __init__(self, **given: Any) -> None:
        AECEnv.__init__(self)
        Agents.__init__(self, **given)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.first = self.first + 1 if seed is None else seed
        self.t = self.done = 0
        self.agents = list(AGENTS)
        self.rewards = dict.fromkeys(AGENTS, 0.0)
        self._cumulative_rewards = dict(self.rewards)
        self.terminations, self.truncations = dict.fromkeys(AGENTS, False), dict.fromkeys(AGENTS, False)
        self.infos: Any = {agent: self.say(agent, {}) for agent in AGENTS}
        self.agent_selection = AGENTS[self.first % len(AGENTS)]

    def observe(self, agent: str) -> Any:
        return self.see(agent)

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self.t, self.done = self.t + 1, number(action) % 50
        rng = np.random.default_rng([self.first, self.t])
        self.rewards = {each: float(rng.integers(-3, 4)) for each in self.agents}
        for each in self.agents:
            self.terminations[each] = bool(rng.random() < 0.15)
            self.truncations[each] = bool(rng.random() < 0.05) or self.t == 9
            self.infos[each] = self.say(each, {"t": self.t} if rng.random() < 0.5 else {})
        at = self.agents.index(agent) + 1
        following = self.agents[at:] + self.agents[:at]
        living = [each for each in following if not self.terminations[each] and not self.truncations[each]]
        self.agent_selection = (living or following)[0]
        self._accumulate_rewards()
        self._deads_step_first()


class Fuzz(Games):
    @initialize(
        n=st.integers(1, N),
        backend=st.sampled_from(["dummy", "dummy", "thread", "shmem", "subproc"]),
        mode=st.sampled_from(["NextStep", "SameStep", "Disabled"]),
        seen=alike_or_not(NUMBERS),
        acted=alike_or_not(["discrete", *ACTIONS]),
        masks=st.sampled_from(["obs", "info", ""]),
    )
    def make(self, n: int, backend: str, mode: str, **given: Any) -> None:
        self.sees_one, self.acts_one = (len(set(given[name])) == 1 for name in ("seen", "acted"))
        env = partial(Table, **given)
        self.begin(AECVectorEnv([env] * n, self.only or backend, autoreset_mode=mode), env, n, mode)

    def check_reset(self, row: int, i: int, first: Any, obs: Any, infos: Any) -> None:
        self.compare(row, i, obs, infos)

    def check_step(self, row: int, i: int, actions: Any, *results: Any) -> None:
        obs, rewards, terminated, truncated, infos = results
        env = self.envs[i]
        if self.over[i]:
            env.reset()
            self.over[i] = False
            assert not rewards[row].any(), f"rewards of a reset: {rewards[row]}"
            self.compare(row, i, obs, infos)
            return
        before = list(env.agents)
        env.step(actions[env.agent_selection])
        paid = [env.rewards.get(agent, 0.0) if agent in before else 0.0 for agent in AGENTS]
        died, cut = (
            [agent in before and ends[agent] for agent in AGENTS] for ends in (env.terminations, env.truncations)
        )
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        self.over[i] = not env.agents
        got = rewards[row].tolist(), terminated[row].tolist(), truncated[row].tolist()
        assert got == (paid, died, cut), f"turn of env {i}: {got}, expected {(paid, died, cut)}"
        assert infos["active"][row].tolist() == [agent in before for agent in AGENTS], "active"
        assert infos["done"][row] == self.over[i], "done"
        if self.over[i] and self.mode == "SameStep":
            assert infos["_final_obs"][row], "_final_obs"
            assert AGENTS[infos["final_agent"][row]] in before, "final_agent"
            env.reset()
            self.over[i] = False
        self.compare(row, i, obs, infos)

    def compare(self, row: int, i: int, obs: Any, infos: Any) -> None:
        """The row is that of the agent to move."""
        env = self.envs[i]
        assert infos["env_id"][row] == i, "env_id"
        assert infos["alive"][row].tolist() == [agent in env.agents for agent in AGENTS], "alive"
        if self.over[i]:
            return
        agent = env.agent_selection
        assert AGENTS[infos["agent"][row]] == agent, f"{AGENTS[infos['agent'][row]]} moves in env {i}, expected {agent}"
        told = {agent: info} if (info := without_mask(env.infos[agent])) else {}
        assert_same(dict(infos["info"][row]), {"env_id": i, **told}, f"info of env {i}")
        sizes = [space.n for space in env.acted.values() if isinstance(space, spaces.Discrete)]
        if sizes:
            legal = np.zeros(max(sizes), bool)
            if isinstance(env.acted[agent], spaces.Discrete):
                legal[:] = env.mask(agent)
            assert_same(infos["action_mask"][row], legal, f"mask of {agent} in env {i}")
        space, batch = env.seen[agent], obs if self.sees_one else obs[agent]
        assert_same(
            stacked(space, [row_of(space, batch, row)]),
            stacked(space, [env.raw(agent)]),
            f"observation of {agent} in env {i}",
        )
