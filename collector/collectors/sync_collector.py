"""Collector whose envs step together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from collector.basics.interruptor import Interruptor
from collector.basics.timing import CollectorStats
from collector.batch.rollout import truncate_last
from collector.batch.step_extras import StepHook
from collector.collectors.base_collector import BaseCollector
from collector.collectors.batch_source import BatchSource
from collector.collectors.collector_config import CollectorConfig
from collector.collectors.env_source import (
    SeededReset,
    VectorEnvMaker,
    check_separate_envs,
    check_synchronous,
    is_wrapped,
    make_vector_env,
    vector_env_remaker,
    with_transforms,
)
from collector.collectors.env_statistics import EnvStatistics
from collector.collectors.evaluation import Evaluation, policy_for_evaluation
from collector.collectors.loop import BatchRequest, Loop, synchronous_loop
from collector.collectors.schedule import LoopParts
from collector.collectors.whole_episodes import check_collect, collect_episodes, render_hook
from collector.episodes.episode import CollectStats
from collector.episodes.unfinished import Ended
from collector.policy.policy_call import ExplorationType, Policy
from vecenv.arguments import as_ids, at_least_one
from vecenv.errors import warn_caller
from vecenv.wrappers import check_send_and_recv


class SyncDataCollector(BaseCollector):
    """Collector of batches with `frames_per_batch` steps. All envs of a vector env step together.

    See docs/guarantees.md ("Batches of a collector").

    Args:
        create_env_fn: a vector env, a callable that makes a vector env or env, or a list of gymnasium ids or callables.
        policy: a callable that takes observations `(k, ...)` and returns actions, see docs/guides/collecting.md
            ("The policy"). `None`: random actions.
        frames_per_batch: steps of all envs per batch, rounded up to a multiple of the number of envs.
        total_frames: the iterator ends after this many steps, rounded up to whole batches. -1 or `None`: no end.
        device: default for `policy_device` and `storing_device`.
        storing_device: batches hold tensors on this device. `None`: numpy arrays.
        policy_device: the policy gets tensors on this device. `None`: modules get tensors, other policies get arrays.
        env_device: `None` or "cpu".
        create_env_kwargs: keyword arguments for `create_env_fn`.
        max_frames_per_traj: truncate episodes after this many steps. `None` or below 1: no limit.
        init_random_frames: take random actions in the first batches, until this many steps are collected.
        reset_at_each_iter: reset all envs before each batch.
        postproc: called with each batch, after `split_trajs`. The iterator returns the result.
        split_trajs: the iterator returns `batch.split_trajectories()`.
        exploration_type: value to take from a distribution that the policy returns.
        exploration_mode: old name of `exploration_type`.
        return_same_td: reuse the object and memory of the previous batch.
        reset_when_done: only True is supported.
        interruptor: checked after every step. If it is stopped, the batch ends early.
        set_truncated: mark the last step of each env in a batch as truncated. The episode continues.
        compile_policy: run a policy on tensors through `torch.compile`. `True`, or a dict of keyword arguments.
        cudagraph_policy: run a policy on CUDA through tensordict's `CudaGraphModule`. `True`, or a dict of keywords.
        policy_threads: torch threads of a CPU policy during a batch. `None`: unchanged.
        backend: for a list or single env: "dummy" (the default without keywords of worker processes), "thread",
            "subproc", "shmem", or "auto", which predicts the fastest.
        episode_seeds: iterable of pairs `(number, seed)`, such as `EpisodeSeeds`. Each episode is played to its end.
        transforms: one or a list of `vecenv.transforms`, which run on the policy's device.
        info_keys: keys of infos. `batch.extras[key]` has the entry after a step. A policy with a parameter of this name
            gets the entry before the step. A dotted key, such as "episode.r", names an entry of a dict.
        env_options: keywords of the `backend`, such as `num_workers`, `step_timeout` and `on_error`.

    Raises `TypeError` and `ValueError` for invalid arguments. If you passed a vector env, it then stays open.

    Example::

        with SyncDataCollector(venv, policy, frames_per_batch=2048, total_frames=1_024_000) as collector:
            collector.set_seed(0)
            for batch in collector:
                learn(batch)                      # a Rollout: batch.obs, batch.action, batch.next.obs, ...

    >>> import gymnasium as gym
    >>> with SyncDataCollector([lambda: gym.make("CartPole-v1")] * 2, frames_per_batch=10) as collector:
    ...     collector.next()
    Rollout(2 envs, 5 steps, 10 frames, 0 episode ends)
    """

    _default_backend = "dummy"
    _source: Any = None
    """`BatchSource`, or `None` before the vector env is made."""
    _releases_env = False
    """True if the caller passed a gymnasium VectorEnv, which `env` wraps."""

    def __init__(
        self,
        create_env_fn: Any,
        policy: Policy | None = None,
        *,
        frames_per_batch: float | None = None,
        total_frames: float | None = -1,
        device: Any = None,
        storing_device: Any = None,
        policy_device: Any = None,
        env_device: Any = None,
        create_env_kwargs: dict[str, Any] | None = None,
        max_frames_per_traj: float | None = None,
        init_random_frames: float | None = None,
        reset_at_each_iter: bool = False,
        postproc: Callable[[Any], Any] | None = None,
        split_trajs: bool | None = None,
        exploration_type: ExplorationType = ExplorationType.RANDOM,
        exploration_mode: str | None = None,
        return_same_td: bool = False,
        reset_when_done: bool = True,
        interruptor: Interruptor | None = None,
        set_truncated: bool = False,
        compile_policy: bool | dict[str, Any] = False,
        cudagraph_policy: bool | dict[str, Any] = False,
        policy_threads: int | None = 1,
        backend: str | None = None,
        episode_seeds: Iterable[tuple[int, int]] | None = None,
        transforms: Any = None,
        info_keys: Sequence[str] | None = None,
        **env_options: Any,
    ) -> None:
        make = VectorEnvMaker(type(self), backend, self._default_backend, env_options)
        super().__init__(policy, CollectorConfig.of(type(self).__name__, locals()))
        self.reset_at_each_iter, self.set_truncated = reset_at_each_iter, set_truncated
        self.env = make_vector_env(create_env_fn, create_env_kwargs, make)
        is_own = self.env is not create_env_fn and not isinstance(create_env_fn, VectorEnv)
        self._releases_env = is_wrapped(create_env_fn)
        try:
            make.check_used()
            self._open(create_env_fn, create_env_kwargs, make, transforms)
        except BaseException as error:
            if is_own:
                self._note_exception(error)
            self._close(env_too=is_own)
            raise

    def _open(self, source: Any, kwargs: Any, make: VectorEnvMaker, transforms: Any) -> None:
        where = self.policy, self.policy_device
        self.env = with_transforms(self.env, transforms, *where)
        self._check_env()
        self._source = BatchSource(self.env, self.policy, self._config, self._make_loop)
        self._weights = self._source.weights
        n = self.env.env_num
        self._warn_of_rounding(f"the {n} envs", f"{self.frames_per_batch // n} steps of each, ")
        remake, add = vector_env_remaker(kwargs, make, transforms, *where)
        self._statistics = EnvStatistics(source, self.env)
        self._evaluation = Evaluation(source, remake, self.env, None if transforms is None else add)

    def _check_env(self) -> None:
        check_synchronous(self.env, "SyncDataCollector", cuts=self._config.max_frames_per_traj > 0)
        if self._config.is_seeded:
            check_send_and_recv(self.env, "a collector with episode_seeds")
            check_separate_envs(self.env)

    def _make_loop(self, parts: LoopParts) -> Loop:
        return synchronous_loop(parts)

    def _round_up(self, frames: int) -> int:
        return -(-frames // self.env.env_num) * self.env.env_num

    @property
    def frames_per_batch(self) -> int:
        """Steps in a full batch."""
        return self._round_up(self.requested_frames_per_batch)

    def _is_complete(self) -> bool:
        return super()._is_complete() or self._source.episodes.all_played

    def _collect_batch(self) -> Any:
        if self.reset_at_each_iter:
            self._abandon_started()
        random, reuse = self.frames < self.init_random_frames, self._config.return_same_td
        request = BatchRequest(self.frames_per_batch, random, on_step=self._source.extras(None), reuse=reuse)
        batch, _ = self._collect(request)
        if self.set_truncated:
            truncate_last(batch)
        return batch

    def _collect(self, request: BatchRequest) -> tuple[Any, Ended]:
        found: tuple[Any, Ended] = self._call(self._source.collect, request)
        self._source.warn()
        return found

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
        """Collect `n_step` steps or `n_episode` whole episodes (as tianshou's collector). `frames` does not change.

        See docs/guides/collecting.md.

        n_step: number of steps of all envs. Synchronous collectors round up to a multiple of the number of envs.
        n_episode: number of whole episodes. Each env plays a fixed part of them. Episodes in progress are
            abandoned first.
        random: take random actions.
        render: call `render` of the envs after each step, then wait this many seconds. Synchronous collectors only.
        reset_before_collect: reset all envs first, with the arguments `gym_reset_kwargs`.
        on_step: called after each step of k envs with a `StepBatch`. Returns `None`, or a dict of arrays `(k, ...)` for
            `extras`. `AsyncDataCollector` fills the rows of steps from before this call with zeros.
        on_episode: with `n_episode`, called with each `Episode` soon after its end.
        keep: False sets `CollectStats.batch` to `None`.

        Raises `ValueError` for arguments that exclude each other, and for a name in `extras` that a batch already has.
        """
        if render is not None:
            on_step = self._rendering(render, on_step)
        if n_episode is not None:
            self._config.refuse_with_seeds("collect(n_episode=)")
        check_collect(self.env, n_step, n_episode, on_episode, reset_before_collect, gym_reset_kwargs)
        name, wanted = ("n_step", n_step) if n_episode is None else ("n_episode", n_episode)
        count, hook = at_least_one(name, wanted), self._source.extras(on_step)
        begin = time.perf_counter()
        if reset_before_collect:
            self.reset(**(gym_reset_kwargs or {}))
        if n_episode is None:
            if (frames := self._round_up(count)) != count:
                warn_caller(f"n_step={count} is not a multiple of the {self.env.env_num} envs: collecting {frames}")
            batch, ended = self._collect(BatchRequest(frames, random, on_step=hook))
        else:
            call = None if on_episode is None else partial(self._source.call_hook, on_episode)
            stops, episodes = self._config.interruptor.collection_stopped, self._source.episodes
            request = BatchRequest(0, random, on_step=hook)
            with self._weights.kept():  # an update must wait for the end of all small batches
                self._abandon_started()
                batch, ended = collect_episodes(count, request, self._collect, stops, episodes, call, keep)
                self._abandon_started()
        steps = batch.frames if n_episode is None else int(ended.lens.sum())
        batch = batch if keep else None
        if batch is not None and self.storing_device is not None:
            batch = batch.to(self.storing_device)
        return CollectStats(len(ended.lens), steps, time.perf_counter() - begin, ended.returns, ended.lens, batch)

    def _rendering(self, pause: float, on_step: StepHook | None) -> StepHook:
        return render_hook(self.env, pause, on_step)

    def _abandon_started(self) -> None:
        self._source.recover()
        self._finish_steps(discard=True)
        self._source.episodes.abandon(np.flatnonzero(self._source.episodes.taken))

    def _make_evaluator(self, env: Any) -> SyncDataCollector:
        module = self._source.policy.module
        policy = policy_for_evaluation(self.policy if module is None else module)
        return self._like_this(env, policy, frames_per_batch=env.env_num, **self._config.evaluation_arguments())

    def _like_this(self, env: Any, policy: Any, **options: Any) -> SyncDataCollector:
        return SyncDataCollector(env, policy, **options)

    def _call(self, work: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the source. Shut down after an error if the collector cannot continue."""
        self._check_open()
        if getattr(self.env, "is_closed", False):
            raise RuntimeError("the vector env was closed, so the collector cannot continue; make new ones")
        self._source.recover()
        try:
            return work(*args)
        except BaseException as error:
            if not self._closed and not self._source.note_failure(error):
                self._shutdown_cause = type(error).__name__
                self._note_exception(error)
                self.shutdown()
            raise

    def _finish_steps(self, discard: bool) -> None:
        if self._source.has_steps_in_flight:
            self._call(self._source.finish_steps, discard)

    @property
    def all_played(self) -> bool:
        """Return whether all `episode_seeds` are played. If True, the iterator ends, and `rollout` and `collect` raise
        `RuntimeError`.

        False without `episode_seeds`.
        """
        return bool(self._source.episodes.all_played)

    @property
    def everything_keyed(self) -> bool:
        """Return whether all actions depended only on observations, weights, job seed, episode number and step.

        False without `episode_seeds`.
        """
        return not self.not_keyed_because

    @property
    def not_keyed_because(self) -> str:
        """Reason why `everything_keyed` is False, or ""."""
        noise = self._source.policy.noise
        return "the collector has no episode_seeds" if noise is None else str(noise.reason)

    def reset(self, index: Any = None, **kwargs: Any) -> None:
        """Reset envs before their next step, and abandon their episodes in progress.

        `index`: ids or a mask; `None` means all. With `kwargs` (`seed`, `options`), the reset is immediate. Invalid ids
        raise before any env changes. If a step hook of a SyncDataCollector resets envs, without `kwargs`, the step that
        the hook sees becomes the truncated end of these episodes.
        """
        self._config.refuse_with_seeds("reset()")
        self._check_open()
        n = self.env.env_num
        ids = np.arange(n) if index is None else as_ids(index, n)
        if not kwargs and self._source.cut(ids):
            return
        self._source.recover()
        self._finish_steps(discard=len(ids) == n)
        self._source.episodes.abandon(ids)
        if kwargs:
            obs, infos = self.env.reset(ids, **kwargs)
            self._source.begin(ids, obs, infos)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Reset all envs with seeds, and seed the random actions, so that the next batches are reproducible.

        Env 0 gets `seed`, and each further env the next seed of torchrl's chain. With `static_seed`, every env gets
        `seed`. The next batch begins with the episodes that `reset(seed=...)` starts. Return the chain's next seed. If
        the policy uses torch's random stream, also call `torch.manual_seed`.
        """
        self._config.refuse_with_seeds("set_seed()")
        self._check_open()
        self._source.recover()
        self._finish_steps(discard=False)
        seeded = SeededReset(self.env)
        following: int = seeded.set_seed(seed, static_seed)
        self._source.reseed_random_actions()
        self.reset()
        if seeded.found:
            self._source.begin(*seeded.found)
        return following

    def _env_state(self) -> dict[str, Any]:
        return self._statistics.state_dict()

    @property
    def _next_id(self) -> int:
        return int(self._source.episodes.next_id)

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Restore weights, counts and statistics from a `state_dict`. The envs begin new episodes.

        strict: raise if the names of weights or statistics differ.
        """
        if not self._closed:
            self._source.recover()
        check = self._statistics.check if strict else None
        self._load_progress(state_dict, strict, "env_state_dict", "frames", "iter", check=check)
        if not self._closed:
            self._finish_steps(discard=True)  # first, because these steps would change the loaded statistics
        self._statistics.load_state_dict(state_dict["env_state_dict"])
        self._source.episodes.skip_to(state_dict.get("traj_pool", 0))

    @property
    def exploration_type(self) -> ExplorationType:
        """Value to take from a policy's distribution, if `set_exploration_type` does not override it."""
        return self._config.exploration_type

    def __repr__(self) -> str:
        so_far = f"{self.frames} frames so far{', shut down' if self._closed else ''}"
        return f"{type(self).__name__}({self.env!r}, {self.frames_per_batch} frames a batch, {so_far})"

    def stats(self) -> CollectorStats:
        """Return the seconds per kind of work, and counts of steps and episodes. `print(collector.stats())` names the
        bottleneck.
        """
        return self._source.stats()

    def shutdown(self, close_env: bool = True) -> None:
        """End the collector, and close the vector env unless `close_env` is False. May be repeated."""
        if not self._closed:
            self._close(env_too=close_env)

    def _note_exception(self, error: BaseException) -> None:
        """Tell the vector env why it is closed, so that `RecordEpisodes` leaves the data set incomplete."""
        if not self._closed and (note := getattr(self.env, "note_exception", None)) is not None:
            note(error)

    def _close(self, env_too: bool) -> None:
        self._closed = True
        try:
            if self._evaluation is not None:
                self._evaluation.close()
        finally:
            if self._source is not None:
                self._source.policy.close()
            if env_too:
                self.env.close()
            elif self._releases_env:
                self.env.release()
