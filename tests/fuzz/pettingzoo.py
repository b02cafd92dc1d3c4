"""`ParallelVectorEnv` against PettingZoo's loop: agents appear, die and differ, in each autoreset mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from pettingzoo import ParallelEnv

from tests.fuzz.driver import SMALL, Program
from tests.fuzz.envs import ACTIONS, SPACES, Results, assert_same, draw, number, row_of, stacked
from vecenv import ParallelVectorEnv

N = 3
AGENTS = ["ant", "bee", "cat", "dog"]
NUMBERS = ["floats", "doubles", "picture", "discrete", "multi", "binary", "boxes"]
IDS = st.lists(st.integers(0, N - 1), min_size=1, unique=True)


class Agents:
    """Spaces, observations and masks of all agents follow from the seed, the time and the actions.

    `masks`: where Discrete actions have their mask: "obs", "info", or "" for nowhere.
    """

    possible_agents = AGENTS
    render_mode = None
    first = t = done = 0

    def __init__(self, seen: list[str], acted: list[str], masks: str) -> None:
        self.seen = {agent: SPACES[name] for agent, name in zip(AGENTS, seen, strict=True)}
        self.acted = {agent: ACTIONS[name] for agent, name in zip(AGENTS, acted, strict=True)}
        self.masks = {agent: masks if isinstance(self.acted[agent], spaces.Discrete) else "" for agent in AGENTS}

    def observation_space(self, agent: str) -> Any:
        if self.masks[agent] != "obs":
            return self.seen[agent]
        return spaces.Dict(
            {"observation": self.seen[agent], "action_mask": spaces.MultiBinary(int(self.acted[agent].n))}
        )

    def action_space(self, agent: str) -> Any:
        return self.acted[agent]

    def raw(self, agent: str) -> Any:
        return draw(self.seen[agent], np.random.default_rng([self.first, self.t, AGENTS.index(agent)]), self.done)

    def mask(self, agent: str) -> np.ndarray:
        """Return the legal actions. If the env has no masks, all actions are legal."""
        n = self.acted[agent].n
        mask = np.random.default_rng([self.first, self.t, AGENTS.index(agent), 1]).integers(0, 2, n, np.int8)
        mask[self.t % n] = 1
        return mask if self.masks[agent] else np.ones(n, np.int8)

    def see(self, agent: str) -> Any:
        has_mask = self.masks[agent] == "obs"
        return {"observation": self.raw(agent), "action_mask": self.mask(agent)} if has_mask else self.raw(agent)

    def say(self, agent: str, info: dict[str, Any]) -> dict[str, Any]:
        return info | ({"action_mask": self.mask(agent)} if self.masks[agent] == "info" else {})


def without_mask(value: Any) -> Any:
    """Return an info without the mask, or the raw part of an observation with a mask."""
    if isinstance(value, dict) and value.keys() == {"observation", "action_mask"}:
        return value["observation"]
    return {key: part for key, part in value.items() if key != "action_mask"} if isinstance(value, dict) else value


class Crowd(Agents, ParallelEnv):  # type: ignore[type-arg, misc]
    """Who comes and who dies follows from the seed, the time and the actions, too."""

    metadata = {"name": "crowd_v0", "render_modes": []}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.first = self.first + 1 if seed is None else seed
        self.t, self.done = 0, 0
        self.agents = ["bee", *(["ant"] if self.first % 2 else []), *(["cat"] if self.first % 3 else [])]
        self.known = set(self.agents)
        return {agent: self.see(agent) for agent in self.agents}, self.infos(self.agents)

    def infos(self, agents: list[str]) -> Any:
        talk = {agent: {"t": self.t} if (AGENTS.index(agent) + self.t) % 2 else {} for agent in agents}
        return {agent: self.say(agent, info) for agent, info in talk.items()}

    def step(self, actions: Any) -> Any:
        assert set(actions) == set(self.agents), f"actions of {set(actions)} for {self.agents}"
        self.t += 1
        rng = np.random.default_rng([self.first, self.t])
        acted, self.done = list(self.agents), sum(number(action) for action in actions.values()) % 50
        new = [agent for agent in AGENTS if agent not in self.known and rng.random() < 0.4]
        self.known.update(new)
        here = [*acted, *new]
        terminated = {agent: agent in acted and bool(rng.random() < 0.2) for agent in here}
        truncated = {agent: self.t == 5 or (agent in acted and bool(rng.random() < 0.1)) for agent in here}
        rewards = {agent: float(number(actions[agent])) if agent in actions else 0.0 for agent in here}
        obs, infos = {agent: self.see(agent) for agent in here}, self.infos(here)
        self.agents = [agent for agent in here if not terminated[agent] and not truncated[agent]]
        return obs, rewards, terminated, truncated, infos


class Games(Program):
    """`envs` are played by PettingZoo's loop, `over` are those whose episode has ended."""

    only: ClassVar[str] = ""
    """Backend of all programs, instead of a random one."""
    acts_one = False
    """Whether the vector env takes one batch of actions for all agents."""

    def begin(self, venv: Any, env: Callable[[], Any], n: int, mode: str) -> None:
        """Begin with `n` envs in `venv`, and as many of the oracle."""
        self.venv, self.n, self.mode = venv, n, mode
        self.envs, self.over, self.results = [env() for _ in range(n)], [False] * n, Results(1)
        self.reset(list(range(n)), 1)

    def close(self) -> None:
        if hasattr(self, "venv"):
            self.venv.close()

    def check_reset(self, row: int, i: int, first: Any, obs: Any, infos: Any) -> None:
        """Compare the row of env i with the env of the oracle, whose reset returned `first`."""
        raise NotImplementedError

    def check_step(self, row: int, i: int, actions: Any, *results: Any) -> None:
        """Step the env of the oracle with these actions of its agents, and compare the row of env i."""
        raise NotImplementedError

    @rule(ids=IDS, seed=st.none() | SMALL)
    def reset(self, ids: list[int], seed: int | None) -> None:
        ids = [i for i in ids if i < self.n] or [0]
        obs, infos = self.venv.reset(id=ids, **({} if seed is None else {"seed": seed}))
        self.results.add([obs, infos["alive"]])
        for row, i in enumerate(ids):
            self.over[i] = False
            first = self.envs[i].reset(seed=None if seed is None else seed + i)
            self.check_reset(row, i, first, obs, infos)

    @rule(ids=IDS | st.just(list(range(N))), action=SMALL)
    def step(self, ids: list[int], action: int) -> None:
        ids = [i for i in ids if i < self.n and not (self.mode == "Disabled" and self.over[i])]
        if not ids:
            return
        rng, spaces = np.random.default_rng(action), self.envs[0].acted
        rows = {agent: [draw(spaces[agent], rng) for _ in ids] for agent in AGENTS}
        if self.acts_one:
            rows = dict.fromkeys(AGENTS, rows[AGENTS[0]])
        batches = {agent: stacked(spaces[agent], rows[agent]) for agent in AGENTS}
        *columns, infos = self.venv.step(batches[AGENTS[0]] if self.acts_one else batches, ids)
        self.results.add([*columns, infos["alive"], infos.get("action_mask")])
        for row, i in enumerate(ids):
            self.check_step(row, i, {agent: rows[agent][row] for agent in AGENTS}, *columns, infos)

    @rule(actions=st.lists(SMALL, min_size=5, max_size=7))
    def step_on(self, actions: list[int]) -> None:
        """Steps of all envs, so that episodes end."""
        for action in actions:
            self.step(list(range(self.n)), action)


