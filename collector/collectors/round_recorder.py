"""`RoundRecorder`: writes rounds (steps or resets of some envs) into a buffer, and counts steps and episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from collector.basics.timing import Clock
from collector.batch.rollout_buffer import RolloutBuffer, Where
from collector.batch.step_extras import StepBatch
from collector.collectors.batch_request import BatchRequest
from collector.episodes.env_episodes import Episodes
from collector.policy.collector_policy import CollectorPolicy
from vecenv import nest


class RoundRecorder:
    def __init__(
        self, buffer: RolloutBuffer, episodes: Episodes, policy: CollectorPolicy, request: BatchRequest, clock: Clock
    ) -> None:
        self._buffer, self._episodes, self._policy, self._clock = buffer, episodes, policy, clock
        self._quota, self._on_step = request.quota, request.on_step

    def record(
        self, ids: np.ndarray, where: Where, after: Where, step: Any, resets: np.ndarray | None, autoreset: bool
    ) -> bool:
        """Record a round. Return whether an episode ended.

        where: buffer rows of the actions. after: buffer rows of the next observations. resets: mask of the envs
            that were reset instead of stepped. autoreset: workers reset an env in the round that ends its episode.
        """
        buffer, episodes, (obs, reward, terminated, truncated, info) = self._buffer, self._episodes, step
        reward, terminated, truncated, by_env = episodes.count(ids, reward, terminated, truncated, resets)
        buffer.write_step(where, after, obs, reward, terminated, truncated)
        ended, last_obs, begun = self._ends(obs, by_env, truncated, info, autoreset)
        if self._on_step is not None:
            infos = info.copy()
            for row in begun:  # `info` is the info of the reset
                infos[row] = {**info[row]["final_info"], "env_id": int(ids[row])}
            shown = StepBatch(ids, None, buffer.read("action", where), reward, terminated, truncated, obs, infos)
            self._show(where, shown, resets, ended, last_obs)
        if episodes.cuts:
            truncated = truncated | (episodes.take_cuts(ids) & ~by_env & (True if resets is None else ~resets))
            buffer.write("truncated", where, truncated)
            ended, last_obs, begun = self._ends(obs, by_env, truncated, info, autoreset)
        episodes.infos[ids] = info
        if resets is not None:
            self.begin(ids[resets], info[resets])
        if len(ended):
            failed = episodes.end(ids, ended, info, self._quota)
            buffer.end_episodes(where.start + ended if isinstance(where, slice) else where[ended], last_obs, failed)
            if begun:
                self.begin(ids[begun], info[begun])
        return len(ended) > 0

    def _ends(self, obs: Any, by_env: np.ndarray, truncated: np.ndarray, info: Any, autoreset: bool) -> Any:
        """Return rows of ended episodes, their last observations, and rows that workers have reset."""
        ended, last_obs, begun = (by_env | truncated).nonzero()[0], None, list[int]()
        if len(ended):
            last_obs = nest.take(obs, ended)
            for j, row in enumerate(ended.tolist()) if autoreset else ():
                if by_env[row] and "final_obs" in info[row]:  # if not `by_env`, `final_obs` is the env's own entry
                    nest.put(last_obs, j, info[row]["final_obs"])
                    begun.append(row)
        return ended, last_obs, begun

    def begin(self, env_ids: np.ndarray, infos: np.ndarray) -> None:
        self._episodes.begin(env_ids, infos)
        self._policy.begin(env_ids)

    def _show(self, where: Where, shown: StepBatch, resets: Any, ended: np.ndarray, last_obs: Any) -> None:
        assert self._on_step is not None
        obs: Any = ()
        next_obs: Any = ()
        if self._on_step.needs_obs:
            obs, next_obs = self._buffer.read("obs", where), shown.next_obs
            if len(ended):
                next_obs = nest.map(np.copy, next_obs)
                nest.put(next_obs, ended, last_obs)
        shown = shown._replace(obs=obs, next_obs=next_obs)
        if resets is not None:
            assert isinstance(where, np.ndarray)
            where, shown = where[~resets], StepBatch._make(nest.take(tuple(shown), ~resets))
        self._buffer.write_extras(where, self._on_step(shown, self._clock))


def buffer_of(request: BatchRequest, env_num: int, kept: RolloutBuffer | None) -> RolloutBuffer:
    if not request.reuse or kept is None:
        return RolloutBuffer(env_num, request.frames // env_num)
    kept.rewind()
    return kept
