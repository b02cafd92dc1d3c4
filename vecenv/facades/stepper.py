"""`Stepper`: steps and resets a vector env for a facade. `EpisodeTracker`: ends and seeds of episodes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from vecenv import nest
from vecenv.arguments import check_options, next_seed
from vecenv.base import BaseVectorEnv, engine_of, overrides_nothing
from vecenv.engine.results import Results, Step, StepById
from vecenv.wrappers import VectorEnvWrapper, resets_in_step

NOT_OFFERED = {
    "wait_num": "all envs step together here; use a vecenv class directly, whose step returns the ready envs",
    "timeout": "all envs step together here; step_timeout limits a step of an env, step_wait(timeout) limits a wait",
    "stack_obs": "observations are always stacked here",
    "worker_fn": "pass venv = BaseVectorEnv(env_fns, worker_fn) to GymnasiumVectorEnv(venv) or SB3VecEnv(venv)",
    "backend": "pass venv = BaseVectorEnv(env_fns, backend=...) to GymnasiumVectorEnv(venv) or SB3VecEnv(venv)",
}
"""Options that facades refuse, with advice for the error message."""


class Stepper:
    """Adapter that steps and resets `venv` for a facade. A step's infos are {id: info}, without vecenv's `env_id`.

    As in gymnasium and SB3, actions are not cast, and envs in this process share objects with the caller.

    If `venv` returns views of its memory, results are copied, because the next step would overwrite the views. With
    `copy=False`, observations stay views.

    `engine` is `None` if `venv` is a wrapper, or a subclass that overrides `reset`, `step`, `send` or `recv`.
    """

    def __init__(self, venv: Any, copy: bool = True) -> None:
        self._venv, self._copies_obs = venv, copy
        self.use_engine()
        engine = getattr(venv, "engine", None)
        self.has_views = engine is not None and not engine.results.copies
        backend = None if engine is None else engine.backend
        hosts_here = backend is not None and backend.hosts_here
        self.has_env_objects = hosts_here and getattr(backend, "own_envs", ()) is not None
        """True if env objects of this process may change their infos later."""
        self.autoresets = resets_in_step(venv)
        """True if a step can also reset ended envs."""
        self._receives = overrides_nothing(venv, "recv")
        self._ids = range(len(venv))

    def use_engine(self) -> None:
        """Use the current engine. A lazy vector env makes a new engine at each start."""
        self.engine = engine_of(self._venv)
        engine = getattr(self._venv, "engine", None)  # a wrapper returns the engine of its venv
        if engine is not None and not engine.closed:
            engine.actions.casts = engine.backend.copies = False

    @property
    def processes(self) -> list[Any]:
        processes: list[Any] = self._venv.engine.backend.processes
        return processes

    def step(self, actions: Any, autoreset: bool) -> StepById:
        if self.engine is not None:
            return self.exchange(actions, None, autoreset)
        step = self._venv.step(actions, autoreset=True) if autoreset else self._venv.step(actions)
        return self._own(self._ids, step)

    def exchange(self, actions: Any, reset: Any, autoreset: bool) -> StepById:
        engine: Any = self.engine
        step: StepById = engine.exchange(actions, reset, autoreset, Results.rows_by_id)
        return self._copied(step) if self.has_views else step

    def receive(self, ids: Sequence[int]) -> StepById:
        if self._receives:  # fast: builds no info per env
            own: StepById = self._venv.engine.receive(by_id=True)
            return self._copied(own) if self.has_views else own
        return self._own(ids, self._venv.recv())

    def call_target(self) -> Any:
        """Return the engine, or the outermost object that overrides `call`."""
        venv = self._venv
        while type(venv).call is VectorEnvWrapper.call:
            venv = venv.venv
        return venv.engine if type(venv).call is BaseVectorEnv.call else venv

    def reset(self, ids: Sequence[int] | None, **kwargs: Any) -> tuple[Any, list[dict[str, Any]]]:
        self._venv.start()
        self.use_engine()
        obs, rows = self._venv.reset(ids, **kwargs)
        infos = list(rows)
        self._restore_infos(self._ids if ids is None else ids, infos)
        return obs, infos

    def _own(self, ids: Sequence[int], step: Step) -> StepById:
        *columns, infos = step
        self._restore_infos(ids, infos.tolist())
        for i, info in zip(ids, infos, strict=True):
            if "final_obs" in info and "final_info" in info:
                info["final_obs"] = self._returned(i, info["final_obs"])
        own: StepById = *columns, {i: info for i, info in zip(ids, infos, strict=True) if info}
        return self._copied(own) if self.has_views else own

    def _copied(self, step: StepById) -> StepById:
        obs, rew, terminated, truncated, infos = step
        obs = nest.map(np.copy, obs) if self._copies_obs else obs
        return obs, rew.copy(), terminated.copy(), truncated.copy(), infos

    def _returned(self, i: int, last_obs: Any) -> Any:
        """Return the last observation of env i as the env returned it, unless a wrapper changed it."""
        is_ours = isinstance(self._venv, BaseVectorEnv)
        row, returned = self._venv.engine.results.infos.final_obs.get(i, (None, None)) if is_ours else (None, None)
        if row is last_obs:
            return row if returned is None else returned
        return last_obs

    def _restore_infos(self, ids: Sequence[int], infos: Sequence[dict[str, Any]]) -> None:
        """Remove the `env_id` that vecenv adds, and restore the env's own entry of this name."""
        if not isinstance(self._venv, BaseVectorEnv):  # an object with the same interface adds no `env_id`
            return
        for info in infos:
            info.pop("env_id", None)
        if own_ids := self._venv.engine.results.infos.own_env_ids:
            for i, info in zip(ids, infos, strict=True):
                if i in own_ids:
                    info["env_id"] = own_ids[i]


