"""`AsyncDataCollector`: a `SyncDataCollector` whose loop lets envs step while the policy runs."""

from __future__ import annotations

from typing import Any

from collector.basics.whole_numbers import at_least_one
from collector.batch.step_extras import StepHook
from collector.collectors.async_loop import AsyncLoop
from collector.collectors.batch_request import LoopParts
from collector.collectors.batch_source import Loops
from collector.collectors.env_source import check_rounds
from collector.collectors.sync_collector import SyncDataCollector
from collector.policy.policy_call import Policy
from vecenv.extending import check_send_and_recv


class AsyncDataCollector(SyncDataCollector):
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
        self._groups = at_least_one("groups", groups)
        super().__init__(create_env_fn, policy, **options)

    def _check_env(self) -> None:
        if self._config.is_seeded:
            raise ValueError("episode_seeds need a synchronous collector: use SyncDataCollector")
        check_send_and_recv(self.env, "AsyncDataCollector")
        check_rounds(self.env, mixed=True, cuts=self._config.max_frames_per_traj > 0)

    def _make_loops(self, parts: LoopParts) -> Loops:
        groups = 1 if getattr(self.env, "steps_together", False) else self._groups
        loop = AsyncLoop(parts, groups)
        return loop, loop, loop

    def _like_this(self, env: Any, policy: Any, **options: Any) -> AsyncDataCollector:
        return AsyncDataCollector(env, policy, **options)

    def _round_up(self, frames: int) -> int:
        return frames

    def _rendering(self, pause: float, on_step: StepHook | None) -> StepHook:
        raise ValueError("render needs a synchronous collector: here envs are stepping at all times")