class Fuzz(Games):
    modes: ClassVar[Sequence[str]] = ("NextStep", "SameStep", "Disabled")

    @initialize(
        n=st.integers(1, N),
        backend=st.sampled_from(["dummy", "dummy", "thread", "shmem", "subproc"]),
        mode_at=SMALL,
        seen=st.lists(st.sampled_from(NUMBERS), min_size=4, max_size=4),
        acted=st.lists(st.sampled_from(["discrete", *ACTIONS]), min_size=4, max_size=4),
        masks=st.sampled_from(["obs", "info", ""]),
    )
    def make(self, n: int, backend: str, mode_at: int, **given: Any) -> None:
        mode = self.modes[mode_at % len(self.modes)]
        env = partial(Crowd, **given)
        self.begin(ParallelVectorEnv([env] * n, self.only or backend, autoreset_mode=mode), env, n, mode)

    def check_reset(self, row: int, i: int, first: Any, obs: Any, infos: Any) -> None:
        self.compare(row, i, obs, infos, *first, [])

    def check_step(self, row: int, i: int, actions: Any, *results: Any) -> None:
        obs, rewards, terminated, truncated, infos = results
        env = self.envs[i]
        acted = list(env.agents)
        paid: Any
        if self.over[i]:
            want, said = env.reset()
            paid, died, cut, acted, done = {}, {}, {}, [], False
        else:
            want, paid, died, cut, said = env.step({agent: actions[agent] for agent in acted})
            done = not env.agents
        assert infos["done"][row] == done, f"done of env {i}"
        for agent in AGENTS:
            got = rewards[agent][row], bool(terminated[agent][row]), bool(truncated[agent][row])
            here = agent in acted
            expected = paid.get(agent, 0.0), here and died[agent], here and cut[agent]
            assert got == expected, f"(reward, terminated, truncated) of {agent} in env {i}: {got}, expected {expected}"
        self.over[i] = done
        if done and self.mode == "SameStep":
            for agent in acted:
                last = row_of(env.seen[agent], infos["final_obs"][agent], row)
                self.same_row(agent, env, last, want[agent], f"final_obs of {agent} in env {i}")
            self.check_info(i, infos["final_info"][row], {agent: said[agent] for agent in acted if agent in said})
            want, said = env.reset()
            self.over[i] = False
        self.compare(row, i, obs, infos, want, said, acted)

    def compare(self, row: int, i: int, obs: Any, infos: Any, want: Any, said: Any, acted: list[str]) -> None:
        """The row of an env in the batches of all agents."""
        env = self.envs[i]
        assert infos["env_id"][row] == i, "env_id"
        here = {*acted, *env.agents}  # an agent may come and go in one step: it neither sees nor is told anything
        self.check_info(i, infos["info"][row], {agent: info for agent, info in said.items() if agent in here})
        for agent in AGENTS:
            flags = bool(infos["active"][agent][row]), bool(infos["alive"][agent][row])
            assert flags == (agent in acted, agent in env.agents), f"(active, alive) of {agent} in env {i}: {flags}"
            got = row_of(env.seen[agent], obs[agent], row)
            if isinstance(env.acted[agent], spaces.Discrete):
                legal = env.mask(agent) if agent in want and agent in here else np.ones(env.acted[agent].n)
                assert_same(infos["action_mask"][agent][row], legal.astype(bool), f"mask of {agent} in env {i}")
            if agent in want and (agent in acted or agent in env.agents):
                self.same_row(agent, env, got, want[agent], f"observation of {agent} in env {i}")
            else:
                parts = got.values() if isinstance(got, dict) else [got]
                assert not any(np.any(part) for part in parts), f"{agent} is not there and sees {got}"

    def same_row(self, agent: str, env: Crowd, got: Any, want: Any, what: str) -> None:
        space = env.seen[agent]
        assert_same(stacked(space, [got]), stacked(space, [without_mask(want)]), what)

    def check_info(self, i: int, got: Any, said: Any) -> None:
        told = {agent: rest for agent, info in said.items() if (rest := without_mask(info))}
        assert_same(dict(got), {"env_id": i, **told}, f"info of env {i}")
