"""`PettingZooEnv`: gymnasium env around a PettingZoo AECEnv.

ParallelVectorEnv wraps each PettingZoo env in a ParallelRows, and AECVectorEnv in an AECRows. The observation of
both is a dict:

    key             in ParallelRows         in AECRows
    obs             {agent: observation}    observation of the agent to move, or {agent: observation} if spaces differ
    action_mask     {agent: bool (n,)}      bool (n,)
    agent           absent                  index of the agent to move
    rewards         float64 (num_agents,)   as in ParallelRows
    terminated, truncated, active, alive: bool (num_agents,) in both

`step` returns terminated=True if no agent is alive. The info is {agent: info}, without empty infos.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.envs.agent_spaces import AgentSpaces, make_pettingzoo, zeros
from vecenv.errors import EnvContractError
from vecenv.layout import space_tree

PER_AGENT = ("rewards", "terminated", "truncated", "active", "alive")
"""Entries of an observation that are arrays (num_agents,)."""

Row = dict[str, Any]


class _Rows:
    """Base class of ParallelRows and AECRows. `get_env_attr` also finds attributes of `env`."""

    kind: str

    def __init__(self, env_fn: Callable[[], Any], agents: Sequence[Any] | None) -> None:
        self.env = env_fn()
        self.agent_spaces = AgentSpaces(self.env, self.kind, agents)
        if "env_id" in self.agent_spaces.index:
            raise ValueError(f"{self.env} has an agent named 'env_id', which is the key of env ids in infos; rename it")
        self.metadata, self.render_mode = _rendering(self.env)
        self._zeros = {agent: zeros(space_tree(space, "obs")) for agent, space in self.agent_spaces.observation.items()}

    def _space(self, **parts: Any) -> spaces.Dict:
        n = len(self.agent_spaces.agents)
        columns = {name: _flags(n) for name in PER_AGENT} | {"rewards": spaces.Box(-np.inf, np.inf, (n,), np.float64)}
        return spaces.Dict({**parts, **columns})

    unwrapped = property(attrgetter("env.unwrapped"))
    """Innermost env. Backends compare innermost envs, to refuse an env that two ids share."""
    render = property(attrgetter("env.render"))
    close = property(attrgetter("env.close"))


class ParallelRows(_Rows):
    kind = "parallel"

    def __init__(self, env_fn: Callable[[], Any], agents: Sequence[Any] | None) -> None:
        super().__init__(env_fn, agents)
        known = self.agent_spaces
        masks = {agent: _flags(size) for agent, size in known.mask_size.items()}
        self.action_space = _by_agent(known.action)
        self.observation_space = self._space(obs=_by_agent(known.observation), action_mask=_by_agent(masks))

    def reset(self, **kwargs: Any) -> tuple[Row, dict[Any, Any]]:
        obs, infos = self.env.reset(**kwargs)
        return self._row((), obs, {}, {}, {}, infos)

    def step(self, action: Mapping[Any, Any]) -> tuple[Row, float, bool, bool, dict[Any, Any]]:
        active = list(self.env.agents)
        row, infos = self._row(active, *self.env.step({agent: action[agent] for agent in active}))
        return row, 0.0, not row["alive"].any(), False, infos

    def _row(
        self, active: Any, obs: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any
    ) -> tuple[Row, dict[Any, Any]]:
        known, active, alive = self.agent_spaces, set(active), set(self.env.agents)
        for agent in {*rewards, *terminated, *truncated, *alive} - known.index.keys():
            known.position(agent)  # raises EnvContractError
        row: Row = {"obs": {}, "action_mask": {}}
        events, given = [], {}
        for agent in known.agents:
            ended, cut = bool(terminated.get(agent)), bool(truncated.get(agent))
            acted, lives = agent in active, agent in alive and not (ended or cut)
            reward = float(rewards.get(agent, 0.0)) if acted or lives else 0.0
            events.append((reward, acted and ended, acted and cut, acted, lives))
            mask = None
            if agent in obs and (acted or lives):
                row["obs"][agent], mask, info = known.split_mask(agent, obs[agent], infos.get(agent, {}))
                if info:
                    given[agent] = info
            elif lives:
                raise EnvContractError(f"agent {agent!r} is alive, but the env returned no observation for it")
            else:
                row["obs"][agent] = self._zeros[agent]
            if (size := known.mask_size.get(agent)) is not None:
                # Policies need a legal action in each row, so all actions of an absent agent are legal.
                row["action_mask"][agent] = np.ones(size, dtype=np.bool_) if mask is None else mask
        return row | dict(zip(PER_AGENT, map(np.array, zip(*events, strict=True)), strict=True)), given


class Turns:
    """Turns of the living agents of an AECEnv. Dead agents are stepped with None, which removes them."""

    def __init__(self, env: Any, known: AgentSpaces) -> None:
        self._env, self._known = env, known
        self._ended: set[Any] = set()
        """Dead agents whose flags a step has reported."""
        self.agent: Any = None
        """Agent to move. After an episode, a dead agent."""
        self.obs: Any = None
        """Observation of `agent`. `mask`, `info` and `flags` (terminated, truncated) belong to `agent` too."""
        self.mask: np.ndarray | None = None
        self.info: Any = {}
        self.flags = (False, False)
        self.rewards = np.zeros(len(known.agents))
        """Rewards (num_agents,) since the previous turn. `terminated` and `truncated` cover the same time."""
        self.alive = np.zeros(len(known.agents), dtype=np.bool_)
        """Mask (num_agents,) of living agents. `active` is the mask before the last step."""
        self.done = True

    def reset(self, **kwargs: Any) -> None:
        self._env.reset(**kwargs)
        self.alive = np.zeros_like(self.alive)
        self._ended.clear()
        self._advance({})

    def step(self, action: Any) -> None:
        if self.done:
            raise RuntimeError("no agent is alive: the episode is over or has not begun; call reset()")
        self._env.step(action)
        self._advance(self._env.rewards)

    def _advance(self, rewards: Mapping[Any, Any]) -> None:
        env, known, self.active = self._env, self._known, self.alive
        self.rewards = np.zeros(len(known.agents))
        self.terminated, self.truncated = np.zeros((2, len(known.agents)), dtype=np.bool_)
        for agent, reward in rewards.items():
            self.rewards[known.position(agent)] += reward
        while True:
            self._record_deaths()
            self.done = not self.alive.any()
            agent = env.agent_selection
            if self.done or not (env.terminations[agent] or env.truncations[agent]):
                break
            env.step(None)  # a dead agent's step gives no rewards
            if agent in env.agents:  # without this error, the loop would never end
                raise EnvContractError(f"env.step(None) did not remove the dead agent {agent!r} from env.agents")
        if agent in env.agents:
            obs, _, terminated, truncated, info = env.last()
            self.agent, self.flags = agent, (bool(terminated), bool(truncated))
            self.obs, self.mask, self.info = known.split_mask(agent, obs, info)

    def _record_deaths(self) -> None:
        env, self.alive = self._env, np.zeros_like(self.alive)
        terminations, truncations = env.terminations, env.truncations
        for agent in env.agents:
            j, terminated, truncated = self._known.position(agent), terminations[agent], truncations[agent]
            if not terminated and not truncated:
                self.alive[j] = True
                self._ended.discard(agent)
            elif agent not in self._ended:
                self._ended.add(agent)
                self.terminated[j], self.truncated[j] = terminated, truncated


class AECRows(_Rows):
    kind = "aec"

    def __init__(self, env_fn: Callable[[], Any], agents: Sequence[Any] | None) -> None:
        super().__init__(env_fn, agents)
        known, first = self.agent_spaces, self.agent_spaces.agents[0]
        self._turns = Turns(self.env, known)
        self._single_obs, self._single_action = known.has_shared_space("observation"), known.has_shared_space("action")
        parts = {"action_mask": _flags(max(known.mask_size.values()))} if known.mask_size else {}
        self.action_space = known.action[first] if self._single_action else _by_agent(known.action)
        self.observation_space = self._space(
            obs=known.observation[first] if self._single_obs else _by_agent(known.observation),
            agent=spaces.Discrete(len(known.agents)),
            **parts,
        )

    def reset(self, **kwargs: Any) -> tuple[Row, dict[Any, Any]]:
        self._turns.reset(**kwargs)
        return self._row()

    def step(self, action: Any) -> tuple[Row, float, bool, bool, dict[Any, Any]]:
        """Step the agent to move. If action spaces differ, `action` is {agent: action}."""
        turns = self._turns
        turns.step(action if self._single_action or turns.done else action[turns.agent])
        row, info = self._row()
        return row, 0.0, turns.done, False, info

    def _row(self) -> tuple[Row, dict[Any, Any]]:
        known, turns = self.agent_spaces, self._turns
        row: Row = {name: getattr(turns, name) for name in PER_AGENT}
        row["obs"] = turns.obs if self._single_obs else {**self._zeros, turns.agent: turns.obs}
        row["agent"] = known.index[turns.agent]
        if known.mask_size:
            # Actions outside the agent's space are illegal.
            row["action_mask"] = np.zeros(max(known.mask_size.values()), dtype=np.bool_)
            if turns.mask is not None:  # policies need a legal action, also if no agent is alive
                row["action_mask"][: len(turns.mask)] = turns.mask | turns.done
        return row, {turns.agent: turns.info} if turns.info else {}


def _rendering(env: Any) -> tuple[dict[str, Any], str | None]:
    return dict(getattr(env, "metadata", None) or {}), getattr(env, "render_mode", None)


def _by_agent(agent_spaces: Mapping[Any, Any]) -> spaces.Dict:
    """Return a Dict space in the order of the agents. gymnasium would sort a dict, but not a list of pairs."""
    return spaces.Dict(list(agent_spaces.items()))


def _flags(n: int) -> spaces.Box:
    return spaces.Box(0, 1, (n,), np.bool_)  # type: ignore[arg-type]


_OTHER_NAMES = {"observation": "obs", "action_mask": "mask"}


class TurnSpace(spaces.Dict):
    """Observation space of PettingZooEnv. Tianshou's keys "observation" and "action_mask" work too."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(_OTHER_NAMES.get(key, key))


