"""`ParallelVectorEnv` and `AECVectorEnv`: vector envs for PettingZoo's simultaneous and turn-based games."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from gymnasium.vector import AutoresetMode

from vecenv import nest
from vecenv.arguments import as_ids, check_env_fns, check_options, resolve_env_fns, spread_seeds
from vecenv.base import BaseVectorEnv
from vecenv.engine.mark import Layer, is_layer_call, mark_of
from vecenv.envs.agent_spaces import AgentActions, common_spaces, make_pettingzoo
from vecenv.envs.gymnasium_arguments import as_autoreset_mode
from vecenv.envs.pettingzoo_env import PER_AGENT, AECRows, ParallelRows
from vecenv.errors import Partial
from vecenv.venvs import BACKENDS
from vecenv.wrappers import Forwarded

REFUSED_OPTIONS = frozenset({"copy", "stack_obs", "check_actions", "check_spaces", "worker_fn", "strict"})

NEXT_EPISODE = frozenset({"obs", "action_mask", "agent", "alive"})
"""Entries that SAME_STEP mode takes from the next episode's reset."""

RowsT = TypeVar("RowsT")
MultiAgentStep = tuple[Any, Any, Any, Any, dict[str, Any]]


class MultiAgentVectorEnv(Layer):
    """Base class of ParallelVectorEnv and AECVectorEnv. `venv` runs PettingZoo's envs in `rows_class` objects."""

    rows_class: type[ParallelRows | AECRows]

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
        if odd := sorted(REFUSED_OPTIONS & options.keys()):
            raise TypeError(f"{type(self).__name__} has no option {odd[0]!r}")
        make = backend if callable(backend) else BACKENDS.get(backend)
        if make is None:
            raise ValueError(f"backend must be one of {sorted(BACKENDS)} or a vector env class, got {backend!r}")
        if isinstance(make, type):
            check_options(type(self), options, type(self), make, hidden=REFUSED_OPTIONS)
        kind = self.rows_class.kind
        if isinstance(env_fns, (list, tuple)):
            env_fns = [partial(make_pettingzoo, kind, fn) if isinstance(fn, str) else fn for fn in env_fns]
        fns = [partial(self.rows_class, fn, possible_agents) for fn in resolve_env_fns(check_env_fns(env_fns))]
        self.venv = make(fns, strict=True, **options)
        self.call_mark = mark_of(self.venv)
        try:
            self.agent_spaces = copy.deepcopy(common_spaces(self.venv.get_env_attr("agent_spaces")))
        except BaseException:
            self.venv.close()
            raise
        self.possible_agents = self.agents = list(self.agent_spaces.agents)
        self.num_envs = n = len(self.venv)
        self.metadata = {**(self.venv.metadata[0] or {}), "autoreset_mode": self.autoreset_mode}
        self.render_mode = self.venv.get_env_attr("render_mode", 0)[0]
        single = kind == "aec" and self.agent_spaces.has_shared_space("action")
        self._actions = AgentActions(self.agent_spaces, n, single, check_legal)
        self._alive = np.zeros((n, len(self.agents)), dtype=np.bool_)
        self._done = np.zeros(n, dtype=np.bool_)

    def _results(self, raw: Any, infos: dict[str, Any]) -> MultiAgentStep:
        raise NotImplementedError

    def observation_space(self, agent: Any) -> Any:
        """Return the observation space of an agent, without the action mask."""
        return self.agent_spaces.observation[agent]

    def action_space(self, agent: Any) -> Any:
        """Return the action space of an agent. `seed` seeds this space too."""
        return self.agent_spaces.action[agent]

    @is_layer_call
    def reset(self, id: Any = None, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in the envs `id` (default: all). Return (obs, infos), with rows in the order of `id`.

        With `seed=s`, env i gets the seed s + i. A list has a seed per env of `id`. All envs get `options`. If an
        env's worker has ended, a new worker starts. Raises RuntimeError if an env is stepping.
        """
        given = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}

        def reset() -> tuple[Any, dict[str, Any]]:
            raw, info = self.venv.reset(id, **given)
            obs, _, _, _, infos = self._results(raw, self._record_rows(raw, info))
            return obs, infos

        return self._call(reset)

    @is_layer_call
    def step(self, actions: Any, id: Any = None) -> MultiAgentStep:
        """Step the envs `id` (default: all). If `actions` is `None`, only call `recv`."""
        if actions is not None:
            self.send(actions, id)
        return self.recv()

    def send(self, actions: Any, id: Any = None) -> None:
        """Check the actions and start the step of the envs `id`, without waiting."""
        self.venv.engine.check_open()
        ids = np.arange(self.num_envs) if id is None else as_ids(id, self.num_envs)
        batch = self._actions.batch(actions, ids)
        over = () if self.autoreset_mode == AutoresetMode.DISABLED else ids[self._done[ids]]
        self.venv.send(batch, None if id is None else ids, reset=over if len(over) else None)

    @is_layer_call
    def recv(self) -> MultiAgentStep:
        """Return the results of all stepping envs. With `wait_num` or `timeout`, `recv` waits for fewer envs.

        Raises RuntimeError if no env is stepping.
        """
        return self._call(self._recv)

    def _recv(self) -> MultiAgentStep:
        raw, _, terminated, truncated, info = self.venv.recv()
        infos = self._record_rows(raw, info, terminated, truncated)
        if self.autoreset_mode == AutoresetMode.SAME_STEP and infos["done"].any():
            self._reset_done(raw, infos)
        return self._results(raw, infos)

    def _call(self, call: Callable[[], RowsT]) -> RowsT:
        """Run `call`, which steps or resets envs. Convert an error's `partial` to results of agents."""
        try:
            return call()
        except Exception as error:
            if not self.venv.is_closed:
                self._actions.discard(self.venv.failed_id)
            if isinstance(partial := getattr(error, "partial", None), Partial):
                infos = self._record_rows(partial.obs, partial.info, partial.terminated, partial.truncated)
                results = self._results(partial.obs, infos)
                error.partial = Partial(partial.env_id, *results)  # type: ignore[attr-defined]
            raise

    def _record_rows(
        self, raw: Any, info: np.ndarray, terminated: Any = False, truncated: Any = False
    ) -> dict[str, Any]:
        ids = np.array([row["env_id"] for row in info], dtype=np.int64)
        if np.any(truncated):  # only for failed envs with on_error="restart": truncate their living agents
            raw["active"][truncated] = raw["truncated"][truncated] = self._alive[ids[truncated]]
            raw["terminated"][truncated] = raw["alive"][truncated] = False
            raw["rewards"][truncated] = 0.0
        self._actions.record(raw, ids)
        self._alive[ids] = raw["alive"]
        self._done[ids] = terminated | truncated
        return {"env_id": ids, "done": self._done[ids], "info": info}

    def _reset_done(self, raw: Any, infos: dict[str, Any]) -> None:
        ids, done, info = infos["env_id"], infos["done"], infos["info"]
        try:
            first, first_info = self.venv.reset(ids[done])
        except Exception as error:  # keep the step's results in the error; the next step resets these envs
            error.partial = Partial(ids, raw, None, done, False, info)  # type: ignore[attr-defined]
            raise
        infos |= {"_final_obs": done.copy(), "final_info": np.where(done, info, None)}
        for name in NEXT_EPISODE & raw.keys():
            if name in ("obs", "agent"):
                infos[f"final_{name}"] = nest.map(np.copy, raw[name])
            nest.put(raw[name], done, first[name])
        self._record_rows(first, first_info)
        info[done] = first_info

    def seed(self, seed: Any = None) -> list[int | None]:
        """Unless `seed` is None, reset env i with `seed + i`, and seed the action spaces. Return the seeds."""
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
    """Vector env of PettingZoo ParallelEnvs, with a batch per agent. See docs/guides/multi-agent.md.

    Arguments:
        env_fns: for each env a callable, or an id of PettingZoo's registry.
        backend: "shmem", "subproc", "thread", "dummy", or a vector env class such as ShmemVectorEnv.
        possible_agents: all agents, in order. Default: the env's `possible_agents`. Raises TypeError if missing.
        autoreset_mode: an AutoresetMode, its value or its name. NEXT_STEP resets a finished env in the next step, and
            ignores its actions. SAME_STEP resets the env in its last step. With DISABLED, the next step of a finished
            env raises RuntimeError.
        check_legal: refuse actions outside the agent's space or mask (ValueError).
        options: arguments of the backend's class, such as `num_workers`, `wait_num` and `on_error`.

    The spaces of agents may differ. `step` returns for k envs:
        obs: {agent: (k, *shape)}. For Dict and Tuple spaces, a dict or tuple of batches.
        rewards: {agent: float64 (k,)}.
        terminations, truncations: {agent: bool (k,)}, True only in the agent's last step.
        infos: a dict of these entries, and if SAME_STEP resets an env, of `final_obs`, its mask `_final_obs`, and
            `final_info`.
            active, {agent: bool (k,)}: the agent acted in this step.
            alive, {agent: bool (k,)}: the agent acts in the next step.
            action_mask, {agent: bool (k, n)}: legal Discrete actions, all True if the env has no mask.
            done, bool (k,): no agent is alive.
            env_id, int (k,): ids of the envs.
            info, object (k,): dicts {agent: info, "env_id": id}.
    The row of a dead or absent agent has zeros and an all-True mask. The action of this agent is ignored.

    Raises errors before any env steps: ValueError for an unknown agent, missing actions or a wrong shape, TypeError for
    a wrong dtype, RuntimeError for an env that needs a reset. A failed env's error has the other envs' results as
    `error.partial`. After Ctrl-C, reset all envs.

    `get_env_attr`, `set_env_attr`, `call`, `render`, `alive`, `stats`, `ready_id`, `waiting_id` and `failed_id` come
    from the vector env `venv`.

    >>> with ParallelVectorEnv(["classic/rps-v2"] * 3, backend="dummy") as venv:
    ...     obs, infos = venv.reset(seed=0)
    ...     actions = {"player_0": [0, 1, 2], "player_1": [1, 1, 1]}  # rock, paper, scissors
    ...     obs, rewards, terminations, truncations, infos = venv.step(actions)
    >>> rewards["player_0"], obs["player_0"], infos["active"]["player_0"]
    (array([-1.,  0.,  1.]), array([1, 1, 1]), array([ True,  True,  True]))
    """

    rows_class = ParallelRows

    def _results(self, raw: Any, infos: dict[str, Any]) -> MultiAgentStep:
        columns = {name: dict(zip(self.agents, raw[name].T, strict=True)) for name in PER_AGENT}
        infos |= {"active": columns["active"], "alive": columns["alive"], "action_mask": raw["action_mask"]}
        return raw["obs"], columns["rewards"], columns["terminated"], columns["truncated"], infos


class AECVectorEnv(MultiAgentVectorEnv):
    """Vector env of PettingZoo AECEnvs. In each step, one agent per env takes its turn.

    The arguments are as for ParallelVectorEnv. Dead agents have no turn.

    `actions` has the shape (k, ...), for the agents to move. If action spaces differ, `actions` is {agent: (k, ...)}.
    Rows of other agents than the agent to move are ignored. Agents that move in no env may be left out.

    `step` returns for k envs:
        obs: (k, *shape), for the agents to move. If spaces differ: {agent: (k, *shape)}, with zeros for other agents.
        rewards: float64 (k, num_agents), since the previous step. Their sum over an episode equals the sum from
            PettingZoo's `last()`.
        terminations, truncations: bool (k, num_agents), True only in the agent's last step.
        infos: as in ParallelVectorEnv, except for these entries:
            agent, int (k,): index of the agent to move, or of the last `agent_selection` if no agent is alive.
            action_mask, bool (k, n): legal Discrete actions, n as in the largest action space.
            active, bool (k, num_agents): the agent was alive before this step.
            alive, bool (k, num_agents): the agent is alive after this step.
            final_agent, int (k,): index of the agent of `final_obs`.

    In classic games, an illegal move ends the episode with reward -1 for the agent (TerminateIllegalWrapper). Other
    envs may raise. With `check_legal=True`, an illegal move raises ValueError.

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
