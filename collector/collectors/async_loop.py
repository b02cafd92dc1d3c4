"""`AsyncLoop`: collects the batches of an `AsyncDataCollector`.

Without `wait_num` and `timeout`, fixed groups of envs take turns: while a group steps, the policy chooses actions for
the next group::

    policy    A0  B0          A1          B1          A2
    group A       |--- a0 ---|            |--- a1 ---|            A0: actions for group A; a0: group A steps
    group B                   |--- b0 ---|            |--- b1 ---|

With `wait_num` or `timeout`, the policy acts for the envs that `recv` returns, while all other envs step.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from collector.batch.conversions import join
from collector.batch.rollout import FlatRollout, by_env
from collector.batch.step_extras import StepBatch, check_policy_names
from collector.collectors.batch_request import BatchRequest, LoopParts
from vecenv import nest


class AsyncLoop:
    def __init__(self, parts: LoopParts, groups: int) -> None:
        self._env, self._policy, self._episodes, self._clock, self._stops = parts
        self._group_count, self._env_num = groups, parts.env.env_num
        self._queue: deque[np.ndarray] = deque()
        """Env ids of each group that waits for its next step or reset."""
        self._in_flight = np.zeros(self._env_num, np.bool_)
        self._resetting = np.zeros(self._env_num, np.bool_)
        self._outputs: dict[str, Any] = {}
        """Latest outputs of the policy, with a row per env."""
        self._output_versions = np.zeros(self._env_num, np.int64)
        self._log: list[dict[str, Any]] = []
        """Steps that do not belong to a batch yet."""
        self._log_frames = 0
        """Number of steps in the log, without failed steps."""

    def collect(self, request: BatchRequest) -> FlatRollout:
        frames, quota = request.frames, request.quota
        self._episodes.begin_batch()
        self._queue_idle()
        stopped = False
        while self._log_frames < frames and not (stopped and self._log_frames):
            if self._queue:
                ids = self._queue.popleft()
                ids = ids if quota is None else ids[quota[ids] > 0]
                if len(ids):
                    self._act(ids, request)
                    if not self._env.is_async and self._in_flight.any():
                        self._receive(request)
                    self._send(ids)
            elif self._in_flight.any():
                self._receive(request)
            else:
                break  # every env has played its quota of episodes
            stopped = self._stops()
        return self._batch(request, frames if quota is None else self._log_frames)

    def _queue_idle(self) -> None:
        idle = ~self._in_flight
        for ids in self._queue:
            idle[ids] = False
        ids = np.flatnonzero(idle)
        groups = 1 if self._env.is_async else min(self._group_count, len(ids))
        self._queue.extend(ids[group::groups] for group in range(groups) if len(ids))

    def _act(self, ids: np.ndarray, request: BatchRequest) -> None:
        ids = ids[~self._episodes.over[ids]]
        if not len(ids):
            return
        obs = nest.take(self._episodes.obs, ids)
        outputs = request.policy.actions(obs, ids, self._episodes.infos)
        for name, rows in outputs.items():
            if name not in self._outputs:
                check_policy_names(outputs)
                self._outputs[name] = nest.map(self._episodes.zeros_like, rows)
            nest.put(self._outputs[name], ids, rows)
        self._output_versions[ids] = request.version
        self._clock.lap("storage")

    def _send(self, ids: np.ndarray) -> None:
        reset = self._episodes.over[ids]
        if reset.all():
            self._env.send(None, reset=ids)
        else:
            action = nest.take(self._outputs["action"], ids)
            self._env.send(action, ids, reset=ids[reset] if reset.any() else None)
        self._in_flight[ids], self._resetting[ids] = True, reset
        self._clock.lap("env")

    def _receive(self, request: BatchRequest) -> None:
        results = obs, *_, info = self._env.recv()
        self._clock.lap("env")
        ids = np.array([each["env_id"] for each in info])
        stepped = ~self._resetting[ids]
        if stepped.any():
            self._log_steps(request, ids[stepped], [nest.take(column, stepped) for column in results])
        self._episodes.put_obs(ids, obs)
        self._episodes.infos[ids] = info
        self._episodes.over[ids[~stepped]] = False
        self._policy.begin(ids[~stepped])
        self._in_flight[ids] = False
        self._queue.append(ids)
        self._clock.lap("storage")

    def _log_steps(self, request: BatchRequest, ids: np.ndarray, step: list[Any]) -> None:
        next_obs, reward, terminated, truncated, info = step
        step_count = self._episodes.taken[ids]
        reward, terminated, truncated, _ = self._episodes.count(ids, reward, terminated, truncated)
        chunk = {
            "obs": nest.take(self._episodes.obs, ids),
            "action": nest.take(self._outputs["action"], ids),
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "traj_ids": self._episodes.ids[ids],
            "step_count": step_count,
            "policy_version": self._output_versions[ids],
            "env_ids": ids,
            "extras": {name: rows[ids] for name, rows in self._outputs.items() if name != "action"},
            "next_obs": next_obs,
            "failed": np.zeros(len(ids), np.bool_),
        }
        if (on_step := request.on_step) is not None:
            round_ = StepBatch(ids, chunk["obs"], chunk["action"], reward, terminated, truncated, next_obs, info)
            chunk["extras"].update(on_step(round_, self._clock))
        if len(ended := (terminated | truncated).nonzero()[0]):
            failed = self._episodes.end(ids, ended, info, request.quota)
            chunk["failed"][ended] = False if failed is None else failed
        self._log.append(chunk)
        self._log_frames += int((~chunk["failed"]).sum())

    def _batch(self, request: BatchRequest, frames: int) -> FlatRollout:
        """Return the first `frames` steps. Failed steps do not count. Later steps stay in the log."""
        names = [name for name in self._outputs if name != "action"]
        if (on_step := request.on_step) is not None:
            names += on_step.layout
            for chunk in self._log:
                on_step.fill(chunk["extras"], chunk["reward"].shape[:1])
        for chunk in self._log:  # drop extras of an earlier batch's step hook
            chunk["reward"] = self._episodes.reward_shape.fit(chunk["reward"])
            chunk["extras"] = {name: chunk["extras"][name] for name in names}
        log = join(self._log)
        beyond = np.flatnonzero(~log["failed"])[frames:]
        count = int(beyond[0]) if len(beyond) else len(log["failed"])
        self._log_frames = len(beyond)
        self._log = [nest.take(log, np.arange(count, len(log["failed"])))] if len(beyond) else []
        return by_env(nest.take(log, slice(count)))

    def finish_steps(self, request: BatchRequest, discard: bool) -> None:
        while self._in_flight.any():
            self._receive(request)
        if discard:
            self._log, self._log_frames, self._queue = [], 0, deque()

    def discard_steps(self) -> None:
        while waiting := len(self._env.waiting_id):
            try:
                self._env.recv()
            except Exception:
                if len(self._env.waiting_id) == waiting:
                    raise
        self._in_flight[:] = False
        self._log, self._log_frames, self._queue = [], 0, deque()
