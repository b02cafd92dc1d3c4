"""`flatten_agents`: a row for each agent of a `ParallelVectorEnv`."""

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

    Row `i * len(env.agents) + j` is agent j of env i. The autoreset mode is `env`'s. Raises ValueError if the agents'
    spaces differ, or `env` has `wait_num` or `timeout`.

    The row of a dead agent has zeros until no agent is alive (as SuperSuit's `black_death`). The episode of a row ends:
        own_episodes=False: at the end of the env's episode, with the flags of the agent's last step. An agent that
        never appeared is terminated. Returns are correct even if training uses all rows.
        own_episodes=True: when the agent dies. The zeros are a second episode, which terminates with the env's
        episode. Lengths and value targets are correct, but training must leave out rows with `active` False, as
        AgentMonitor and AgentRolloutBuffer of `vecenv.sb3` do. Raises ValueError in DISABLED mode.

    `infos` has these entries:
        active, bool (rows,): the agent acted in this step. `final_info` has `active` too.
        alive, bool (rows,): the agent acts in the next step.
        action_mask, bool (rows, n): legal Discrete actions.
    These names, `final_obs` and `final_info` are left out of agents' infos.

    `mask_in_obs` makes the observation a dict of `observation` and `action_mask`, so that random policies can
    draw legal actions. Raises ValueError unless actions are Discrete.

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
            "own_episodes=True ends an agent's episode before the env's: make the ParallelVectorEnv with "
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
        """Flags (terminated, truncated) of agents that died in the current episode, bool (2, envs, agents)."""
        own = ["active", "alive", "final_obs", "final_info", *["action_mask"] * bool(env.agent_spaces.mask_size)]
        self._own_keys = {*own, *(f"_{key}" for key in own)}
        """Keys that only this class sets in infos."""
        self._last: dict[str, Any] = {}
        """Latest rows of all agents, because a reset of some envs returns all rows."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every env, or in the envs of `options["reset_mask"]`. Return (obs, infos) of all rows.

        With `seed=s`, env i gets the seed s + i. A list has a seed per env or per row. With a seed per row, the first
        agent's seed counts. The mask is bool (num_envs,), with an entry per row, equal for all agents of an env.
        """
        mask, others = split_options(options, self.num_envs)
        ids = self._selected_envs(mask)
        obs, infos = self.env.reset(ids, seed=self._env_seeds(seed, ids), options=others or None)
        self._ended[:, ids] = False
        return self._update_rows(obs, infos, ids)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step every env, with an action per row. Actions of dead agents are ignored."""
        obs, rewards, terminations, truncations, infos = self.env.step(self._by_agent(actions))
        now = np.array([self._as_rows(flags).reshape(self._shape) for flags in (terminations, truncations)])
        done = infos["done"]
        self._ended |= now
        terminated, truncated = now if self.own_episodes else self._ended & done[:, None]
        terminated |= done[:, None] & ~truncated  # also if the agent died earlier or never appeared
        self._ended[:, done] = False
        all_ids = np.arange(len(done))
        obs, rows = self._update_rows(obs, infos, all_ids)
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        early = np.flatnonzero(now.any(0) & ~done[:, None]).tolist() if self.own_episodes and same_step else []
        if early:
            self._zero_ended_rows(early, obs, rows, infos)
        return obs, self._as_rows(rewards), terminated.reshape(-1), truncated.reshape(-1), rows

    def _zero_ended_rows(self, early: list[int], obs: Any, rows: dict[str, Any], infos: dict[str, Any]) -> None:
        """In SAME_STEP mode, zero the rows `early` of agents that died before others, and add final infos."""
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

    def _by_agent(self, actions: Any) -> dict[Any, Any]:
        if not isinstance(self.single_action_space, (spaces.Dict, spaces.Tuple)):
            actions = np.asarray(actions)
        batch = nest.map(self._by_env, actions)
        return {agent: nest.take(batch, (slice(None), j)) for j, agent in enumerate(self._agents)}

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
                    if self._mask_in_obs:  # all ones, because the agent does not act
                        last = {"observation": last, "action_mask": np.ones(self._choices, np.int8)}
                    final_info = self._info_of(infos["final_info"][at], j)
                    final_info["active"] = bool(row_infos["active"][i * self._shape[1] + j])
                    found |= {"final_obs": last, "final_info": final_info}
                self._add_info(row_infos, found, i * self._shape[1] + j)

    def _info_of(self, info: dict[Any, Any], j: int) -> dict[str, Any]:
        shared = {key: value for key, value in info.items() if key not in self._agents and key != "env_id"}
        found = {**shared, **info.get(self._agents[j], {})}
        return {key: value for key, value in found.items() if key not in self._own_keys}

    def _as_rows(self, by_agent: dict[Any, Any]) -> Any:
        """Return arrays (k * agents, ...) from arrays (k, ...) per agent."""
        stacked = nest.stack([by_agent[agent] for agent in self._agents])
        return nest.map(
            lambda leaf: leaf.swapaxes(0, 1).reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), stacked
        )
