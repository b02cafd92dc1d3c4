"""`Loop`: collects the batches of all collectors of this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from collector.batch.forms import in_float64, zeros
from collector.batch.step_extras import NO_FINAL_OBS, StepBatch, StepExtras, has_columns
from collector.batch.step_log import StepLog
from collector.collectors.schedule import NO_ENVS, LoopParts, Together
from collector.policy.collector_policy import CollectorPolicy
from vecenv import nest

ON_HOST = partial(nest.map, nest.as_array)
"""Convert a tree of tensors to arrays."""


class BatchRequest(NamedTuple):
    frames: int
    """Maximum number of steps, summed over envs."""
    random: bool
    quota: np.ndarray | None = None
    """int64 `(N,)`: number of episodes that each env still has to end, counted down in place. `None`: no limit."""
    on_step: StepExtras | None = None
    reuse: bool = False
    """Reuse the memory of the previous batch."""
    policy: CollectorPolicy = None  # type: ignore[assignment]  # `BatchSource` sets it
    """The collector's policy, or random actions."""
    version: int = -1
    """Version of the weights, or -1 for random actions."""
    on_host: bool = False
    """Keep observations in arrays, because the caller reads all of them."""


class Loop:
    """Loop of policy and envs. The schedule says which envs act, and the log holds their steps."""

    def __init__(self, parts: LoopParts, log: StepLog, schedule: Together) -> None:
        self._env, self._policy, self._episodes, self._clock, self._stops = parts
        self.log, self.schedule = log, schedule
        self._has_final_obs = getattr(self._env, "has_final_obs", True)
        self._gets_tensors = getattr(self._env, "returns_tensors", False)
        self._to_device: Callable[[Any], Any] | None = None
        """Moves observations to the device on which the log keeps them. `None`: the log has arrays."""
        self._place: Callable[[Any], Any] | None = ON_HOST if self._gets_tensors else None
        """Converts a tree from the vector env to the form of the log. `None`: the log keeps arrays as they are."""
        self._shows = False
        """True if a step hook reads observations, and the log keeps them on a device."""
        self._shown: Any = None
        """If `_shows`: latest observations of all envs, in arrays."""

    def collect(self, request: BatchRequest) -> Any:
        """Step envs until a batch is complete. Return arrays. Some columns may be tensors on the policy's device."""
        log, episodes, schedule, clock, policy = self.log, self._episodes, self.schedule, self._clock, request.policy
        is_seeded = episodes.is_seeded  # the policy then gets rows of all envs
        self._prepare(request, policy.place if policy.places_obs and not request.on_host else None)
        log.begin(request.frames, request.version, request.reuse, request.on_step.layout if request.on_step else ())
        episodes.begin_batch()
        seen: Any = None  # observations of all envs as the vector env returned them; `None`: read them from the log
        for ids, begins, resets, autoreset in schedule.rounds(log, request.quota, views=not policy.keeps_inputs):
            if begins is not None:
                seen = self._reset(begins)
            action, acting = None, ids if resets is None or is_seeded else ids[~resets]
            if len(acting):
                if seen is None or (len(acting) < log.env_num and not is_seeded):
                    copy = policy.keeps_inputs or self._place is not None  # a policy may write into tensors
                    seen = log.obs(None if is_seeded else acting, copy)
                outputs = policy.actions(seen, acting, episodes.infos)
                log.act(acting, outputs)
                action = outputs["action"]
            seen, received = None, schedule.exchange(ids, action, resets, autoreset)
            clock.lap("env")
            if received is not None:
                seen = self._receive(request, *received)
                clock.lap("storage")
            if self._stops() and not log.is_empty:
                break
        return log.batch(all_steps=request.quota is not None)

    def finish_steps(self, request: BatchRequest, discard: bool) -> None:
        """Wait for envs that are stepping. `discard`: also drop steps that are not in a batch yet."""
        while (received := self.schedule.receive()) is not None:
            self._receive(request, *received)
        if discard:
            self.discard_steps()

    def discard_steps(self) -> None:
        """Wait for envs that are stepping, ignore their errors, and drop steps that are not in a batch yet."""
        self.schedule.discard()
        self.log.clear()

    def _prepare(self, request: BatchRequest, to_device: Callable[[Any], Any] | None) -> None:
        """Move the latest observations to where this batch keeps them. to_device: see `_to_device`."""
        log, has_hook = self.log, request.on_step is not None and request.on_step.needs_obs
        if to_device != self._to_device:
            place: Callable[[Any], Any] | None = to_device
            if self._gets_tensors:
                place = ON_HOST if to_device is None else partial(_place_tensors, to_device)
            log.convert_obs(place or ON_HOST)
            self._to_device, self._place = to_device, place  # last, so that the next batch repeats a failed conversion
        self._shows = to_device is not None and has_hook
        self._shown = ON_HOST(log.obs(None)) if self._shows and "obs" in log.columns else None

    def _reset(self, ids: np.ndarray) -> Any:
        seeds = {"seed": self._episodes.seeds[ids].tolist()} if self._episodes.is_seeded else {}
        obs, infos = self._env.reset(None if len(ids) == self.log.env_num else ids, **seeds)
        self._clock.lap("env")
        placed = self.observe(ids, obs)
        self._begin(ids, infos)
        return placed if len(ids) == self.log.env_num else None

    def observe(self, ids: np.ndarray, obs: Any) -> Any:
        """Store the first observations of episodes. Return them as the log keeps them."""
        placed = obs if self._place is None else self._place(obs)
        self.log.observe(ids, placed)
        if self._shows:
            self._show(ids, ON_HOST(obs))
        return placed

    def _show(self, ids: np.ndarray, obs: Any) -> None:
        """Keep observations for the step hook."""
        if self._shown is None:
            self._shown = nest.map(lambda rows: zeros(rows, self.log.env_num), obs)
        nest.put(self._shown, ids, obs)

    def _begin(self, ids: np.ndarray, infos: Any) -> None:
        self._episodes.begin(ids, infos)
        self._policy.begin(ids)

    def _receive(self, request: BatchRequest, ids: np.ndarray, step: Any, resets: Any, autoreset: bool) -> Any:
        """Log the results of a round. autoreset: workers have reset the envs whose episodes ended.

        Return the observations if the policy can take them as they are.
        """
        log, episodes, (obs, reward, terminated, truncated, info) = self.log, self._episodes, step
        if self._gets_tensors:
            placed, reward = self._place((obs, reward))  # type: ignore[misc]  # not None
            terminated, truncated = nest.as_array(nest.namespace(terminated).stack([terminated, truncated]))
            obs = placed
        else:
            placed = obs if self._place is None else self._place(obs)
        on_host = ON_HOST(obs) if self._shows else obs
        reward, terminated, truncated, by_env = episodes.count(ids, reward, terminated, truncated, resets)
        log.receive(ids, placed, reward, terminated, truncated, resets)
        ended = (by_env | truncated).nonzero()[0]
        if not self._has_final_obs:
            log.add_extras({NO_FINAL_OBS: by_env}, None)
        last_obs, begun = self._ends(obs, ended, by_env, info, autoreset) if len(ended) else (None, NO_ENVS)
        if request.on_step is not None and (resets is None or not resets.all()):
            infos = _infos_of_steps(ids, info, begun)
            shown = StepBatch(ids, (), log.received("action"), reward, terminated, truncated, (), infos)
            self._call_hook(request.on_step, shown, on_host, resets, ended, last_obs)
        if self._shows:
            self._show(ids, on_host)
        if episodes.cuts:
            truncated = truncated | (episodes.take_cuts(ids) & ~by_env & (True if resets is None else ~resets))
            log.truncate(truncated)
            ended = (by_env | truncated).nonzero()[0]
            last_obs, begun = self._ends(obs, ended, by_env, info, autoreset)
        if info.__class__ is np.ndarray:
            episodes.infos[ids] = info
        else:
            episodes.keep_infos(ids, info)
        if resets is not None:
            self._begin(ids[resets], info[resets])
        if len(ended):
            log.end(ended, last_obs, episodes.end(ids, ended, info, request.quota))
            if len(begun):
                self._begin(ids[begun], None if has_columns(info) else info[begun])
        if resets is not None or len(ids) < log.env_num:
            return None
        return None if self._place is None and self.schedule.shares_memory else placed

    def _ends(
        self, obs: Any, ended: np.ndarray, by_env: np.ndarray, info: Any, autoreset: bool
    ) -> tuple[Any, np.ndarray]:
        """Return the last observations of the episodes in rows `ended`, and the rows that workers have reset.

        If the envs lose a last observation, the observation before the step takes its place.
        """
        place = self._place if self._gets_tensors else None
        at = by_env[ended].nonzero()[0]
        rows, last = ended[at], None  # for other rows, `final_obs` is the env's own entry
        if not self._has_final_obs:
            last = nest.take(self.log.received("obs"), rows)
            last = last if self._gets_tensors else ON_HOST(last)
        elif autoreset and has_columns(info) and len(rows):
            last = nest.take(info.columns["final_obs"], rows)
            last = last if place is None else place(last)
        if last is not None and len(rows) == len(ended):
            return last, rows if autoreset else NO_ENVS
        last_obs = nest.take(obs, ended)
        if last is not None:
            nest.put(last_obs, at, last)
        elif autoreset and not has_columns(info):
            begun = ["final_obs" in info[row] for row in rows.tolist()]
            at, rows = at[begun], rows[begun]
            for j, row in zip(at.tolist(), rows.tolist(), strict=True):
                last = info[row]["final_obs"]
                nest.put(last_obs, j, last if place is None else place(last))
        return last_obs, rows if autoreset else NO_ENVS

    def _call_hook(
        self, on_step: StepExtras, shown: StepBatch, obs: Any, resets: Any, ended: np.ndarray, last_obs: Any
    ) -> None:
        if on_step.needs_obs:
            before = nest.take(self._shown, shown.env_id) if self._shows else self.log.received("obs")
            next_obs = nest.map(np.copy, obs) if len(ended) else obs
            if len(ended):
                nest.put(next_obs, ended, ON_HOST(last_obs))
            action, reward = ON_HOST(shown.action), in_float64(nest.as_array(shown.reward))
            shown = shown._replace(obs=before, action=action, reward=reward, next_obs=next_obs)
        stepped = None if resets is None else ~resets
        if stepped is not None:
            shown = StepBatch._make(nest.take(tuple(shown), stepped))
        self.log.add_extras(on_step(shown, self._clock), stepped)


def synchronous_loop(parts: LoopParts) -> Loop:
    """Return a loop that waits for all envs of a round."""
    return Loop(parts, StepLog(parts.episodes, has_seeds=parts.episodes.is_seeded), Together(parts))


def _place_tensors(place: Callable[[Any], Any], obs: Any) -> Any:
    """Call `place` with tensors of torch as they are, and with tensors of other libraries as arrays."""
    return place(nest.map(lambda leaf: leaf if hasattr(leaf, "detach") else nest.as_array(leaf), obs))


def _infos_of_steps(ids: np.ndarray, info: Any, begun: Any) -> Any:
    """Return the infos of the steps, because infos of the rows `begun` are infos of resets."""
    if info.__class__ is not np.ndarray and has_columns(info):
        return info.of_steps()
    infos = info.copy()
    for row in begun:
        infos[row] = {**info[row]["final_info"], "env_id": int(ids[row])}
    return infos
