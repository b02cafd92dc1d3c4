"""`SyncLoop`: collects batches in which all envs step together.

After an episode, the env is reset by its worker in the same round, or in a separate round::

    by its worker        env 0    s0   s1#  s2   s3   s4   s5    s = step, with its row in the batch
                         env 1    s0   s1   s2   s3#  s4   s5    # = the episode ends

    in a separate        env 0    s0   s1        s2   s3   s4#   R = reset
    round                env 1    s0   s1#  R    s2   s3   s4

A separate round is needed if:

- the backend cannot reset an env in a step,
- `max_frames_per_traj` ended the episode, and the worker does not know,
- the step is the last of its batch, because the program may never collect another batch.

A separate round adds no step, so all envs stay at one time index. The policy gets the same inputs after either reset.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collector.batch.rollout import Rollout
from collector.batch.rollout_buffer import RolloutBuffer
from collector.collectors.batch_request import BatchRequest, LoopParts
from collector.collectors.round_recorder import RoundRecorder, buffer_of
from vecenv import nest
from vecenv.wrappers import resets_in_step, step_with_views


class SyncLoop:
    def __init__(self, parts: LoopParts) -> None:
        self._env, self._policy, self._episodes, self._clock, self._stops = parts
        self._ids, self._resets_in_step = np.arange(parts.env.env_num), resets_in_step(parts.env)
        self._kept: RolloutBuffer | None = None

    def collect(self, request: BatchRequest) -> Rollout:
        n, ids, env, policy, clock = len(self._ids), self._ids, self._env, request.policy, self._clock
        buffer, episodes, obs = buffer_of(request, n, self._kept), self._episodes, None
        recorder = RoundRecorder(buffer, episodes, self._policy, request, clock)
        self._kept = buffer if request.reuse else self._kept
        fast_step = None if policy.keeps_inputs else step_with_views(env)
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
            step_envs = fast_step or env.step
            step = step_envs(action, autoreset=True) if autoreset else step_envs(action)
            clock.lap("env")
            recorder.record(ids, where, after, step, None, autoreset)
            obs = step[0]
            clock.lap("storage")
            if self._stops():
                break
        episodes.obs = buffer.read("obs", after.start + ids)
        return buffer.finish(np.full(n, time + 1), episodes.columns, request.version)

    def _reset(self, recorder: RoundRecorder, buffer: RolloutBuffer, row: int, obs: Any) -> Any:
        """Reset envs after their episodes. Return the policy's observations, or `None` if they are in the buffer."""
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
