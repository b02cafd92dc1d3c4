"""ParallelVectorEnv and AECVectorEnv: batches of PettingZoo envs, simultaneous and turn-based."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.envs.multi_agent.action_bytes import ActionBytes
from vecenv.envs.multi_agent.agent_rows import MOVER, AECRows, ParallelRows, mover_actions
from vecenv.envs.multi_agent.multi_agent_vector_env import MultiAgentStep, MultiAgentVectorEnv


class ParallelVectorEnv(MultiAgentVectorEnv):
    """Many ParallelEnvs of PettingZoo behind one object: dicts with one batch for each agent.

        venv = ParallelVectorEnv(["butterfly/knights_archers_zombies-v11"] * 8)
        obs, infos = venv.reset(seed=0)
        while True:
            actions = {agent: policy[agent](obs[agent], infos["action_mask"][agent]) for agent in venv.agents}
            obs, rewards, terminations, truncations, infos = venv.step(actions)

    Arguments:
        env_fns: for each env a callable that makes it, or an id of PettingZoo's registry.
        backend: "shmem", "subproc", "thread", "dummy", or a vector env class such as ShmemVectorEnv.
        possible_agents: all agents that can appear, in the order that is wanted; default: the envs' own
            `possible_agents`. TypeError if there are neither.
        autoreset_mode: gymnasium's AutoresetMode. NEXT_STEP (default): the step after the end of an episode resets the
            env instead, whatever the actions. SAME_STEP: the env is reset at once, and `infos` has its last
            observation. DISABLED: stepping it is an error until it is reset.
        check_legal: refuse actions that are not in the agent's space, or that its mask forbids.
        options: those of the backend's class: `num_workers`, `wait_num`, `timeout`, `on_error`, `step_timeout`, ...

    The agents are `agents` (= `possible_agents`), the same in every env; their spaces, which may all differ, are
    `observation_space(agent)` and `action_space(agent)`. For k envs:
        obs: {agent: (k, *shape)}, a dict or tuple of such for Dict and Tuple spaces.
        rewards: {agent: float64 (k,)}. terminations, truncations: {agent: bool (k,)}, true once, when the agent ends.
        infos: `active`, {agent: bool (k,)}: the agent acted in this step, and its reward counts. `alive`, {agent: bool
            (k,)}: it acts in the next one. `action_mask`, {agent: bool (k, n)}, for agents with Discrete actions: from
            the observation or the info of the env, else all True. `done`, bool (k,): no agent is alive, the episode of
            the env is over. `env_id`, int (k,). `info`, object (k,): a dict {agent: info, "env_id": id} of those that
            have something to say. In SAME_STEP mode, when an episode ended: `final_obs` as `obs`, with the mask
            `_final_obs`, and `final_info`.
    The row of an agent that is not there, because it died or has not come yet, is zeros with the reward 0, `active`
    False and every action legal; the action for it is ignored.

    Rejected before anything is sent, with the env and the agent named: an unknown agent, no actions for an agent that
    is alive (ValueError), a wrong shape (ValueError) or dtype (TypeError), an env that was not reset or has nobody
    alive (RuntimeError). The failure of an env is raised with the others' results as its `partial`.

    >>> with ParallelVectorEnv(["classic/rps-v2"] * 3, backend="dummy") as venv:
    ...     obs, infos = venv.reset(seed=0)
    ...     actions = {"player_0": [0, 1, 2], "player_1": [1, 1, 1]}  # rock, paper, scissors
    ...     obs, rewards, terminations, truncations, infos = venv.step(actions)
    >>> rewards["player_0"], obs["player_0"], infos["active"]["player_0"]
    (array([-1.,  0.,  1.]), array([1, 1, 1]), array([ True,  True,  True]))
    """

    rows_class = ParallelRows
    kind = "parallel"

    def _prepare(self) -> None:
        self._actions = ActionBytes(self._spaces.action)

    def _packed(self, actions: Any, ids: np.ndarray, stepped: np.ndarray) -> np.ndarray:
        _check_agents(actions, self.agents, ids)
        rows, needed = self._actions.empty(len(ids)), self._alive[ids] & stepped[:, None]
        for j, agent in enumerate(self.agents):
            if agent in actions:
                self._actions.pack(rows, agent, actions[agent], ids.tolist())
            elif needed[:, j].any():
                raise ValueError(
                    f"no actions for agent {agent!r}, which is alive in env {int(ids[needed[:, j]][0])}; got those of "
                    f"{list(actions)}"
                )
        if self._check_legal:
            for j, agent in enumerate(self.agents):
                for row in np.flatnonzero(needed[:, j]).tolist():
                    mask = self._masks[agent][ids[row]] if agent in self._masks else None
                    self._check_action(self._actions.unpack(rows[row], agent), agent, mask, ids[row])
        return rows

    def _note(self, raw: Any, ids: np.ndarray) -> None:
        super()._note(raw, ids)
        if self._check_legal:
            for agent, mask in raw["mask"].items():
                self._masks.setdefault(agent, np.ones((self.num_envs, mask.shape[1]), np.bool_))[ids] = mask

    def _results(self, raw: Any, infos: dict[str, Any]) -> MultiAgentStep:
        reward, terminated, truncated, active, alive = (
            {agent: raw[name][:, j] for j, agent in enumerate(self.agents)}
            for name in ("reward", "terminated", "truncated", "active", "alive")
        )
        masks = {agent: raw["mask"][agent] for agent in self.agents if agent in raw["mask"]}
        infos |= {"active": active, "alive": alive, "action_mask": masks}
        if "final_obs" in infos:
            infos["final_obs"] = self._in_order(infos["final_obs"])
        return self._in_order(raw["obs"]), reward, terminated, truncated, infos


class AECVectorEnv(MultiAgentVectorEnv):
    """Many AECEnvs of PettingZoo behind one object: one turn of one agent a step, in each env.

        venv = AECVectorEnv(["classic/connect_four-v3"] * 8)
        obs, infos = venv.reset(seed=0)
        while True:
            actions = policy(obs, infos["agent"], infos["action_mask"])
            obs, rewards, terminations, truncations, infos = venv.step(actions)

    Arguments are those of ParallelVectorEnv. Dead agents never have a turn: the worker takes them out of the env. For k
    envs:
        obs: (k, *shape), what the agent to move sees. Where the agents' observation spaces differ, {agent: (k,
            *shape)}, zeros but for the agent to move.
        actions: (k, ...), those of the agents to move. Where their action spaces differ, {agent: (k, ...)}, of which
            the rows of the agent to move are used; an agent that has no turn may be left out.
        rewards: float64 (k, num_agents), what each agent got since the step before. Over an episode they add up to the
            rewards of `last()` in PettingZoo's own loop.
        terminations, truncations: bool (k, num_agents), true once, when the agent ends.
        infos: `agent`, int (k,): the index in `agents` of the agent to move (at the end of an episode, of the one that
            the env names last). `action_mask`, bool (k, n): its legal actions, where actions are Discrete; n is that
            of the largest space. `active`, `alive`: bool (k, num_agents): was alive before this step, is alive now.
            `done`, `env_id`, `info`, `final_obs`, `_final_obs` and `final_info` as in ParallelVectorEnv; beside
            `final_obs`, `final_agent` says whose it is.

    An illegal move ends the episode where the env is made so (the classic games: -1 for the offender), and is the
    env's error elsewhere; `check_legal=True` refuses it before anything is sent.

    >>> with AECVectorEnv(["classic/tictactoe-v3"] * 2, backend="dummy") as venv:
    ...     obs, infos = venv.reset(seed=0)
    ...     obs, rewards, terminations, truncations, infos = venv.step([4, 0])
    >>> obs.shape, infos["agent"], infos["action_mask"][0]
    ((2, 3, 3, 2), array([1, 1]), array([ True,  True,  True,  True, False,  True,  True,  True,  True]))
    """

    rows_class = AECRows
    kind = "aec"

    def _prepare(self) -> None:
        self._mover = np.zeros(self.num_envs, dtype=np.int64)
        self._one_obs, self._one_action = self._spaces.equal("observation"), self._spaces.equal("action")
        self._actions = ActionBytes(mover_actions(self._spaces))

    def _packed(self, actions: Any, ids: np.ndarray, stepped: np.ndarray) -> np.ndarray:
        rows = self._actions.empty(len(ids))
        movers = [self.agents[j] for j in self._mover[ids]]
        if self._one_action:
            self._actions.pack(rows, MOVER, actions, ids.tolist())
        else:
            _check_agents(actions, self.agents, ids)
            for agent, batch in actions.items():
                self._actions.pack(rows, agent, batch, ids.tolist())
            for row in np.flatnonzero(stepped).tolist():
                if movers[row] not in actions:
                    raise ValueError(
                        f"no action for agent {movers[row]!r}, whose turn it is in env {ids[row]}; got those of "
                        f"{list(actions)}"
                    )
        if self._check_legal:
            for row in np.flatnonzero(stepped).tolist():
                action = self._actions.unpack(rows[row], MOVER if self._one_action else movers[row])
                mask = self._masks["mask"][ids[row]] if self._masks else None
                self._check_action(action, movers[row], mask, ids[row])
        return rows

    def _note(self, raw: Any, ids: np.ndarray) -> None:
        super()._note(raw, ids)
        self._mover[ids] = raw["agent"]
        if self._check_legal and "mask" in raw:
            self._masks.setdefault("mask", np.ones((self.num_envs, raw["mask"].shape[1]), np.bool_))[ids] = raw["mask"]

    def _results(self, raw: Any, infos: dict[str, Any]) -> MultiAgentStep:
        infos |= {name: raw[name] for name in ("agent", "active", "alive")}
        if "mask" in raw:
            infos["action_mask"] = raw["mask"]
        obs = raw["obs"]
        if not self._one_obs:
            obs = self._in_order(obs)
            if "final_obs" in infos:
                infos["final_obs"] = self._in_order(infos["final_obs"])
        return obs, raw["reward"], raw["terminated"], raw["truncated"], infos


def _check_agents(actions: Any, agents: Sequence[Any], ids: np.ndarray) -> None:
    """TypeError if `actions` is not a dict, ValueError for an agent that does not exist."""
    if not isinstance(actions, Mapping):
        raise TypeError(
            f"actions for envs {ids.tolist()} must be a dict with a batch for each agent of {list(agents)}, got a "
            f"{type(actions).__name__}"
        )
    for agent in actions:
        if agent not in agents:
            raise ValueError(
                f"actions for envs {ids.tolist()} has the unknown agent {agent!r}; there are {list(agents)}"
            )