class PettingZooEnv(gymnasium.Env):
    """Gymnasium env around a PettingZoo AECEnv, with a turn per step (as tianshou's PettingZooEnv).

    The observation is a dict for the agent to move: its name `agent_id`, its observation `obs`, and its legal Discrete
    actions `mask`, bool (n,). If the env has no mask, all are True. The reward is float64 (num_agents,), in the
    order of `agents`.

    Dead agents have no turn. If no agent is alive, `terminated` or `truncated` is True, and the observation is for the
    env's last `agent_selection`. For illegal moves see AECVectorEnv.

    Arguments:
        env: an AECEnv, or an id of PettingZoo's registry. Raises ValueError if the agents' spaces differ: use
            AECVectorEnv. Raises TypeError for a ParallelEnv.
        possible_agents: all agents, for an env without `possible_agents`.

    >>> from vecenv import DummyVectorEnv
    >>> with DummyVectorEnv([lambda: PettingZooEnv("classic/tictactoe-v3")] * 2) as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     obs, rew, terminated, truncated, info = venv.step([4, 0])
    >>> obs["agent_id"][0], obs["mask"][0], rew.shape
    ('player_2', array([ True,  True,  True,  True, False,  True,  True,  True,  True]), (2, 2))
    """

    def __init__(self, env: Any, *, possible_agents: Sequence[str] | None = None) -> None:
        self.env = env = make_pettingzoo("aec", env) if isinstance(env, str) else env
        known = AgentSpaces(env, "aec", possible_agents)
        self._turns = Turns(env, known)
        self.agents = known.agents
        if odd := [agent for agent in self.agents if not isinstance(agent, str) or not agent]:
            raise TypeError(f"the names of agents must be strings, and not empty, got {odd}; use AECVectorEnv")
        self.agent_idx = dict(known.index)
        self.metadata, self.render_mode = _rendering(env)
        self.action_space = known.shared_space("action", "use AECVectorEnv")
        letters = "".join(sorted({letter for agent in self.agents for letter in agent}))
        parts = {
            "agent_id": spaces.Text(max(map(len, self.agents)), charset=letters),
            "obs": known.shared_space("observation", "use AECVectorEnv"),
        }
        if size := known.mask_size.get(self.agents[0]):
            parts["mask"] = spaces.Box(0, 1, (size,), np.bool_)
        self.observation_space = TurnSpace(parts)

    @property
    def rewards(self) -> np.ndarray:
        """Rewards of the agents in the last step."""
        return self._turns.rewards

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        self._turns.reset(seed=seed, options=options)
        return self._obs(), self._turns.info

    def step(self, action: Any) -> tuple[dict[str, Any], np.ndarray, bool, bool, Any]:
        """Step the agent to move. Raises RuntimeError if no agent is alive."""
        turns = self._turns
        turns.step(action)
        terminated, truncated = turns.flags if turns.done else (False, False)
        return self._obs(), turns.rewards, terminated, truncated, turns.info

    def _obs(self) -> dict[str, Any]:
        turns = self._turns
        mask = {} if turns.mask is None else {"mask": turns.mask}
        return {"agent_id": turns.agent, "obs": turns.obs, **mask}

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()
