"""`collect`, `evaluate` and `state_dict` of the local collectors.

| call | collects | episodes in progress | counted in `frames` |
|---|---|---|---|
| `for batch in collector`, `collector.next()` | `frames_per_batch` steps | go on | yes |
| `collector.rollout()` | the same | go on | no |
| `collector.collect(n_step=)` | so many steps | go on | no |
| `collector.collect(n_episode=)` | so many whole episodes | are abandoned | no |
| `collector.evaluate(n_episode)` | whole episodes, in envs of its own | are left alone | no |
| `rollout(venv, max_steps, policy)` | steps of envs without a collector, until an episode ends | begin or go on | |
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from collector.base_collector import BatchCollector, BatchRequest
from collector.batch.rollout import FlatRollout, concatenate
from collector.batch.step_extras import StepBatch, StepExtras, StepHook
from collector.collector_arguments import at_least_one
from collector.episodes.episode import CollectStats, Ended, EpisodeCutter
from collector.policy.policy_call import ExplorationType
from collector.timing import CollectorStats
from vecenv.extending import warn_caller

CHUNK = 64
"""Steps of each env between two checks which episodes have ended."""


class Collecting(BatchCollector):
    """`collect`, `evaluate` and the state of a local collector."""

    @abstractmethod
    def _like_this(self, env: Any, policy: Any, **options: Any) -> Collecting:
        """A collector of this kind."""

    def collect(
        self,
        n_step: float | None = None,
        n_episode: float | None = None,
        random: bool = False,
        render: float | None = None,
        reset_before_collect: bool = False,
        gym_reset_kwargs: dict[str, Any] | None = None,
        *,
        on_step: StepHook | None = None,
        on_episode: Callable[..., Any] | None = None,
        keep: bool = True,
    ) -> CollectStats:
        """Collect `n_step` steps or `n_episode` whole episodes (as tianshou's collector); exactly one of them. Nothing
        is counted in `frames`. See docs/guides/collecting.md.

        n_step: steps of all envs together, rounded up to a multiple of them with a warning.
        n_episode: exactly that many whole episodes, a fixed share of each env. Episodes in progress are abandoned.
        random: random actions in place of the policy's.
        render: call `render` of the envs after each round, and wait so many seconds (synchronous collectors only).
        reset_before_collect: abandon the episodes in progress; `gym_reset_kwargs` are for that reset.
        on_step: called after each round with a `StepBatch`; its dict of `(k, ...)` arrays, or None, goes into `extras`.
        on_episode: with `n_episode`, called with each `Episode` soon after it has ended.
        keep: False returns no batch.

        Raises `ValueError` for arguments that exclude each other, and for names that the batch has.
        """
        if render is not None:
            on_step = self._rendering(render, on_step)
        if n_episode is not None:
            self._refuse_with_seeds("collect(n_episode=)")
        if (n_step is None) == (n_episode is None):
            raise ValueError(f"pass exactly one of n_step and n_episode; got n_step={n_step}, n_episode={n_episode}")
        if on_episode is not None and n_episode is None:
            raise ValueError("on_episode needs n_episode: with n_step, episodes may have begun before")
        if gym_reset_kwargs and not reset_before_collect:
            raise ValueError("gym_reset_kwargs are for the reset of reset_before_collect=True")
        name, wanted = ("n_step", n_step) if n_episode is None else ("n_episode", n_episode)
        count, hook = at_least_one(name, wanted), self._extras(on_step)
        if n_episode is not None and getattr(self.env, "steps_together", False):
            raise ValueError(
                f"n_episode leaves out envs that have their share, but {self.env!r} steps its envs together: pass "
                "n_step"
            )
        begin = time.perf_counter()
        if reset_before_collect:
            self.reset(**(gym_reset_kwargs or {}))
        if n_episode is None:
            batch, ended = self._collect_steps(count, random, hook)
        else:
            batch, ended = self._collect_episodes(count, random, hook, on_episode, keep)
        steps = batch.frames if n_episode is None else int(ended.lens.sum())
        batch = batch if keep else None
        if batch is not None and self.storing_device is not None:
            batch = batch.to(self.storing_device)
        return CollectStats(len(ended.lens), steps, time.perf_counter() - begin, ended.returns, ended.lens, batch)

    def _collect_steps(self, n_step: int, random: bool, hook: StepExtras | None) -> tuple[Any, Ended]:
        frames = self._round_up(n_step)
        if frames != n_step:
            warn_caller(f"n_step={n_step} is not a multiple of the {self._env_num} envs: collecting {frames}")
        return self._gather_checked(BatchRequest(frames, random, on_step=hook))

    def _collect_episodes(
        self, n_episode: int, random: bool, hook: StepExtras | None, on_episode: Callable[..., Any] | None, keep: bool
    ) -> tuple[Any, Ended]:
        """One batch of whole episodes, if it is kept, and the episodes."""
        # It is set before the first step: no env gets more episodes by ending them early.
        quota = n_episode // self._env_num + (self._all_ids < n_episode % self._env_num)
        request = BatchRequest(CHUNK * self._env_num, random, quota, hook)
        cutter, batches, ends = EpisodeCutter(), list[FlatRollout](), list[Ended]()
        with self._weights.kept():  # it is one batch, though it is collected in pieces
            self._abandon_started()
            while quota.any() and not (ends and self._interruptor.collection_stopped()):
                batch, ended = self._gather_checked(request)
                ends.append(ended)
                if keep:
                    batches.append(batch.flatten())
                for episode in () if on_episode is None else cutter.cut(batch):
                    on_episode(episode)  # type: ignore[misc]
        for each in batches if hook is not None else ():
            hook.fill(each.extras, each.shape)  # type: ignore[union-attr]
        # The first rewards have another shape where no env had returned a vector yet.
        batches = [replace(each, reward=self._reward_shape.fit(each.reward)) for each in batches]
        ends = [each._replace(returns=self._reward_shape.fit(each.returns)) for each in ends]
        all_ends = Ended(*(np.concatenate(column) for column in zip(*ends, strict=True)))
        order = np.argsort(all_ends.env_ids, kind="stable")
        unfinished = self._abandon_started()  # there are some where the interruptor was stopped
        return concatenate(batches, [unfinished]) if keep else None, Ended(*(column[order] for column in all_ends))

    def _abandon_started(self) -> np.ndarray:
        """Abandon the episodes of which a step has been taken; returns their ids."""
        self._recover()
        abandoned = self._episodes.ids[self._episodes.taken > 0]  # before steps in flight end some of them
        self._finish_steps(discard=True)
        self._episodes.abandon(np.flatnonzero(self._episodes.taken))
        return abandoned

    def _make_evaluator(self, env: Any) -> Collecting:
        """A collector with the same policy on another vector env."""
        return self._like_this(
            env,
            self.policy if self._runner.module is None else self._runner.module,
            frames_per_batch=env.env_num,
            policy_device=self.policy_device,
            storing_device=self.storing_device,
            max_frames_per_traj=self._limit,
            policy_threads=self._threads,
            info_keys=self._info_keys,
        )

    def _rendering(self, pause: float, on_step: StepHook | None) -> StepHook:
        """A hook that calls `on_step`, renders all envs and waits `pause` seconds."""
        if isinstance(pause, bool) or not isinstance(pause, (int, float)) or not 0 <= pause < float("inf"):
            raise ValueError(f"render is the pause after each frame in seconds, 0 or more; got {pause!r}")

        def render(step: StepBatch) -> dict[str, Any] | None:
            extras = None if on_step is None else on_step(step)
            self.env.render()
            time.sleep(pause)
            return extras

        return render

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Weights of the policy and progress of the collector. The states of the envs are not in it."""
        return {
            "env_state_dict": self.env.state_dict() if hasattr(self.env, "state_dict") else {},
            "frames": self.frames,
            "iter": self._batches,
            "traj_pool": self._episodes.next_id,
            **self._weights.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Go on from a `state_dict`: its weights, its count of frames, and ids of episodes that it has not used.

        The envs begin new episodes. `strict` is for the policy's `load_state_dict`.
        """
        self._take_progress(state_dict, strict, "env_state_dict", "frames", "iter")
        if state_dict["env_state_dict"] and hasattr(self.env, "load_state_dict"):
            self.env.load_state_dict(state_dict["env_state_dict"])
        if not self._closed:
            self._recover()
            self._finish_steps(discard=True)
        self._episodes.skip_to(state_dict.get("traj_pool", 0))

    @property
    def exploration_type(self) -> ExplorationType:
        """The value taken from a distribution that the policy returns, where no `set_exploration_type` is around a call
        of the collector.
        """
        return self._exploration_type

    def __repr__(self) -> str:
        so_far = f"{self.frames} frames so far{', shut down' if self._closed else ''}"
        return f"{type(self).__name__}({self.env!r}, {self.frames_per_batch} frames a batch, {so_far})"

    def stats(self) -> CollectorStats:
        """Seconds since the first batch by what took them; `print(collector.stats())` names the bottleneck in one
        line.
        """
        return CollectorStats(frames=self._steps, broken_episodes=self._episodes.broken, **self._clock.seconds)