def check_arrays(venv: Any) -> None:
    if venv.engine.backend.takes_tensors:
        raise ValueError(f"{venv!r} returns tensors, but numpy arrays are needed: make it without tensors=True")


def check_resets(venv: Any, mode: AutoresetMode) -> None:
    needed = "resets_in_next_step" if mode is AutoresetMode.NEXT_STEP else "resets_alone"
    if not getattr(venv, needed, True):
        raise ValueError(
            f"{venv!r} steps its envs together and cannot reset them as autoreset_mode {mode.value} needs: make the "
            "VectorEnv with this mode before from_gymnasium; or pass resets_by_id=True to from_gymnasium, if its reset "
            "takes options['reset_mask']"
        )


class EpisodeTracker:
    """State of each env's episode. With `seeded`, a reset without a seed uses `next_seed` of the previous seed."""

    def __init__(self, venv: Any, seeded: bool) -> None:
        self._venv, n = venv, len(venv)
        self.over = np.zeros(n, dtype=np.bool_)
        """Mask (n,) of the envs whose episode has ended, until their reset. `ended` has the ids."""
        self.ended: list[int] = []
        self._seeded = seeded
        self._seeds: list[int | None] = [None] * n
        self._stores_obs = isinstance(venv, VectorEnvWrapper)
        """True if `venv` is a wrapper, because the engine has only the unwrapped observations."""
        self._stored_obs: Any = None

    def record_step(self, over: np.ndarray, obs: Any) -> None:
        self.over, self.ended = over, over.nonzero()[0].tolist()
        if self._stores_obs:
            self._store_obs(slice(None), obs)

    def record(self, ids: Any, over: Any, obs: Any = None) -> None:
        self.over = self.over.copy()
        self.over[ids] = over
        self.ended = self.over.nonzero()[0].tolist()
        if self._stores_obs and obs is not None:
            self._store_obs(ids, obs)

    def _store_obs(self, ids: Any, obs: Any) -> None:
        if self._stored_obs is None:
            n = len(self.over)
            self._stored_obs = nest.map(lambda leaf: np.zeros((n, *leaf.shape[1:]), leaf.dtype), obs)
        nest.put(self._stored_obs, ids, obs)

    def latest_obs(self) -> Any:
        """Return the latest observations of all envs, copied unless the vector env returns views."""
        return nest.map(np.copy, self._stored_obs) if self._stores_obs else self._venv.engine.results.obs(None, {})

    def seeds_for(self, ids: Sequence[int], given: Sequence[int | None] | None = None) -> dict[str, list[int | None]]:
        if not self._seeded:
            return {} if given is None else {"seed": list(given)}
        seeds = [None] * len(ids) if given is None else list(given)
        return {"seed": [self._following(i) if s is None else s for i, s in zip(ids, seeds, strict=True)]}

    def _following(self, i: int) -> int:
        last = self._seeds[i]
        return int(np.random.SeedSequence().generate_state(1)[0]) if last is None else next_seed(last)

    def begin(self, ids: Sequence[int], seeds: dict[str, list[int | None]]) -> None:
        for i, seed in zip(ids, seeds.get("seed") or [None] * len(ids), strict=True):
            self._seeds[i] = seed

    def make_random_steps(self, most: int, space: Any) -> None:
        """Make 0 to `most` random steps in each env, and reset ended envs. The seed of env 0 determines the steps."""
        rng, space = np.random.default_rng(self._seeds[0]), copy.deepcopy(space)  # leave the caller's space unchanged
        counts = rng.integers(0, most, len(self.over), endpoint=True)
        space.seed(int(rng.integers(2**31)))
        for t in range(int(counts.max())):
            ids = np.flatnonzero(counts > t)
            again = ids[self.over[ids]].tolist()
            seeds = self.seeds_for(again) if again else {}
            self._venv.send([space.sample() for _ in ids], ids, reset=again, **seeds)
            self.begin(again, seeds)
            obs, _, terminated, truncated, _ = self._venv.recv()
            self.record(ids, terminated | truncated, obs)
        if again := self.ended:
            seeds = self.seeds_for(again)
            obs, *_ = self._venv.reset(again, **seeds)
            self.begin(again, seeds)
            self.record(again, False, obs)


