"""`EpisodeLoop`: collects batches in which envs may pause.

- Without `episode_seeds`, an env pauses after its quota of episodes. The policy then gets no row of this env.
- With `episode_seeds`, an env pauses if its part of the batch is full or if no episode is left. The policy still gets
  the last observation of this env, so that actions of other envs do not depend on the pause.

After its episode, an env is reset in the first possible way:

1. By its worker in the same round, as in sync_loop.py, if each env of the round has a next episode.
2. With `episode_seeds`, in the next round, while other envs step. If the backend supports way 1, the first round of a
   batch uses way 3 instead.
3. In a separate round, as in sync_loop.py.

The second way::

    round    1    2    3    4    5    6    s = step, with its row in the batch
    env 0    s0   s1#  R    s2   s3   s4   # = the episode ends
    env 1    s0   s1   s2   s3#  R    s4#  R = reset
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collector.batch.rollout import Rollout
from collector.batch.rollout_buffer import RolloutBuffer, Where
from collector.collectors.batch_request import BatchRequest, LoopParts
from collector.collectors.round_recorder import RoundRecorder, buffer_of
from vecenv import nest
from vecenv.wrappers import resets_in_step, step_with_views


class EpisodeLoop:
    def __init__(self, parts: LoopParts) -> None:
        self._env, self._policy, self._episodes, self._clock, self._stops = parts
        self._all_ids, self._resets_in_step = np.arange(parts.env.env_num), resets_in_step(parts.env)
        self._kept: RolloutBuffer | None = None

    def collect(self, request: BatchRequest) -> Rollout:
        n, episodes, clock, seeded = len(self._all_ids), self._episodes, self._clock, self._episodes.is_seeded
        buffer, rows = buffer_of(request, n, self._kept), np.zeros(n, np.int64)
        recorder = RoundRecorder(buffer, episodes, self._policy, request, clock)
        self._kept = buffer if request.reuse else self._kept
        fast_step = None if request.policy.keeps_inputs else step_with_views(self._env)
        episodes.begin_batch()
        if episodes.obs is not None:
            buffer.write("obs", slice(0, n), episodes.obs)
        ids, time, is_even, some_ended, stopped = self._next_ids(rows, buffer, request), 0, True, True, False
        obs: Any = None  # policy's input; None: read from the buffer
        while len(ids) and not stopped:
            resets = None
            if some_ended and np.count_nonzero(over := episodes.over[ids]):
                if seeded and not over.all() and (time or not self._resets_in_step):
                    resets, is_even = over, False
                else:
                    obs = self._reset(recorder, buffer, rows, ids, over, obs)
            if obs is None:
                shown = self._all_ids if seeded else ids
                obs = buffer.read("obs", rows[shown] * n + shown)
            outputs = request.policy.actions(obs, ids, episodes.infos)
            where: Where = slice(time * n, time * n + n) if is_even and len(ids) == n else rows[ids] * n + ids
            buffer.write_outputs(where, outputs)  # the next round overwrites rows of envs that this round resets
            time += 1
            autoreset = self._resets_in_step and time < buffer.steps and self._all_have_next(ids, request.quota)
            step = self._exchange(fast_step or self._env.step, ids, outputs["action"], resets, autoreset)
            clock.lap("env")
            rows[ids] += 1 if resets is None else ~resets
            after = slice(time * n, time * n + n) if isinstance(where, slice) else rows[ids] * n + ids
            some_ended = recorder.record(ids, where, after, step, resets, autoreset)
            obs = None if seeded and len(ids) < n else step[0]
            if time >= buffer.steps or some_ended:
                before, ids = len(ids), self._next_ids(rows, buffer, request)
                obs = obs if seeded or len(ids) == before else None
            clock.lap("storage")
            stopped = self._stops()
        episodes.obs = buffer.read("obs", rows * n + self._all_ids)
        return buffer.finish(rows, episodes.columns, request.version)

    def _next_ids(self, rows: np.ndarray, buffer: RolloutBuffer, request: BatchRequest) -> np.ndarray:
        """Return the envs of the next round: each has a free row, an episode, and quota left (if limited)."""
        going = (rows < buffer.steps) & (self._episodes.ids >= 0)
        if request.quota is not None:
            going &= request.quota > 0
        return going.nonzero()[0]

    def _all_have_next(self, ids: np.ndarray, quota: np.ndarray | None) -> bool:
        if self._episodes.is_seeded:
            return bool(self._episodes.next_seeds[ids].min() >= 0)
        return quota is None or bool(quota[ids].min() > 1)

    def _reset(
        self, recorder: RoundRecorder, buffer: RolloutBuffer, rows: np.ndarray, ids: np.ndarray, over: Any, obs: Any
    ) -> Any:
        """Reset envs `ids[over]`. Return the policy's observations, or `None` if they are in the buffer."""
        n, begun, seeded = len(self._all_ids), ids[over], self._episodes.is_seeded
        first, info = self._env.reset(None if len(begun) == n else begun, **self._seeds_of(begun))
        self._clock.lap("env")
        if not buffer.has("obs"):  # the policy also gets rows of envs without an episode
            buffer.write("obs", slice(0, n), nest.take(first, np.zeros(n, np.int64)))
        buffer.write("obs", rows[begun] * n + begun, first)
        recorder.begin(begun, info)
        if len(begun) == (n if seeded else len(ids)):
            return first
        if seeded or obs is None:
            return None
        nest.put(obs, over, first)
        return obs

    def _seeds_of(self, env_ids: np.ndarray) -> dict[str, Any]:
        return {"seed": self._episodes.seeds[env_ids].tolist()} if self._episodes.is_seeded else {}

    def _exchange(
        self, step: Callable[..., Any], ids: np.ndarray, action: Any, resets: np.ndarray | None, autoreset: bool
    ) -> tuple[Any, ...]:
        asked = None if len(ids) == len(self._all_ids) else ids
        if resets is not None:
            mask = resets if asked is None else ids[resets]
            self._env.send(action, asked, reset=mask, **self._seeds_of(ids[resets]))
            return self._env.recv()
        if autoreset:
            seeds = self._episodes.next_seeds[ids] if self._episodes.is_seeded else True
            return step(action, asked, autoreset=seeds)
        return step(action, asked)
