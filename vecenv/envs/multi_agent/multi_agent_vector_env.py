"""MultiAgentVectorEnv: what ParallelVectorEnv and AECVectorEnv share: ids, the episodes of the envs, autoreset."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from vecenv import nest
from vecenv.base import BaseVectorEnv
from vecenv.engine.arguments.checks import check_env_fns
from vecenv.engine.arguments.ids import as_ids
from vecenv.engine.arguments.seeding import spread_seeds
from vecenv.envs.multi_agent.agent_spaces import AgentSpaces, as_env_fns
from vecenv.errors import ClosedError, Partial
from vecenv.venvs import BACKENDS

NOT_OFFERED = frozenset({"copy", "stack_obs", "check_actions", "check_spaces", "worker_fn", "strict"})

NEXT_EPISODE = frozenset({"obs", "mask", "agent", "alive"})
"""The parts of a row that SAME_STEP mode takes from the reset; the others belong to the step."""

MultiAgentStep = tuple[Any, Any, Any, Any, dict[str, Any]]


class MultiAgentVectorEnv:
    """The part of ParallelVectorEnv and AECVectorEnv in which they are the same; used through them only."""

    rows_class: Callable[..., Any]
    """The env that a worker makes around a PettingZoo env."""
    kind: str

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
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self._check_legal = check_legal
        self._masks: dict[Any, np.ndarray] = {}
        """The masks (n, ...) that the next actions are checked against, if they are."""
        if odd := sorted(NOT_OFFERED & options.keys()):
            raise TypeError(f"{type(self).__name__} has no option {odd[0]!r}")
        make = backend_class(backend)
        fns = [partial(self.rows_class, fn, possible_agents) for fn in check_env_fns(as_env_fns(self.kind, env_fns))]
        self.venv = make(fns, **options)
        try:
            self._spaces = copy.deepcopy(_common_spaces(self.venv.get_env_attr("agent_spaces")))
        except BaseException:
            self.venv.close()
            raise
        self.possible_agents = self.agents = list(self._spaces.agents)
        self.num_envs = n = len(self.venv)
        self.metadata = {**(self.venv.metadata[0] or {}), "autoreset_mode": self.autoreset_mode}
        self.render_mode = self.venv.get_env_attr("render_mode", 0)[0]
        self._prepare()
        self._alive = np.zeros((n, len(self.agents)), dtype=np.bool_)
        self._done = np.zeros(n, dtype=np.bool_)
        self._unready = np.ones(n, dtype=np.bool_)
        """Never reset, or failed since."""

    # What the kinds of envs do in their own way.

    def _prepare(self) -> None:
        """Set up what `_packed` needs."""
        raise NotImplementedError

    def _packed(self, actions: Any, ids: np.ndarray, stepped: np.ndarray) -> np.ndarray:
        """The rows of actions for the envs `ids`; only those in the mask `stepped` are used. Checks everything."""
        raise NotImplementedError

    def _note(self, raw: Any, ids: np.ndarray) -> None:
        """Remember what the next actions are checked against."""
        self._alive[ids] = raw["alive"]

    def _results(self, raw: Any, infos: dict[str, Any]) -> MultiAgentStep:
        """The rows of the engine in the form of this class; adds to `infos`."""
        raise NotImplementedError

    def _in_order(self, by_agent: Mapping[Any, Any]) -> dict[Any, Any]:
        """The entries in the order of `agents`; gymnasium's Dict space sorts its keys."""
        return {agent: by_agent[agent] for agent in self.agents}

    # Spaces.

    def observation_space(self, agent: Any) -> Any:
        """What the agent sees in one env, its action mask taken out."""
        return self._spaces.observation[agent]

    def action_space(self, agent: Any) -> Any:
        """What the agent does in one env; sampling from it is seeded by `seed`."""
        return self._spaces.action[agent]

    # Stepping.

    def reset(self, *, seed: Any = None, options: Any = None, id: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in the envs `id` (default all) and return (obs, infos), rows in the order of `id`.

        `seed`: an int s gives env i the seed s + i, a list has one seed for each env of `id`. `options` go to every
        env. An env that failed is started again. RuntimeError for an env that is still stepping.
        """
        self._check_open()
        given = {"seed": seed, "options": options}
        try:
            raw, info = self.venv.reset(id, **{name: value for name, value in given.items() if value is not None})
        except BaseException as error:
            self._after_failure(error)
            raise
        ids = _ids_of(info)
        self._begun(raw, ids)
        obs, _, _, _, infos = self._results(raw, {"env_id": ids, "done": np.zeros(len(ids), np.bool_), "info": info})
        return obs, infos

    def step(self, actions: Any, id: Any = None) -> MultiAgentStep:
        """Step the envs `id` (default all): `send`, then `recv`. None as actions only waits for what is in flight."""
        if actions is not None:
            self.send(actions, id)
        return self.recv()

    def send(self, actions: Any, id: Any = None) -> None:
        """The first half of `step`: check everything, start the envs, return at once."""
        self._check_open()
        ids = np.arange(self.num_envs) if id is None else as_ids(id, self.num_envs)
        over = self._done[ids]
        self._check_begun(ids, over)
        rows = self._packed(actions, ids, ~over)
        self.venv.send(rows, None if id is None else ids, reset=ids[over] if over.any() else None)

    def recv(self) -> MultiAgentStep:
        """The second half of `step`: wait for what is in flight, or as much of it as `wait_num` and `timeout` say.

        RuntimeError if nothing is in flight. The error of an env that failed is raised with the results of the others
        in its `partial`.
        """
        self._check_open()
        try:
            raw, _, terminated, truncated, info = self.venv.recv()
        except BaseException as error:
            self._after_failure(error)
            raise
        return self._taken(raw, terminated | truncated, truncated, info, reset=True)

    def _taken(self, raw: Any, done: np.ndarray, lost: np.ndarray, info: np.ndarray, reset: bool) -> MultiAgentStep:
        """Note what came back, start new episodes in SAME_STEP mode if `reset`, and give it its form."""
        ids = _ids_of(info)
        if lost.any():
            self._cut_off(raw, ids, lost)
        self._begun(raw, ids)
        self._done[ids] = done
        infos = {"env_id": ids, "done": done, "info": info}
        if reset and done.any() and self.autoreset_mode == AutoresetMode.SAME_STEP:
            infos |= self._reset_in_same_step(raw, ids, done, info)
        return self._results(raw, infos)

    def _reset_in_same_step(self, raw: Any, ids: np.ndarray, done: np.ndarray, info: np.ndarray) -> dict[str, Any]:
        """Put the first observations of the next episodes into the rows of those that ended: returns the last ones."""
        try:
            first, first_info = self.venv.reset(ids[done])
        except BaseException as error:
            # What the step returned is not lost; the envs that were to begin an episode have to be reset by the caller.
            self._unready[ids[done]] = True
            results = self._results(raw, {"env_id": ids, "done": done, "info": info})
            error.partial = Partial(ids, *results)  # type: ignore[attr-defined]
            raise
        final = {f"final_{name}": nest.map(np.copy, raw[name]) for name in ("obs", "agent") if name in raw}
        final_info = np.full(len(ids), None, dtype=object)
        final_info[done] = info[done]
        for name in NEXT_EPISODE & raw.keys():
            nest.put(raw[name], done, first[name])
        self._begun(first, ids[done])
        info[done] = first_info
        return {**final, "_final_obs": done.copy(), "final_info": final_info}

    def _begun(self, raw: Any, ids: np.ndarray) -> None:
        self._unready[ids] = False
        self._done[ids] = False
        self._note(raw, ids)

    def _cut_off(self, raw: Any, ids: np.ndarray, lost: np.ndarray) -> None:
        """Rows of envs that failed under on_error="restart": the agents that were alive are truncated."""
        alive = self._alive[ids][lost]
        raw["active"][lost] = raw["truncated"][lost] = alive
        raw["terminated"][lost] = raw["alive"][lost] = False
        raw["reward"][lost] = 0.0

    def _after_failure(self, error: BaseException) -> None:
        """An env failed: it has to be reset. The others' results, in `error.partial`, get the form of this class."""
        if self.venv.is_closed:
            return
        self._unready[self.venv.failed_id] = True
        partial = getattr(error, "partial", None)
        if isinstance(partial, Partial):
            done = partial.terminated | partial.truncated
            results = self._taken(partial.obs, done, partial.truncated, partial.info, reset=False)
            error.partial = Partial(partial.env_id, *results)  # type: ignore[attr-defined]

    # Checks.

    def _check_open(self) -> None:
        if self.venv.is_closed:
            raise ClosedError(f"Methods of {type(self).__name__} cannot be called after close.")

    def _check_begun(self, ids: np.ndarray, over: np.ndarray) -> None:
        if (unready := self._unready[ids]).any():
            i = int(ids[unready][0])
            raise RuntimeError(f"env {i} was not reset yet, or has failed since; call reset(id=[{i}]) first")
        if over.any() and self.autoreset_mode == AutoresetMode.DISABLED:
            i = int(ids[over][0])
            raise RuntimeError(
                f"env {i} cannot be stepped: its episode is over, none of its agents {self.agents} is alive; "
                f"call reset(id=[{i}]) first"
            )

    def _check_action(self, action: Any, agent: Any, mask: np.ndarray | None, env_id: Any) -> None:
        """ValueError for an action that is not in the agent's space, or that `mask` forbids."""
        space = self._spaces.action[agent]
        if not space.contains(action):
            raise ValueError(f"the action {action!r} of agent {agent!r} in env {env_id} is not in its space {space}")
        if mask is not None and agent in self._spaces.mask_size and not mask[int(action) - int(space.start)]:
            raise ValueError(
                f"the action {action!r} of agent {agent!r} in env {env_id} is illegal now; its legal actions are "
                f"{(np.flatnonzero(mask) + space.start).tolist()}"
            )

    # Access and life.

    def seed(self, seed: Any = None) -> list[int | None]:
        """Seed and reset every env, and seed the action spaces: an int s gives env i the seed s + i.

        Returns the seeds; None does nothing.
        """
        self._check_open()
        seeds = spread_seeds(seed, range(self.num_envs))
        if seed is not None:
            self.reset(seed=seeds)
            for j, agent in enumerate(self.agents):
                self._spaces.action[agent].seed(None if seeds[0] is None else seeds[0] + j)
        return seeds

    def get_env_attr(self, key: str, id: Any = None) -> list[Any]:
        """The attribute `key` of the PettingZoo envs `id` (default all), found through wrappers."""
        return self.venv.get_env_attr(key, id)

    def set_env_attr(self, key: str, value: Any, id: Any = None) -> None:
        """Set the attribute where `get_env_attr` finds it, or on the innermost env if it is new."""
        self.venv.set_env_attr(key, value, id)

    def call(self, name: str, *args: Any, id: Any = None, **kwargs: Any) -> list[Any]:
        """Call the method `name` of the PettingZoo envs `id` (default all), in all workers at once."""
        return self.venv.call(name, *args, id=id, **kwargs)

    def render(self) -> list[Any]:
        """The frame of each env."""
        return self.venv.render()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self.venv.is_closed

    def close(self) -> None:
        """Close all envs and end the workers: at most 5 seconds, then by force. A second call does nothing."""
        self.venv.close()

    def __len__(self) -> int:
        return self.num_envs

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.agents)} agents, {self.venv!r})"


def backend_class(backend: Any) -> Callable[..., BaseVectorEnv]:
    """The vector env class of a name in `BACKENDS`, or the class itself."""
    if callable(backend):
        return backend
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {sorted(BACKENDS)} or a vector env class, got {backend!r}")
    return BACKENDS[backend]


def _ids_of(info: np.ndarray) -> np.ndarray:
    return np.array([row["env_id"] for row in info], dtype=np.int64)


def _common_spaces(found: Sequence[AgentSpaces]) -> AgentSpaces:
    """The spaces of all envs; ValueError, with the env and the agent named, if an env differs from the first."""
    first = found[0]
    for i, other in enumerate(found):
        if other.agents != first.agents:
            raise ValueError(
                f"all envs must have the same possible agents in the same order: env 0 has {first.agents}, "
                f"env {i} has {other.agents}"
            )
        for kind in ("observation", "action"):
            for agent in first.agents:
                mine, theirs = getattr(first, kind)[agent], getattr(other, kind)[agent]
                if mine != theirs:
                    raise ValueError(
                        f"the {kind} space of agent {agent!r} is {mine} in env 0, but {theirs} in env {i}; "
                        "all envs must be alike"
                    )
    return first
