"""`flatten_agents`: a gymnasium VectorEnv with a row for each agent of a `ParallelVectorEnv`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from vecenv import nest
from vecenv.envs.gymnasium_arguments import as_seeds, split_options
from vecenv.envs.pettingzoo_vector import ParallelVectorEnv


def flatten_agents(env: ParallelVectorEnv, *, own_episodes: bool = False, mask_in_obs: bool = False) -> FlattenedAgents:
    """Return a VectorEnv with a row per agent of each env (as SuperSuit's pettingzoo_env_to_vec_env).

    Row `i * len(env.agents) + j` is agent j of env i. The autoreset mode is `env`'s. ValueError if the agents' spaces
    differ, or `env` has `wait_num` or `timeout`.

    If an agent dies, its row has zeros until no agent is alive (SuperSuit's `black_death`). The episode of the row
    ends:
        own_episodes=False: with the env's episode and the agent's flags (terminated if it never appeared). Returns are
        right without a mask.
        own_episodes=True: with the agent. The zeros are a separate episode, which terminates with the env's. Lengths
        and value targets are right, but training must leave out rows without `active`, as AgentMonitor and
        AgentRolloutBuffer of `vecenv.sb3` do. ValueError in DISABLED mode.

    `infos["active"]` and `infos["alive"]`, bool (num_envs,): the agent acted in this step, and acts in the next.
    `final_info` has `active` too. `infos["action_mask"]`, bool (num_envs, n): legal Discrete actions. `mask_in_obs`
    makes the observation a dict of `observation` and `action_mask`, so that random actions use the mask. ValueError
    unless actions are Discrete.

    >>> with ParallelVectorEnv(["classic/rps-v2"] * 3, backend="dummy") as venv:
    ...     envs = flatten_agents(venv)
    ...     obs, infos = envs.reset(seed=0)
    ...     obs, rewards, terminations, truncations, infos = envs.step(np.array([0, 1, 1, 1, 2, 1]))
    >>> envs.num_envs, rewards
    (6, array([-1.,  1.,  0.,  0.,  1., -1.]))
    """
    if not isinstance(env, ParallelVectorEnv):
        raise TypeError(f"flatten_agents takes a ParallelVectorEnv, whose agents act at the same time; got {env!r}")
    if env.venv.is_async:
        raise ValueError("flatten_agents needs all rows in each step: a ParallelVectorEnv without wait_num and timeout")
    if own_episodes and env.autoreset_mode is AutoresetMode.DISABLED:
        raise ValueError(
            "own_episodes=True ends the row of an agent before its env: make the ParallelVectorEnv with "
            'autoreset_mode="next_step" or "same_step", not DISABLED, in which the caller resets whole envs'
        )
    if mask_in_obs and not env.agent_spaces.mask_size:
        raise ValueError(f"mask_in_obs needs Discrete actions, the agents have {env.agent_spaces.action}")
    return FlattenedAgents(env, own_episodes, mask_in_obs)


class FlattenedAgents(VectorEnv):
    """VectorEnv that `flatten_agents` returns."""

    def __init__(self, env: ParallelVectorEnv, own_episodes: bool = False, mask_in_obs: bool = False) -> None:
        self.env, self.own_episodes = env, own_episodes
        self._mask_in_obs = mask_in_obs
        self._agents = env.agents
        self._shape = (env.num_envs, len(env.agents))
        self.num_envs = env.num_envs * len(env.agents)
        self.single_observation_space = env.agent_spaces.shared_space("observation", "rows need one for all")
        self.single_action_space = env.agent_spaces.shared_space("action", "rows need one for all")
        if mask_in_obs:
            self._choices = env.agent_spaces.mask_size[env.agents[0]]
            parts = {"observation": self.single_observation_space, "action_mask": spaces.MultiBinary(self._choices)}
            self.single_observation_space = spaces.Dict(parts)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata, self.autoreset_mode = dict(env.metadata), env.autoreset_mode
        self.render_mode = env.render_mode
        self.spec = None
        self._ended = np.zeros((2, *self._shape), dtype=np.bool_)
        """Flags terminated and truncated of the agents in the current episodes."""
        self._last: dict[str, Any] = {}
        """Latest rows of all envs, for a reset of some envs."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every env. Return (obs, infos) with a row per agent.

        With `seed=s`, env i gets the seed s + i. A list has a seed per env, or per row (only the first agent's counts).
        `options["reset_mask"]`, bool (num_envs,), selects whole envs.
        """
        mask, others = split_options(options, self.num_envs)
        ids = self._selected_envs(mask)
        obs, infos = self.env.reset(ids, seed=self._env_seeds(seed, ids), options=others or None)
        self._ended[:, ids] = False
        return self._update_rows(obs, infos, ids)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step every env, with an action (num_envs, ...) per row. Actions of dead agents are ignored."""
        if not isinstance(self.single_action_space, (spaces.Dict, spaces.Tuple)):
            actions = np.asarray(actions)
        batch = nest.map(self._by_env, actions)
        by_agent = {agent: nest.take(batch, (slice(None), j)) for j, agent in enumerate(self._agents)}
        obs, rewards, terminations, truncations, infos = self.env.step(by_agent)
        now = np.array([self._as_rows(flags).reshape(self._shape) for flags in (terminations, truncations)])
        done = infos["done"]
        self._ended |= now
        terminated, truncated = now if self.own_episodes else self._ended & done[:, None]
        terminated |= done[:, None] & ~truncated  # also agents that ended before or never appeared
        self._ended[:, done] = False
        all_ids = np.arange(len(done))
        obs, rows = self._update_rows(obs, infos, all_ids)
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        early = np.flatnonzero(now.any(0) & ~done[:, None]).tolist() if self.own_episodes and same_step else []
        if early:
            self._zero_ended_rows(early, obs, rows, infos)
        return obs, self._as_rows(rewards), terminated.reshape(-1), truncated.reshape(-1), rows

    def _zero_ended_rows(self, early: list[int], obs: Any, rows: dict[str, Any], infos: dict[str, Any]) -> None:
        """Set rows of agents that ended before their env to zeros, and add their final infos (SAME_STEP)."""
        for row in early:
            i, j = divmod(row, self._shape[1])
            info = {**self._info_of(infos["info"][i], j), "active": bool(rows["active"][row])}
            self._add_info(rows, {"final_obs": nest.map(np.copy, nest.take(obs, row)), "final_info": info}, row)
        for batch in ({**rows, "obs": obs}, self._last):
            for leaf in nest.leaves(batch["obs"]):
                leaf[early] = None if leaf.dtype == object else 0
            for masked in (batch, batch["obs"]) if self._mask_in_obs else (batch,):
                if "action_mask" in masked:  # policies need a legal action in each row
                    masked["action_mask"][early] = 1

    def __repr__(self) -> str:
        return f"flatten_agents({self.env!r})"

    def render(self) -> Any:
        return tuple(self.env.render())

    def close_extras(self, **kwargs: Any) -> None:
        self.env.close()

    def _env_seeds(self, seed: Any, ids: np.ndarray) -> list[int | None] | None:
        n, agents = self._shape
        if np.ndim(seed) and len(seed) not in (n, self.num_envs):
            raise ValueError(
                f"got {len(seed)} seeds, expected {self.num_envs} (one for each row) or {n} (one for each env)"
            )
        seeds = as_seeds(seed[::agents] if np.ndim(seed) and len(seed) == self.num_envs else seed, n)
        return None if seeds is None else [seeds[i] for i in ids]

    def _selected_envs(self, mask: np.ndarray | None) -> np.ndarray:
        rows = np.ones(self._shape, dtype=np.bool_) if mask is None else mask.reshape(self._shape)
        if (uneven := rows.any(1) & ~rows.all(1)).any():
            raise ValueError(
                f"reset_mask has some rows of env {uneven.argmax()} but not all: its agents {self._agents} can only be "
                "reset together"
            )
        if not self._last and not rows.all():
            raise RuntimeError("the first reset must be of all envs, without a reset_mask")
        return np.flatnonzero(rows[:, 0])

    def _by_env(self, actions: Any) -> np.ndarray:
        array = np.asarray(actions)
        if array.shape[:1] != (self.num_envs,):
            raise ValueError(
                f"got actions of the shape {array.shape} for {self.num_envs} rows, one for each agent of each env"
            )
        return array.reshape(*self._shape, *array.shape[1:])

    def _update_rows(self, obs: Any, infos: dict[str, Any], ids: np.ndarray) -> tuple[Any, dict[str, Any]]:
        rows = np.arange(self.num_envs).reshape(self._shape)[ids].reshape(-1)
        by_agent = {"obs": obs, **{name: infos[name] for name in ("active", "alive", "action_mask")}}
        new = {name: self._as_rows(part) for name, part in by_agent.items() if part}
        if self._mask_in_obs:
            new["obs"] = {"observation": new["obs"], "action_mask": new["action_mask"].astype(np.int8)}
        if len(ids) == self._shape[0]:
            self._last = new
        else:
            nest.put(self._last, rows, new)
        last = nest.map(np.copy, self._last)
        obs, is_new = last.pop("obs"), np.isin(np.arange(self.num_envs), rows)
        row_infos = {**last, **{f"_{name}": is_new.copy() for name in last}}
        self._add_env_infos(row_infos, infos, ids)
        return obs, row_infos

    def _add_env_infos(self, row_infos: dict[str, Any], infos: dict[str, Any], ids: np.ndarray) -> None:
        final = infos.get("_final_obs", np.zeros(len(ids), np.bool_))
        final_obs = self._as_rows(infos["final_obs"]) if final.any() else None
        for at, i in enumerate(ids.tolist()):
            for j in range(self._shape[1]):
                found = self._info_of(infos["info"][at], j)
                if final[at]:
                    last = nest.map(np.copy, nest.take(final_obs, at * self._shape[1] + j))
                    if self._mask_in_obs:  # the agent acts no more
                        last = {"observation": last, "action_mask": np.ones(self._choices, np.int8)}
                    final_info = self._info_of(infos["final_info"][at], j)
                    final_info["active"] = bool(row_infos["active"][i * self._shape[1] + j])
                    found |= {"final_obs": last, "final_info": final_info}
                self._add_info(row_infos, found, i * self._shape[1] + j)

    def _info_of(self, info: dict[Any, Any], j: int) -> dict[str, Any]:
        shared = {key: value for key, value in info.items() if key not in self._agents and key != "env_id"}
        return {**shared, **info.get(self._agents[j], {})}

    def _as_rows(self, by_agent: dict[Any, Any]) -> Any:
        """Return arrays (k * agents, ...) from arrays (k, ...) per agent."""
        stacked = nest.stack([by_agent[agent] for agent in self._agents])
        return nest.map(lambda leaf: leaf.swapaxes(0, 1).reshape(-1, *leaf.shape[2:]), stacked)