class EndedStep:
    """Step in SAME_STEP mode that ended the episodes of the envs `ids`.

    `last_obs` and `last_infos` belong to these episodes. Observations and infos in `step` begin the next episodes.
    Unless `were_reset`, the step did not reset these envs: reset the envs `not_reset`, and pass the results to `begin`.
    """

    def __init__(self, step: StepById, ids: Sequence[int], were_reset: bool) -> None:
        self.ids, self.not_reset = ids, () if were_reset else ids
        obs, rew, terminated, truncated, by_id = step
        self.infos = infos = dict(by_id.items())
        self.step = obs, rew, terminated, truncated, infos
        if were_reset:
            self.last_obs = [infos[i].pop("final_obs") for i in ids]
            self.last_infos = [infos[i].pop("final_info") for i in ids]
            return
        self.last_obs = [_copied_row(obs, i) for i in ids]
        self.last_infos = [infos.get(i, {}) for i in ids]

    def begin(self, first_obs: Any, first_infos: Mapping[int, dict[str, Any]]) -> None:
        nest.put(self.step[0], self.not_reset, first_obs)
        self.infos.update({i: first_infos.get(i, {}) for i in self.not_reset})


def _copied_row(obs: Any, i: int) -> Any:
    return nest.map(lambda leaf: leaf[i].copy() if leaf.dtype != object else leaf[i], obs)


def check_facade_options(facade: type[Any], kind: type[Any], options: Mapping[str, Any], **not_offered: str) -> None:
    not_offered |= NOT_OFFERED
    for name in sorted(not_offered.keys() & options.keys()):
        raise TypeError(f"{facade.__name__} has no argument {name!r}: {not_offered[name]}")
    check_options(facade, options, facade, kind, hidden=("venv", *not_offered))
