"""`SyncLoop`: collects batches in which all envs step in every round.

A round calls the policy for the actions of all envs, and sends them. An env whose episode ends is reset by its worker
in the same round, or in a round of its own before the others step again::

    by its worker        env 0    s0   s1#  s2   s3   s4   s5    s = step, with the row it is recorded in
                         env 1    s0   s1   s2   s3#  s4   s5    # = the episode ends

    in a round of        env 0    s0   s1        s2   s3   s4#   R = reset
    its own              env 1    s0   s1#  R    s2   s3   s4

The second way is taken if the backend cannot reset by itself, after an episode that a limit or a failure ended, and
after the last round of a batch, because it is not known yet whether an env steps again. So all envs are always at the
same row, and what the policy gets does not depend on where batches end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collector.batch.rollout import Rollout
from collector.batch.rollout_buffer import RolloutBuffer
from collector.collectors.batch_request import BatchRequest, LoopParts
from collector.collectors.round_recorder import RoundRecorder, buffer_of
from vecenv import nest
from vecenv.extending import resets_in_step


class SyncLoop:
    """Collects `Rollout`s with a policy."""

    def __init__(self, parts: LoopParts) -> None:
        self._env, self._policy, self._episodes, self._clock, self._stops = parts
        self._ids, self._resets_in_step = np.arange(parts.env.env_num), resets_in_step(parts.env)
        self._kept: RolloutBuffer | None = None

    def collect(self, request: BatchRequest) -> Rollout:
        """Collect one batch."""
        n, ids, env, policy, clock = len(self._ids), self._ids, self._env, request.policy, self._clock
        buffer, episodes, obs = buffer_of(request, n, self._kept), self._episodes, None
        recorder = RoundRecorder(buffer, episodes, self._policy, request, clock)
        self._kept = buffer if request.reuse else self._kept
        episodes.begin_batch()
        if episodes.obs is not None:
            buffer.write("obs", slice(0, n), episodes.obs)
        for time in range(buffer.steps):
            where, after = slice(time * n, time * n + n), slice(time * n + n, time * n + 2 * n)
            if np.count_nonzero(episodes.over):
                obs = self._reset(recorder, buffer, where.start, obs)
            if obs is None:
                obs = buffer.read("obs", where.start + ids)
            outputs = policy.actions(obs, ids, episodes.infos)
            buffer.write_outputs(where, outputs)
            action: Any = outputs["action"]
            autoreset = self._resets_in_step and time + 1 < buffer.steps
            step = env.step(action, autoreset=True) if autoreset else env.step(action)
            clock.lap("env")
            recorder.record(ids, where, after, step, None, autoreset)
            obs = step[0]
            clock.lap("storage")
            if self._stops():
                break
        episodes.obs = buffer.read("obs", after.start + ids)
        return buffer.finish(np.full(n, time + 1), episodes.columns, request.version)

    def _reset(self, recorder: RoundRecorder, buffer: RolloutBuffer, row: int, obs: Any) -> Any:
        """Reset the envs whose episodes are over; return the observations that the policy gets, if they are known."""
        over = self._episodes.over.copy()
        ids = over.nonzero()[0]
        first, info = self._env.reset(None if over.all() else ids)
        self._clock.lap("env")
        buffer.write("obs", row + ids, first)
        recorder.begin(ids, info)
        if over.all():
            return first
        if obs is not None:
            nest.put(obs, over, first)
        return obs
