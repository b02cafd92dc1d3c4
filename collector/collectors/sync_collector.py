"""`SyncDataCollector`: collect batches while all envs step together, by a `SyncLoop` or an `EpisodeLoop`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from collector.basics.interruptor import Interruptor
from collector.basics.timing import CollectorStats
from collector.basics.whole_numbers import at_least_one
from collector.batch.rollout import truncate_last
from collector.batch.step_extras import StepHook
from collector.collectors.base_collector import BaseCollector
from collector.collectors.batch_request import BatchRequest, LoopParts
from collector.collectors.batch_source import BatchSource, Loops
from collector.collectors.collector_config import CollectorConfig
from collector.collectors.env_source import VectorEnvMaker, again, check_synchronous, make_vector_env, with_transforms
from collector.collectors.episode_loop import EpisodeLoop
from collector.collectors.evaluation import Evaluation
from collector.collectors.sync_loop import SyncLoop
from collector.collectors.whole_episodes import EpisodeCollection, check_collect, render_hook
from collector.episodes.episode import CollectStats, Ended
from collector.policy.policy_call import ExplorationType, Policy
from vecenv.extending import as_ids, check_send_and_recv, warn_caller


class SyncDataCollector(BaseCollector):
    """Collects batches of `frames_per_batch` steps from all envs of a vector env, in step.

    docs/guarantees.md ("Batches of a collector") says what goes on from batch to batch, which observation is the last,
    to whom batches belong, and what a failure leaves.

    Args:
        create_env_fn: a vector env, a callable that makes one (or an env), or a list of ids or of callables.
        policy: a callable, see `collector.policy`; None takes random actions.
        frames_per_batch: steps in a batch, all envs together, rounded up to a multiple of them with a warning.
        total_frames: stop after that many steps, a multiple of `frames_per_batch`; None or below zero: never.
        device: the `policy_device` and `storing_device` where they are not given.
        storing_device: batches hold tensors on this device; None: numpy arrays.
        policy_device: the policy gets tensors on this device; None: modules where their parameters are, others arrays.
        env_device: None or "cpu", where envs are.
        create_env_kwargs: keyword arguments for `create_env_fn`.
        max_frames_per_traj: truncate episodes at that many steps; None or below one: do not.
        init_random_frames: take random actions until so many steps are collected, rounded up to whole batches.
        reset_at_each_iter: reset all envs before each batch.
        postproc: called with each batch of the iterator, after `split_trajs`; its result is the batch.
        split_trajs: the iterator returns `batch.split_trajectories()`.
        exploration_type: what is taken from a distribution that the policy returns.
        exploration_mode: the old name of `exploration_type`.
        return_same_td: return the same object with every batch, in the same memory.
        reset_when_done: only True.
        interruptor: checked after every round; a batch that it ends has the steps collected so far.
        set_truncated: mark the last step of each env in a batch as truncated; its episode goes on.
        compile_policy: run a policy on tensors through `torch.compile`; True, or a dict of its keyword arguments.
        cudagraph_policy: replay a policy on CUDA as a graph by tensordict's `CudaGraphModule`; True, or a dict.
        policy_threads: threads of torch for a policy on the CPU while a batch is collected; None: the caller's number.
        backend: for a list: "dummy" (None means it here), "thread", "subproc", "shmem", or "auto", the faster one.
        episode_seeds: `(number, seed)` of the episodes to be played, each to its end: an iterable, or `EpisodeSeeds`.
        transforms: a transform of `vecenv.transforms`, or a list of several; they work where the policy does.
        info_keys: entries of the envs' infos that are stored with each step, as `batch.extras[key]`: the info after the
            action. A parameter of the policy with the name of an entry, or named `info`, gets the info before it.
        env_options: for a list: keywords of the vector env, such as `num_workers`, `step_timeout` and `on_error`.

    Raises `TypeError` and `ValueError` for arguments that it does not take; a vector env that was passed stays open.

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

    _user = "SyncDataCollector"
    """The name in errors."""
    _default_backend = "dummy"
    _source: Any = None
    """The `BatchSource`; None until the vector env is made."""

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
        try:
            make.check_used()
            self._open(create_env_fn, create_env_kwargs, make, transforms)
        except BaseException as error:
            # A vector env that was passed is the caller's until there is a collector.
            if is_own:
                self._note_exception(error)
            self._close(env_too=is_own)
            if isinstance(create_env_fn, VectorEnv) and hasattr(self.env, "release"):
                self.env.release()
            raise

    def _open(self, source: Any, kwargs: Any, make: VectorEnvMaker, transforms: Any) -> None:
        """Make the parts: the transforms around the vector env, the source of batches, and evaluation."""
        where = self.policy, self.policy_device
        self.env = with_transforms(self.env, transforms, *where)
        self._check_env()
        self._source = BatchSource(self.env, self.policy, self._config, self._make_loops)
        self._weights = self._source.weights
        n = self.env.env_num
        self._warn_of_rounding(f"the {n} envs", f"{self.frames_per_batch // n} steps of each, ")
        self._evaluation = Evaluation(source, again(kwargs, make, transforms, *where), self.env)

    def _check_env(self) -> None:
        """Raise `ValueError` or `TypeError` for a vector env that the loop cannot step."""
        check_synchronous(self.env, self._user, cuts=self._config.max_frames_per_traj > 0)
        if self._config.is_seeded:
            check_send_and_recv(self.env, "a collector with episode_seeds")

    def _make_loops(self, parts: LoopParts) -> Loops:
        episodes = EpisodeLoop(parts)
        return episodes if self._config.is_seeded else SyncLoop(parts), episodes, None

    def _round_up(self, frames: int) -> int:
        """Return the number of steps that the loop collects for a request of `frames`."""
        return -(-frames // self.env.env_num) * self.env.env_num

    # Batches.

    @property
    def frames_per_batch(self) -> int:
        """Steps in a full batch."""
        return self._round_up(self.requested_frames_per_batch)

    def _is_complete(self) -> bool:
        """Return whether all of `total_frames`, or all of `episode_seeds`, are collected."""
        return super()._is_complete() or self.all_played

    def _collect_batch(self) -> Any:
        if self.reset_at_each_iter:
            self.reset()
        random, reuse = self.frames < self.init_random_frames, self._config.return_same_td
        request = BatchRequest(self.frames_per_batch, random, on_step=self._source.extras(None), reuse=reuse)
        batch, _ = self._collect(request)
        if self.set_truncated:
            truncate_last(batch)
        return batch

    def _collect(self, request: BatchRequest) -> tuple[Any, Ended]:
        """Collect one batch of numpy arrays, and the episodes that ended in it."""
        with self._in_use():
            found: tuple[Any, Ended] = self._source.collect(request)
        self._source.warn_of_failures()
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
            episodes = EpisodeCollection(self._collect, self._abandon_started, self._config, self._source.episodes)
            with self._weights.kept():  # it is one batch, though it is collected in pieces
                batch, ended = episodes.collect(count, BatchRequest(0, random, on_step=hook), on_episode, keep)
        steps = batch.frames if n_episode is None else int(ended.lens.sum())
        batch = batch if keep else None
        if batch is not None and self.storing_device is not None:
            batch = batch.to(self.storing_device)
        return CollectStats(len(ended.lens), steps, time.perf_counter() - begin, ended.returns, ended.lens, batch)

    def _rendering(self, pause: float, on_step: StepHook | None) -> StepHook:
        """Return a hook that calls `on_step`, renders all envs and waits `pause` seconds."""
        return render_hook(self.env, pause, on_step)

    def _abandon_started(self) -> np.ndarray:
        """Abandon the episodes of which a step has been taken; return their ids."""
        self._source.recover()
        episodes = self._source.episodes
        abandoned: np.ndarray = episodes.ids[episodes.taken > 0]  # before steps in flight end some of them
        self._finish_steps(discard=True)
        episodes.abandon(np.flatnonzero(episodes.taken))
        return abandoned

    def _make_evaluator(self, env: Any) -> SyncDataCollector:
        """Return a collector with the same policy on another vector env."""
        module = self._source.policy.module
        policy = self.policy if module is None else module
        return self._like_this(env, policy, frames_per_batch=env.env_num, **self._config.of_evaluation())

    def _like_this(self, env: Any, policy: Any, **options: Any) -> SyncDataCollector:
        return SyncDataCollector(env, policy, **options)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Raise `RuntimeError` if the collector is shut down. Recover from the last failure, and note the next one."""
        self._check_open()
        if getattr(self.env, "is_closed", False):
            raise RuntimeError("the vector env was closed, and the collector cannot go on; make new ones")
        self._source.recover()
        try:
            yield
        except BaseException as error:
            if not self._source.note_failure(error):
                self._shut_down_by = type(error).__name__
                self._note_exception(error)
                self.shutdown()
            raise

    def _finish_steps(self, discard: bool) -> None:
        """Wait for the envs that are stepping; `discard`: also discard the steps that belong to no batch yet."""
        if self._source.has_steps_in_flight:
            with self._in_use():
                self._source.finish_steps(discard)

    # Episodes and seeds.

    @property
    def all_played(self) -> bool:
        """Return whether all of `episode_seeds` have been played to their end; False for a collector without.

        The iterator ends then; `rollout` and `collect` raise `RuntimeError`.
        """
        return bool(self._source.all_played)

    @property
    def everything_keyed(self) -> bool:
        """Return whether all actions so far depend on the observations, the weights, and the job seed, number and
        step of their episode alone. See `episode_seeds`; False for a collector without.
        """
        return not self.not_keyed_because

    @property
    def not_keyed_because(self) -> str:
        """The reason why `everything_keyed` is False; "" if it is True."""
        noise = self._source.policy.noise
        return "the collector has no episode_seeds" if noise is None else str(noise.reason)

    def reset(self, index: Any = None, **kwargs: Any) -> None:
        """Reset envs (ids or a mask; None: all) before their next step; their episodes in progress are abandoned.

        With `kwargs` (`seed`, `options`) for the envs' `reset` it is done at once. Ids that are wrong raise what the
        vector env's `reset` raises for them, before anything is changed.
        """
        self._config.refuse_with_seeds("reset()")
        n = self.env.env_num
        ids = np.arange(n) if index is None else as_ids(index, n)
        self._source.recover()
        self._finish_steps(discard=len(ids) == n)
        self._source.episodes.abandon(ids)
        if kwargs:
            obs, infos = self.env.reset(ids, **kwargs)
            self._source.begin(ids, obs, infos)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed all envs and the random actions, and reset: the batches that follow are reproducible.

        Each env gets its own seed from the chain that begins with `seed` (with `static_seed`: `seed` itself).
        Returns the seed after the last one, to go on with. A policy that draws from torch's random stream needs
        `torch.manual_seed` too.
        """
        self._config.refuse_with_seeds("set_seed()")
        self._source.recover()
        self._finish_steps(discard=False)
        following: int = self.env.set_seed(seed, static_seed)
        self._source.reseed_random_actions()
        self.reset()
        return following

    def _env_state(self) -> dict[str, Any]:
        return self.env.state_dict() if hasattr(self.env, "state_dict") else {}

    @property
    def _next_id(self) -> int:
        return int(self._source.episodes.next_id)

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Go on from a `state_dict`: its weights, its count of frames, and ids of episodes that it has not used.

        The envs begin new episodes. `strict` is for the policy's `load_state_dict`.
        """
        self._load_progress(state_dict, strict, "env_state_dict", "frames", "iter")
        if state_dict["env_state_dict"] and hasattr(self.env, "load_state_dict"):
            self.env.load_state_dict(state_dict["env_state_dict"])
        if not self._closed:
            self._source.recover()
            self._finish_steps(discard=True)
        self._source.episodes.skip_to(state_dict.get("traj_pool", 0))

    @property
    def exploration_type(self) -> ExplorationType:
        """The value taken from a distribution that the policy returns, where no `set_exploration_type` is around a call
        of the collector.
        """
        return self._config.exploration_type

    def __repr__(self) -> str:
        so_far = f"{self.frames} frames so far{', shut down' if self._closed else ''}"
        return f"{type(self).__name__}({self.env!r}, {self.frames_per_batch} frames a batch, {so_far})"

    def stats(self) -> CollectorStats:
        """Seconds since the first batch by what took them; `print(collector.stats())` names the bottleneck in one
        line.
        """
        return self._source.stats()

    def shutdown(self, close_env: bool = True) -> None:
        """End the collector, and close the vector env unless `close_env` is False. Safe to call again, and after any
        failure.
        """
        if not self._closed:
            self._close(env_too=close_env)

    def _note_exception(self, error: BaseException) -> None:
        """Before an exception closes the vector env: let it know, so that `RecordEpisodes` ends no data set."""
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
