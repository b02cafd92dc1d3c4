"""ParallelVectorEnv and AECVectorEnv: batches of PettingZoo envs, simultaneous and turn-based."""

from __future__ import annotations

from typing import Any

from vecenv.envs.multi_agent.agent_rows import COLUMNS, AECRows, ParallelRows
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
        possible_agents: all agents that can appear, in the order of `agents`; default: the envs' own
            `possible_agents`. TypeError if there is neither.
        autoreset_mode: gymnasium's AutoresetMode, its value or its name in any case. NEXT_STEP (default): the step
            after the end of an episode resets the env instead, whatever the actions. SAME_STEP: the env is reset at
            once, and `infos` has its last observation. DISABLED: stepping it is an error until it is reset.
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
            have one. In SAME_STEP mode, when an episode ended: `final_obs` as `obs`, with the mask
            `_final_obs`, and `final_info`.
    The row of an absent agent, which has died or has not appeared yet, is zeros with the reward 0, `active` False and
    every action legal; the action for it is ignored.

    Rejected before anything is sent, with the env and the agent named: an unknown agent, no actions for an agent that
    is alive (ValueError), a wrong shape (ValueError) or dtype (TypeError), an env that was not reset or whose episode
    is over (RuntimeError), one that has failed (its error again). The failure of an env is raised with the
    others' results as its `partial`. A call that Ctrl-C interrupts discards its results, and its envs have to be reset.

    `venv` is the vector env of all envs, to which `get_env_attr`, `set_env_attr`, `call`, `render`, `alive`, `stats`,
    `ready_id`, `waiting_id` and `failed_id` are forwarded.

    >>> with ParallelVectorEnv(["classic/rps-v2"] * 3, backend="dummy") as venv:
    ...     obs, infos = venv.reset(seed=0)
    ...     actions = {"player_0": [0, 1, 2], "player_1": [1, 1, 1]}  # rock, paper, scissors
    ...     obs, rewards, terminations, truncations, infos = venv.step(actions)
    >>> rewards["player_0"], obs["player_0"], infos["active"]["player_0"]
    (array([-1.,  0.,  1.]), array([1, 1, 1]), array([ True,  True,  True]))
    """

    rows_class = ParallelRows

    def _results(self, raw: Any, infos: dict[str, Any]) -> MultiAgentStep:
        columns = {name: dict(zip(self.agents, raw[name].T, strict=True)) for name in COLUMNS}
        infos |= {"active": columns["active"], "alive": columns["alive"], "action_mask": raw["action_mask"]}
        return raw["obs"], columns["rewards"], columns["terminated"], columns["truncated"], infos


class AECVectorEnv(MultiAgentVectorEnv):
    """Many AECEnvs of PettingZoo behind one object: one turn of one agent a step, in each env.

        venv = AECVectorEnv(["classic/connect_four-v3"] * 8)
        obs, infos = venv.reset(seed=0)
        while True:
            actions = policy(obs, infos["agent"], infos["action_mask"])
            obs, rewards, terminations, truncations, infos = venv.step(actions)

    Arguments are those of ParallelVectorEnv. Dead agents never have a turn: the worker removes them from the env. For k
    envs:
        obs: (k, *shape), what the agent to move sees. Where the agents' observation spaces differ, {agent: (k,
            *shape)}, zeros but for the agent to move.
        actions: (k, ...), those of the agents to move. Where their action spaces differ, {agent: (k, ...)}, of which
            the rows of the agent to move are used; an agent that has no turn may be left out.
        rewards: float64 (k, num_agents), what each agent got since the step before. Over an episode they add up to the
            rewards of `last()` in PettingZoo's own loop.
        terminations, truncations: bool (k, num_agents), true once, when the agent ends.
        infos: `agent`, int (k,): the index in `agents` of the agent to move (at the end of an episode, the env's last
            `agent_selection`). `action_mask`, bool (k, n): its legal actions, where actions are Discrete; n is that
            of the largest space. `active`, `alive`: bool (k, num_agents): was alive before this step, is alive now.
            `done`, `env_id`, `info`, `final_obs`, `_final_obs` and `final_info` as in ParallelVectorEnv; beside
            `final_obs`, `final_agent` is the agent that sees it.

    An illegal move ends the episode if the env has PettingZoo's TerminateIllegalWrapper, as the classic games have (-1
    for the offender), else the env may raise; `check_legal=True` refuses it before anything is sent.

    >>> with AECVectorEnv(["classic/tictactoe-v3"] * 2, backend="dummy") as venv:
    ...     obs, infos = venv.reset(seed=0)
    ...     obs, rewards, terminations, truncations, infos = venv.step([4, 0])
    >>> obs.shape, infos["agent"], infos["action_mask"][0]
    ((2, 3, 3, 2), array([1, 1]), array([ True,  True,  True,  True, False,  True,  True,  True,  True]))
    """

    rows_class = AECRows

    def _results(self, raw: Any, infos: dict[str, Any]) -> MultiAgentStep:
        infos |= {name: raw[name] for name in ("agent", "active", "alive", "action_mask") if name in raw}
        return raw["obs"], raw["rewards"], raw["terminated"], raw["truncated"], infos
