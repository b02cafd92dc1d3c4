"""`AsyncDataCollector`: collect flat batches while envs step and the policy runs at the same time.

Envs are in groups; while the policy chooses for one group, the others step::

    policy     A0      B0      A1      B1      A2
    group A       |--- a0 ---|    |--- a1 ---|         A0: actions for group A; a0: its envs step
    group B               |--- b0 ---|    |--- b1 ---|

A vector env without `wait_num` and `timeout` gets fixed groups, one of them in flight at a time: what is collected does
not depend on how long anything takes. With them a group is all envs that are ready: none waits for the slowest.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from collector.base_collector import BatchRequest
from collector.batch.conversions import join
from collector.batch.rollout import FlatRollout, by_env, without_failures
from collector.batch.step_extras import StepBatch, StepHook, check_policy_names
from collector.collect import Collecting
from collector.collector_arguments import at_least_one
from collector.env_source import check_rounds
from collector.policy.action_trees import as_vector_envs_take_it
from collector.policy.policy_call import Policy
from vecenv import nest
from vecenv.wrappers import check_send_and_recv


class AsyncDataCollector(Collecting):
    """Collects flat batches of exactly `frames_per_batch` steps, while envs step as the policy runs.

    A batch is a `FlatRollout`: ordered by env, then by time. Steps belong to a batch in the order in which they came;
    those in flight when it is complete go on, and belong to the next one. Nothing is lost or repeated; `policy_version`
    shows by which weights a step was chosen. With groups that take turns batches are the same in each run; with
    `wait_num` or `timeout` they depend on how fast envs are. More in docs/guides/collecting.md and docs/guarantees.md.

    Arguments and methods are those of `SyncDataCollector`, and:

    Args:
        create_env_fn, backend: as there; a list is put into a `ShmemVectorEnv` by default.
        groups: how many groups of envs take turns, where the vector env has neither `wait_num` nor `timeout`.
        env_options: `wait_num` and `timeout` too: call the policy as soon as so many envs are ready, or after so long.

    With `return_same_td` every batch is the same object, but in new memory each time.

    Example::

        with AsyncDataCollector(env_fns, policy, frames_per_batch=2048) as collector:
            for batch in collector:
                learn(batch)                      # a FlatRollout: batch.obs, batch.next.obs, batch.env_ids, ...
    """

    _default_backend = "shmem"

    def __init__(
        self,
        create_env_fn: Any,
        policy: Policy | None = None,
        *,
        groups: int = 2,
        **options: Any,
    ) -> None:
        self._group_count = at_least_one("groups", groups)
        super().__init__(create_env_fn, policy, **options)

    def _rendering(self, pause: float, on_step: StepHook | None) -> StepHook:
        raise ValueError("render needs a synchronous collector: here envs are stepping at all times")

    def _prepare(self, faster: dict[str, Any]) -> None:
        if self._seeded:
            raise ValueError("episode_seeds need a synchronous collector: use SyncDataCollector")
        check_send_and_recv(self.env, "AsyncDataCollector")
        check_rounds(self.env, mixed=True, cuts=self._limit > 0)
        if getattr(self.env, "steps_together", False):
            self._group_count = 1
        super()._prepare(faster)
        self._queue: deque[np.ndarray] = deque()
        """Groups that are ready for actions."""
        self._flying = np.zeros(self._env_num, np.bool_)
        self._resetting = np.zeros(self._env_num, np.bool_)
        self._acted: dict[str, Any] = {}
        """The outputs that each env steps with."""
        self._acted_version = np.zeros(self._env_num, np.int64)
        self._log: list[dict[str, Any]] = []
        """Steps that belong to no batch yet, in the order in which they came."""
        self._logged = 0
        """The number of steps in the log, without those in which an env failed."""

    def _like_this(self, env: Any, policy: Any, **options: Any) -> AsyncDataCollector:
        return AsyncDataCollector(env, policy, **options)

    def _round_up(self, frames: int) -> int:
        return frames

    # The loop.

    def _gather(self, request: BatchRequest) -> FlatRollout:
        frames, quota = request.frames, request.quota
        self._request = request
        self._episodes.begin_batch()
        self._queue_idle()
        stopped = False
        while self._logged < frames and not (stopped and self._logged):
            if self._queue:
                ids = self._queue.popleft()
                ids = ids if quota is None else ids[quota[ids] > 0]
                if len(ids):
                    self._act(ids, request.random)
                    if not self.env.is_async and self._flying.any():
                        self._receive()
                    self._send(ids)
            elif self._flying.any():
                self._receive()
            else:
                break  # every env has ended its share of episodes
            stopped = self._interruptor.collection_stopped()
        return self._take(frames if quota is None else self._logged)

    def _queue_idle(self) -> None:
        """Queue the envs that neither step nor are queued."""
        idle = ~self._flying
        for ids in self._queue:
            idle[ids] = False
        ids = np.flatnonzero(idle)
        groups = 1 if self.env.is_async else min(self._group_count, len(ids))
        self._queue.extend(ids[group::groups] for group in range(groups) if len(ids))

    def _act(self, ids: np.ndarray, random: bool) -> None:
        """Choose the next actions of these envs, unless they are to be reset."""
        ids = ids[~self._episodes.over[ids]]
        if not len(ids):
            return
        obs = nest.take(self._obs, ids)
        outputs = self._runner(obs, ids, random)
        for name, rows in outputs.items():
            if name not in self._acted:
                check_policy_names(outputs)
                self._acted[name] = nest.map(self._zeros_like, rows)
            nest.put(self._acted[name], ids, rows)
        self._acted_version[ids] = -1 if random else self._weights.version
        self._clock.lap("storage")

    def _send(self, ids: np.ndarray) -> None:
        reset = self._episodes.over[ids]
        if reset.all():
            self.env.send(None, reset=ids)
        else:
            action = as_vector_envs_take_it(nest.take(self._acted["action"], ids))
            self.env.send(action, ids, reset=ids[reset] if reset.any() else None)
        self._flying[ids], self._resetting[ids] = True, reset
        self._clock.lap("env")

    def _receive(self) -> None:
        """Take what is ready: log the steps, and queue the envs."""
        results = obs, *_, info = self.env.recv()
        self._clock.lap("env")
        ids = np.array([each["env_id"] for each in info])
        stepped = ~self._resetting[ids]
        if stepped.any():
            self._log_steps(ids[stepped], [nest.take(column, stepped) for column in results])
        self._put_obs(ids, obs)
        self._runner.take_infos(ids, info)
        self._begin(ids[~stepped])
        self._flying[ids] = False
        self._queue.append(ids)
        self._clock.lap("storage")

    def _log_steps(self, ids: np.ndarray, step: list[Any]) -> None:
        next_obs, reward, terminated, truncated, info = step
        step_count = self._episodes.taken[ids]
        reward, terminated, truncated, _ = self._count_steps(ids, reward, terminated, truncated)
        chunk = {
            "obs": nest.take(self._obs, ids),
            "action": nest.take(self._acted["action"], ids),
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "traj_ids": self._episodes.ids[ids],
            "step_count": step_count,
            "policy_version": self._acted_version[ids],
            "env_ids": ids,
            "extras": {name: rows[ids] for name, rows in self._acted.items() if name != "action"},
            "next_obs": next_obs,
            "failed": np.zeros(len(ids), np.bool_),
        }
        if (on_step := self._request.on_step) is not None:
            round_ = StepBatch(ids, chunk["obs"], chunk["action"], reward, terminated, truncated, next_obs, info)
            chunk["extras"].update(on_step(round_, self._clock))
        if len(ended := (terminated | truncated).nonzero()[0]):
            failed = self._end_episodes(ids, ended, info, self._request.quota)
            chunk["failed"][ended] = False if failed is None else failed
        self._log.append(chunk)
        self._logged += int((~chunk["failed"]).sum())

    # Batches.

    def _take(self, frames: int) -> FlatRollout:
        """The first steps of the log as a batch; the others stay in the log."""
        names = [name for name in self._acted if name != "action"]
        if (on_step := self._request.on_step) is not None:
            names += on_step.layout
            for chunk in self._log:
                on_step.fill(chunk["extras"], chunk["reward"].shape[:1])
        for chunk in self._log:  # a step from before this call may have extras of another hook
            chunk["reward"] = self._reward_shape.fit(chunk["reward"])
            chunk["extras"] = {name: chunk["extras"][name] for name in names}
        log = join(self._log)
        beyond = np.flatnonzero(~log["failed"])[frames:]
        count = int(beyond[0]) if len(beyond) else len(log["failed"])
        self._logged = len(beyond)
        self._log = [nest.take(log, np.arange(count, len(log["failed"])))] if len(beyond) else []
        return by_env(*without_failures(nest.take(log, slice(count))))

    def _finish_steps(self, discard: bool) -> None:
        self._check_open()
        self._request = BatchRequest(0, False, on_step=self._extras(None))  # what comes now is shown to no hook
        try:
            while self._flying.any():
                self._receive()
        except BaseException as error:
            self._note_failure(error)
            raise
        if discard:
            self._log, self._logged, self._queue = [], 0, deque()

    def _discard_steps(self) -> None:
        while waiting := len(self.env.waiting_id):
            try:
                self.env.recv()
            except Exception:
                if len(self.env.waiting_id) == waiting:
                    raise
        self._flying[:] = False
        self._log, self._logged, self._queue = [], 0, deque()
