"""`BatchSource`: owner of a collector's policy, episodes, and loop."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from threading import get_ident
from typing import Any, TypeVar

import numpy as np

from collector.basics.timing import Clock, CollectorStats
from collector.batch.rollout import check_rewards
from collector.batch.step_extras import StepExtras, StepHook, dotted_keys, without_last
from collector.collectors.collector_config import CollectorConfig
from collector.collectors.loop import BatchRequest, Loop
from collector.collectors.schedule import LoopParts
from collector.episodes.env_episodes import Episodes
from collector.episodes.unfinished import Ended, RunningReturns
from collector.policy.collector_policy import RandomActions
from collector.policy.make_policy import make_policy, random_actions
from collector.policy.policy_call import Policy, begin_exploring
from collector.policy.weights import PolicyWeights
from vecenv.engine.mark import BROKEN, Layer, is_layer_call, mark_of
from vecenv.errors import add_note, warn_caller
from vecenv.wrappers import latest_round, recover, resets_in_step

Result = TypeVar("Result")


class BatchSource(Layer):
    """Source of single batches. After a failure, the next batch begins new episodes in all envs."""

    def __init__(
        self, env: Any, policy: Policy | None, config: CollectorConfig, make_loop: Callable[[LoopParts], Loop]
    ) -> None:
        self.env, self._config, self.call_mark = env, config, mark_of(env)
        self._failed = self._in_hook = False
        self.clock, self._returns, self.steps, self._ended = Clock(), RunningReturns(), 0, 0
        self._recent_returns = deque[float](maxlen=100)
        self.episodes = Episodes(env.env_num, config.episode_seeds, resets_in_step(env), config.max_frames_per_traj)
        self.policy = make_policy(
            policy,
            env,
            config.exploration_type,
            config.policy_device,
            storing_device=config.storing_device,
            clock=self.clock,
            threads=config.policy_threads,
            job_seed=config.job_seed,
            compile=config.compile_policy,
            cudagraph=config.cudagraph_policy,
            info_keys=config.info_keys,
        )
        self._random = self.policy if isinstance(self.policy, RandomActions) else None
        if (noise := self.policy.noise) is not None:
            self.episodes.share(noise.numbers[: env.env_num], noise.steps[: env.env_num])
        self.weights = PolicyWeights(policy, self.policy.module)
        if config.init_random_frames:
            self._random_actions()  # raises early if spaces cannot be sampled
        parts = LoopParts(env, self.policy, self.episodes, self.clock, config.interruptor.collection_stopped)
        self._loop = make_loop(parts)
        self._info_layout: dict[str, Any] = {}
        self._warned_of_failures = self._checked_keys = False
        self._last_round = latest_round(self.env)

    def extras(self, on_step: StepHook | None) -> StepExtras | None:
        if on_step is None and not self._config.info_keys:
            return None
        return StepExtras(on_step, self._config.info_keys, self._info_layout, lambda: self.policy.layout)

    def collect(self, request: BatchRequest) -> tuple[Any, Ended]:
        """Collect in a copied `contextvars` context, so that an interrupt cannot leave a changed exploration type."""
        return self._run(copy_context().run, self._collect, request)

    @is_layer_call
    def _run(self, work: Callable[..., Result], *args: Any) -> Result:
        self._failed = True
        result = work(*args)
        self._failed = False
        return result

    def _collect(self, request: BatchRequest) -> tuple[Any, Ended]:
        self.clock.begin_batch()
        acting = self._random_actions() if request.random else self.policy
        wanted = begin_exploring(self._config.exploration_type)
        with self.weights.kept(), self.policy.batch(wanted):
            if self.episodes.all_played:
                raise RuntimeError("all of episode_seeds have been played: make a new collector for other episodes")
            version = self.weights.version if acting is self.policy else -1
            batch = self._loop.collect(request._replace(policy=acting, version=version))
        self._last_round = latest_round(self.env)
        check_rewards(batch)
        if request.on_step is not None:
            request.on_step.fill(batch.extras, batch.shape)
        ended = self._returns.add(batch)
        held = batch.__dict__  # the fields of a batch are frozen for its users
        held["episode_returns"] = ended.returns
        del held["_runs"], held["_rewards"]  # the program may change the columns that they were computed from
        self.steps += batch.frames
        self._ended += len(ended.lens)
        self._recent_returns.extend(ended.returns.sum(tuple(range(1, ended.returns.ndim))).tolist())
        self.clock.lap("storage")
        return batch, ended

    def _random_actions(self) -> RandomActions:
        if self._random is None:
            self._random = random_actions(None, self.env, self.clock, self.policy.noise, self.policy)
        return self._random

    def reseed_random_actions(self) -> None:
        if self._random is not None:
            self._random.policy.draw_like(self.env.action_space)

    def stats(self) -> CollectorStats:
        recent = self._recent_returns
        return CollectorStats(
            frames=self.steps,
            broken_episodes=self.episodes.broken,
            episodes=self._ended,
            mean_return=sum(recent) / len(recent) if recent else math.nan,
            **self.clock.seconds,
        )

    def warn(self) -> None:
        """Warn once of failed envs, and once of `info_keys` that no info has had."""
        if self.episodes.broken and not self._warned_of_failures:
            self._warned_of_failures = True
            self._warn_of_failures(self.episodes.broken)
        if self._ended and not self._checked_keys:  # not earlier, because some envs return an entry only at the end
            self._checked_keys = True
            self._warn_of_unknown_keys()

    def _warn_of_failures(self, count: int) -> None:
        which = "1 episode" if count == 1 else f"{count} episodes"
        warn_caller(
            f"{which} of this batch broke off because envs failed ({self.episodes.first_failure}): `batch.broken` "
            "marks the steps of these episodes, and `mask` is False in the rows of the failures. "
            "This warning is given once; collector.stats() counts all broken episodes"
        )

    def _warn_of_unknown_keys(self) -> None:
        if unknown := [key for key in self._config.info_keys if key not in self._info_layout]:
            latest = (without_last(info) for info in self.episodes.infos if info is not None)
            warn_caller(
                f"info_keys: no info has had {', '.join(map(repr, unknown))}, although an episode has ended; the "
                f"latest infos have {sorted({key for info in latest for key in dotted_keys(info)})}. Until an info "
                "has the key, `batch.extras` lacks it, and a policy with this parameter gets None"
            )

    def note_failure(self, error: BaseException) -> bool:
        """Add a note to the error that ended a batch. Return whether the collector can continue."""
        if self._config.is_seeded:
            why = "the steps of this batch are lost, and with episode_seeds every episode is played to its end"
        elif getattr(self.env, "is_closed", False):
            why = "its vector env is closed"
        else:
            add_note(
                error, "the steps of this batch are lost; the collector can continue, with new episodes in all envs"
            )
            return True
        add_note(error, f"the collector was shut down because of this exception: {why}")
        return False

    def call_hook(self, hook: Callable[..., Any], episode: Any) -> None:
        """Call `on_episode`. A batch or reset by the hook would change the episodes in progress, and raises."""
        self._in_hook = True
        try:
            self._run(hook, episode)
        finally:
            self._in_hook = False

    def cut(self, ids: np.ndarray) -> bool:
        """Truncate episodes after this step, if the caller is a policy or step hook. Return whether it is."""
        if self.call_mark.layer != get_ident() or self._in_hook or self.has_steps_in_flight:
            return False
        self.episodes.cuts.update(ids.tolist())
        return True

    def recover(self) -> None:
        """Discard a failed batch. Abandon all episodes if another caller has stepped or reset the vector env since.

        Raises `RuntimeError` if the caller is the policy or a hook of a batch.
        """
        if self.call_mark.layer == get_ident():
            raise RuntimeError(
                "this collector is collecting a batch: a policy or hook cannot ask for another batch, and cannot seed "
                "envs; in a policy or step hook, SyncDataCollector.reset(ids) ends episodes after this step"
            )
        if self.call_mark.layer:
            self.call_mark.refuse_thread(self.call_mark.layer)
        if self._failed or self.call_mark.owner == BROKEN or latest_round(self.env) != self._last_round:
            self._abandon()

    def _abandon(self) -> None:
        recover(self.env)
        if self.call_mark.owner == BROKEN:  # of a vector env without an engine
            self.call_mark.owner = 0
        self._loop.discard_steps()
        self.episodes.abandon()
        self.policy.begin(np.arange(self.env.env_num))
        self._last_round, self._failed = latest_round(self.env), False

    @property
    def has_steps_in_flight(self) -> bool:
        return self._loop.schedule.overlaps

    def finish_steps(self, discard: bool) -> None:
        request = BatchRequest(0, False, on_step=self.extras(None))
        self._run(self._loop.finish_steps, request, discard)

    def begin(self, ids: np.ndarray, obs: Any, infos: np.ndarray) -> None:
        self._loop.observe(ids, obs)
        self.episodes.begin(ids, infos)
        self.policy.begin(ids)
        self._last_round = latest_round(self.env)
