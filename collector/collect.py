"""The ways to collect: which of them counts, goes on, or has envs of its own.

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
from functools import partial
from typing import Any

import numpy as np

from collector.batch.rollout import FlatRollout, Rollout, concatenate, truncate_last
from collector.batch.step_extras import CheckedHook, InfoColumns, RowLayout, StepBatch, StepHook
from collector.collector_arguments import at_least_one
from collector.env_source import check_synchronous, make_vector_env
from collector.episodes.episode import CollectStats, Ended, EpisodeCutter
from collector.interruptor import Interruptor
from collector.loops.batch_iterator import BatchIterator
from collector.loops.collection_loop import BatchRequest, CollectionLoop
from collector.loops.sync_loop import SyncLoop
from collector.policy.action_trees import common_layout
from collector.policy.exploration import ExplorationType
from collector.policy.policy_call import Policy
from collector.policy.random_policy import draw, masks_of
from vecenv import nest
from vecenv.errors import warn_caller
from vecenv.venvs import DummyVectorEnv

CHUNK = 64
"""Steps of each env between two checks which episodes have ended."""


class Collecting(CollectionLoop, BatchIterator):
    """`collect` of a local collector, which sets the attributes from its arguments."""

    storing_device: Any
    _info_keys: tuple[str, ...]
    _info_layout: dict[str, RowLayout]

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
        count, hook = at_least_one(name, wanted), self._hook(on_step)
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

    def _collect_steps(self, n_step: int, random: bool, hook: CheckedHook | None) -> tuple[Any, Ended]:
        frames = self._round_up(n_step)
        if frames != n_step:
            warn_caller(f"n_step={n_step} is not a multiple of the {self._env_num} envs: collecting {frames}")
        batch, ended = self._gather_checked(BatchRequest(frames, random, on_step=hook))
        if self._info_keys and hook is not None:
            hook.fill(batch.extras, batch.shape)
        return batch, ended

    def _collect_episodes(
        self, n_episode: int, random: bool, hook: CheckedHook | None, on_episode: Callable[..., Any] | None, keep: bool
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

    def _make_evaluator(self, env: Any) -> Collecting:
        """A collector with the same policy on another vector env."""
        return self._like_this(
            env,
            self.policy if self._runner.module is None else self._runner.module,
            frames_per_batch=env.env_num,
            policy_device=self.policy_device,
            storing_device=self.storing_device,
            max_frames_per_traj=self._limit,
            policy_threads=self._options["threads"],
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

    def _hook(self, on_step: StepHook | None) -> CheckedHook | None:
        """The function that the loop calls after each round: the hook, and what stores entries of the infos."""
        checked = None if on_step is None else CheckedHook(on_step, lambda: self._runner.layout)
        if not self._info_keys:
            return checked
        return InfoColumns(self._info_keys, self._info_layout, lambda: self._runner.layout, checked)


def rollout(
    venv_or_env: Any,
    max_steps: int,
    policy: Policy | None = None,
    break_when_any_done: bool = True,
    break_when_all_done: bool = False,
    auto_reset: bool = True,
    set_truncated: bool = False,
    callback: Callable[[Any, StepBatch], Any] | None = None,
    *,
    obs: Any = None,
) -> Rollout:
    """At most `max_steps` steps of each env, as a `Rollout` `(N, T)` (as torchrl's `env.rollout`). Nothing is closed.

    venv_or_env: a vector env, or one env (N = 1). One with `lazy=True` is started.
    policy: as those of the collectors; None draws from the envs' action spaces, which `venv.seed` seeds: legal actions,
        where observations have an `action_mask`.
    break_when_any_done: stop as soon as an episode ends. False: reset its env, and go on for `max_steps` steps.
    break_when_all_done: stop once each env has ended an episode; those that have are not stepped any more, and
        `mask` is False for them. Takes the place of `break_when_any_done`.
    auto_reset: reset all envs first. False goes on from the observations `obs`, of all N envs: what the last `reset` or
        `step` returned, or `batch.next.obs[:, -1]` of the last rollout (envs whose episode is over are to be reset).
    set_truncated: mark the last step of each env as truncated.
    callback: called after each round with `venv_or_env` and a `StepBatch`; what it returns is ignored.

    Raises RuntimeError for `auto_reset=False` without `obs`, ValueError for `obs` of another number of envs, TypeError
    for what cannot be stepped, and what the envs and the policy raise.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> with DummyVectorEnv([lambda: gym.make("Pendulum-v1")] * 3) as venv:
    ...     rollout(venv, 7)
    Rollout(3 envs, 7 steps, 21 frames, 0 episode ends)
    """
    max_steps = at_least_one("max_steps", max_steps)
    if isinstance(venv_or_env, type) or not callable(getattr(venv_or_env, "step", None)):
        raise TypeError(f"rollout() takes a vector env or an env that is already made, got {venv_or_env!r}")
    if not auto_reset and obs is None:
        raise RuntimeError(
            "rollout(auto_reset=False) needs the observations from which it is to go on: "
            "obs=venv.reset()[0], or obs=batch.next.obs[:, -1] of the last rollout"
        )
    if auto_reset and obs is not None:
        raise ValueError("rollout() got obs, which only auto_reset=False goes on from")
    venv = venv_or_env if hasattr(venv_or_env, "env_num") else DummyVectorEnv([lambda: _Borrowed(venv_or_env)])
    quota = np.ones(venv.env_num, np.int64) if break_when_any_done or break_when_all_done else None
    stop = Interruptor() if quota is None or break_when_all_done else _FirstEnd(quota)
    steps = _Steps(venv, _draws(venv) if policy is None else policy, stop)
    batch = steps.take(max_steps, quota, None if callback is None else partial(callback, venv_or_env), obs)
    if set_truncated:
        truncate_last(batch)
    return batch


class _Steps(SyncLoop):
    """Takes one batch, and leaves the envs open, also after an error."""

    def __init__(self, venv: Any, policy: Policy, interruptor: Interruptor) -> None:
        self.env = make_vector_env(venv, None, DummyVectorEnv)
        check_synchronous(self.env, "rollout()", cuts=False)
        self.policy_device, self.init_random_frames, self._limit, self._seeds = None, 0, 0, None
        self._exploration_type, self._interruptor = ExplorationType.RANDOM, interruptor
        self._options = {"threads": 1}
        self._prepare(policy)

    def take(self, steps: int, quota: np.ndarray | None, hook: Callable[[StepBatch], Any] | None, obs: Any) -> Rollout:
        """A batch in which at most `quota` episodes of each env end; it begins with a reset, or goes on from `obs`."""
        if obs is not None:
            counts = {len(rows) for rows in nest.leaves(obs)}
            if counts != {self._env_num}:
                raise ValueError(f"obs has {sorted(counts)} rows, expected one for each of {self._env_num} envs")
            self._put_obs(self._all_ids, obs)
            self._episodes.over[:] = False
        checked = None if hook is None else CheckedHook(partial(_ignore_result, hook), lambda: self._runner.layout)
        batch: Rollout
        try:
            batch, _ = self._gather_checked(BatchRequest(steps * self._env_num, False, quota, checked))
        finally:
            self.shutdown()
        return batch

    def shutdown(self, close_env: bool = False) -> None:
        super().shutdown(close_env=False)


def _ignore_result(hook: Callable[[StepBatch], Any], step: StepBatch) -> None:
    hook(step)


class _FirstEnd(Interruptor):
    """Ends a collection with the first episode that ends: the loop counts down what is left of `quota`."""

    def __init__(self, quota: np.ndarray) -> None:
        super().__init__()
        self._quota = quota

    def collection_stopped(self) -> bool:
        return not self._quota.all()


class _Borrowed:
    """An env that its vector env does not close."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def close(self) -> None:
        """It belongs to the caller."""


def _draws(venv: Any) -> Policy:
    """A policy that draws from the envs' own action spaces, so that the next rollout goes on where this one ended."""

    def act(obs: Any, env_id: Any = None) -> Any:
        ids = range(venv.env_num) if env_id is None else env_id
        every = venv.action_space
        spaces = [every[i] for i in ids]
        masks = masks_of(obs, spaces[0], len(spaces)) or [None] * len(spaces)
        rows = [draw(space, mask) for space, mask in zip(spaces, masks, strict=True)]
        return {"action": nest.stack(rows)} if common_layout(spaces) else rows

    return act
