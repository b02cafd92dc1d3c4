"""`ParallelVectorEnv` and `AECVectorEnv`: batches of simultaneous and turn-based PettingZoo envs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from gymnasium.vector import AutoresetMode

from vecenv import nest
from vecenv.base import BaseVectorEnv
from vecenv.engine.arguments import as_ids, check_env_fns, check_options, own_env_fns, spread_seeds
from vecenv.engine.mark import LayerMark, sets_mark
from vecenv.envs.agent_spaces import AgentActions, common_spaces, make_env
from vecenv.envs.gymnasium_arguments import as_autoreset_mode
from vecenv.envs.pettingzoo_env import COLUMNS, AECRows, ParallelRows
from vecenv.errors import Partial
from vecenv.venvs import BACKENDS
from vecenv.wrappers import Forwarded

NOT_OFFERED = frozenset({"copy", "stack_obs", "check_actions", "check_spaces", "worker_fn", "strict"})

NEXT_EPISODE = frozenset({"obs", "action_mask", "agent", "alive"})
"""The parts of a row that SAME_STEP mode takes from the reset; the others belong to the step."""

Rows = TypeVar("Rows")
MultiAgentStep = tuple[Any, Any, Any, Any, dict[str, Any]]


class MultiAgentVectorEnv(LayerMark):
    """Base class of ParallelVectorEnv and AECVectorEnv.

    `venv` is the vector env of ParallelRows or AECRows; its methods and properties for whole envs are here too.
    """

    rows_class: type[ParallelRows | AECRows]
    """The env that a worker makes around a PettingZoo env."""

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any] | str],
        backend: str | Callable[..., BaseVectorEnv] = "shmem",
        *,
        possible_agents: Sequence[Any] | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        check_legal: bool = False,
        **options: Any,
    ) -> None:
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        if odd := sorted(NOT_OFFERED & options.keys()):
            raise TypeError(f"{type(self).__name__} has no option {odd[0]!r}")
        make = backend if callable(backend) else BACKENDS.get(backend)
        if make is None:
            raise ValueError(f"backend must be one of {sorted(BACKENDS)} or a vector env class, got {backend!r}")
        if isinstance(make, type):
            check_options(type(self), options, type(self), make, hidden=NOT_OFFERED)
        kind = self.rows_class.kind
        if isinstance(env_fns, (list, tuple)):
            env_fns = [partial(make_env, kind, fn) if isinstance(fn, str) else fn for fn in env_fns]
        fns = [partial(self.rows_class, fn, possible_agents) for fn in own_env_fns(check_env_fns(env_fns))]
        self.venv = make(fns, strict=True, **options)
        try:
            self.agent_spaces = copy.deepcopy(common_spaces(self.venv.get_env_attr("agent_spaces")))
        except BaseException:
            self.venv.close()
            raise
        self.possible_agents = self.agents = list(self.agent_spaces.agents)
        self.num_envs = n = len(self.venv)
        self.metadata = {**(self.venv.metadata[0] or {}), "autoreset_mode": self.autoreset_mode}
        self.render_mode = self.venv.get_env_attr("render_mode", 0)[0]
        single = kind == "aec" and self.agent_spaces.equal("action")
        self._actions = AgentActions(self.agent_spaces, n, single, check_legal)
        self._alive = np.zeros((n, len(self.agents)), dtype=np.bool_)
        self._done = np.zeros(n, dtype=np.bool_)

    def _results(self, raw: Any, infos: dict[str, Any]) -> MultiAgentStep:
        """Convert rows of the engine to what `step` returns; adds to `infos`."""
        raise NotImplementedError

    def observation_space(self, agent: Any) -> Any:
        """The space of an agent's observation in one env, without its action mask."""
        return self.agent_spaces.observation[agent]

    def action_space(self, agent: Any) -> Any:
        """The space of an agent's action in one env; `seed` seeds its sampling."""
        return self.agent_spaces.action[agent]

    @sets_mark
    def reset(self, id: Any = None, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in the envs `id` (default all) and return (obs, infos), rows in the order of `id`.

        `seed`: an int s gives env i the seed s + i, a list has one seed for each env of `id`. `options` go to every
        env. An env that failed is started again. RuntimeError for an env that is still stepping.
        """
        given = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}
        if self._in_call is not None:
            self._recover(sys._getframe(1))

        def reset() -> tuple[Any, dict[str, Any]]:
            raw, info = self.venv.reset(id, **given)
            obs, _, _, _, infos = self._results(raw, self._note(raw, info))
            return obs, infos

        return self._call(range(self.num_envs) if id is None else as_ids(id, self.num_envs).tolist(), reset)

    def step(self, actions: Any, id: Any = None) -> MultiAgentStep:
        """Step the envs `id` (default all): `send`, then `recv`. None as actions only waits for what is in flight."""
        return self.recv() if actions is None else self._halves(lambda: self.send(actions, id), self.recv)

    def send(self, actions: Any, id: Any = None) -> None:
        """The first half of `step`: check everything, start the envs, return at once."""
        self.venv.engine.check_open()
        ids = np.arange(self.num_envs) if id is None else as_ids(id, self.num_envs)
        batch = self._actions.batch(actions, ids)
        over = () if self.autoreset_mode == AutoresetMode.DISABLED else ids[self._done[ids]]
        self.venv.send(batch, None if id is None else ids, reset=over if len(over) else None)

    @sets_mark
    def recv(self) -> MultiAgentStep:
        """The second half of `step`: wait for what is in flight, or as much of it as `wait_num` and `timeout` ask for.

        RuntimeError if nothing is in flight. The error of an env that failed is raised with the results of the others
        in its `partial`.
        """
        if self._in_call:
            self._recover(sys._getframe(1))
        return self._call(self.venv.waiting_id, self._recv)

    def _recv(self) -> MultiAgentStep:
        raw, _, terminated, truncated, info = self.venv.recv()
        infos = self._note(raw, info, terminated, truncated)
        if self.autoreset_mode == AutoresetMode.SAME_STEP and infos["done"].any():
            self._reset_done(raw, infos)
        return self._results(raw, infos)

    def _call(self, asked: Sequence[int], call: Callable[[], Rows]) -> Rows:
        """Make a call of the envs `asked`, and convert the `partial` of its error to the results of this class.

        After an interrupt the envs accept only a reset, because the masks and flags may be those of an earlier step.
        """
        outer, self._in_call = self._in_call, asked  # () in `step`
        try:
            try:
                rows = call()
            except Exception as error:
                if not self.venv.is_closed:
                    self._actions.discard(self.venv.failed_id)
                if isinstance(partial := getattr(error, "partial", None), Partial):
                    infos = self._note(partial.obs, partial.info, partial.terminated, partial.truncated)
                    results = self._results(partial.obs, infos)
                    error.partial = Partial(partial.env_id, *results)  # type: ignore[attr-defined]
                raise
        except BaseException as error:
            self._note_end(error)
            raise
        self._in_call = outer
        return rows

    def _abandon(self, error: BaseException | None) -> None:
        if (asked := self._in_call) is not None:
            self.venv.engine.abandon(error, asked)
            self._actions.discard(asked)
            self._in_call = None

    def _note(self, raw: Any, info: np.ndarray, terminated: Any = False, truncated: Any = False) -> dict[str, Any]:
        """Note which agents act next and which episodes are over; returns the infos that both classes share."""
        ids = np.array([row["env_id"] for row in info], dtype=np.int64)
        if np.any(truncated):  # failed under on_error="restart": the agents that were alive are truncated
            raw["active"][truncated] = raw["truncated"][truncated] = self._alive[ids[truncated]]
            raw["terminated"][truncated] = raw["alive"][truncated] = False
            raw["rewards"][truncated] = 0.0
        self._actions.note(raw, ids)
        self._alive[ids] = raw["alive"]
        self._done[ids] = terminated | truncated
        return {"env_id": ids, "done": self._done[ids], "info": info}

    def _reset_done(self, raw: Any, infos: dict[str, Any]) -> None:
        """SAME_STEP: reset the envs whose episode is over, and put their first observations into the rows."""
        ids, done, info = infos["env_id"], infos["done"], infos["info"]
        try:
            first, first_info = self.venv.reset(ids[done])
        except Exception as error:  # what the step returned is not lost, and the next step resets these envs
            error.partial = Partial(ids, raw, None, done, False, info)  # type: ignore[attr-defined]
            raise
        infos |= {"_final_obs": done.copy(), "final_info": np.where(done, info, None)}
        for name in NEXT_EPISODE & raw.keys():
            if name in ("obs", "agent"):
                infos[f"final_{name}"] = nest.map(np.copy, raw[name])
            nest.put(raw[name], done, first[name])
        self._note(first, first_info)
        info[done] = first_info

    # Seeds, attributes, close.

    def seed(self, seed: Any = None) -> list[int | None]:
        """Seed and reset every env, and seed the action spaces: an int s gives env i the seed s + i.

        Returns the seeds; None does nothing.
        """
        self.venv.engine.check_open()
        seeds = spread_seeds(seed, range(self.num_envs))
        if seed is not None:
            self.reset(seed=seeds)
            for j, agent in enumerate(self.agents):
                self.agent_spaces.action[agent].seed(None if seeds[0] is None else seeds[0] + j)
        return seeds

    get_env_attr, set_env_attr, call, render = map(Forwarded, ("get_env_attr", "set_env_attr", "call", "render"))
    alive, stats, close, is_closed = map(Forwarded, ("alive", "stats", "close", "is_closed"))
    ready_id, waiting_id, failed_id = map(Forwarded, ("ready_id", "waiting_id", "failed_id"))

    def __len__(self) -> int:
        return self.num_envs

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.venv.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.agents)} agents, {self.venv!r})"


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
