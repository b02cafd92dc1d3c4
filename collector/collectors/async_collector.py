"""Collector that does not wait for all envs."""

from __future__ import annotations

from typing import Any

from collector.batch.arrival_log import ArrivalLog
from collector.batch.step_extras import StepHook
from collector.collectors.env_source import check_rounds
from collector.collectors.loop import Loop
from collector.collectors.schedule import InTurns, LoopParts
from collector.collectors.sync_collector import SyncDataCollector
from collector.policy.policy_call import Policy
from vecenv.arguments import at_least_one
from vecenv.wrappers import check_send_and_recv


class AsyncDataCollector(SyncDataCollector):
    """Collector of batches with exactly `frames_per_batch` steps. Some envs step while the policy runs for
    other envs.

    A batch is a `FlatRollout`. Steps that are still running when a batch ends join the next batch, so no step is lost
    or repeated.

    Without `wait_num` and `timeout`, fixed groups of envs take turns, and equal seeds give equal batches. With one of
    these options, batches depend on the speed of the envs. See docs/guides/collecting.md.

    Takes the arguments of `SyncDataCollector`, with these differences:

    Args:
        create_env_fn, backend: the default backend is "shmem".
        episode_seeds: not supported.
        groups: number of groups that take turns, without `wait_num` and `timeout`.
        env_options: may have `wait_num` and `timeout`. The policy is called when `wait_num` envs are ready, or with
            fewer envs after `timeout` seconds.

    With `return_same_td`, every batch is the same object with new arrays.

    Example::

        with AsyncDataCollector(env_fns, policy, frames_per_batch=2048) as collector:
            for batch in collector:
                learn(batch)                      # a FlatRollout: batch.obs, batch.next.obs, batch.env_ids, ...
    """

    _default_backend = "shmem"

    def __init__(self, create_env_fn: Any, policy: Policy | None = None, *, groups: int = 2, **options: Any) -> None:
        self._groups = at_least_one("groups", groups)
        super().__init__(create_env_fn, policy, **options)

    def _check_env(self) -> None:
        if self._config.is_seeded:
            raise ValueError("episode_seeds need a synchronous collector: use SyncDataCollector")
        check_send_and_recv(self.env, "AsyncDataCollector")
        check_rounds(self.env, mixed=True, cuts=self._config.max_frames_per_traj > 0)

    def _make_loop(self, parts: LoopParts) -> Loop:
        return Loop(parts, ArrivalLog(parts.episodes), InTurns(parts, self._groups))

    def _like_this(self, env: Any, policy: Any, **options: Any) -> AsyncDataCollector:
        return AsyncDataCollector(env, policy, **options)

    def _round_up(self, frames: int) -> int:
        return frames

    def _rendering(self, pause: float, on_step: StepHook | None) -> StepHook:
        raise ValueError("render needs a synchronous collector: here envs are stepping at all times")
