"""Base class of `SyncDataCollector` and `AsyncDataCollector`: arguments, requests for batches, failures, state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv

from collector.batch.rollout import RewardShape, check_rewards, truncate_last
from collector.batch.step_extras import StepExtras, StepHook, check_info_keys
from collector.batch_iterator import BatchIterator
from collector.collector_arguments import check_step_count, limit
from collector.env_source import VectorEnvMaker, make_vector_env, with_transforms
from collector.episodes.env_episodes import EnvEpisodes
from collector.episodes.episode import Ended, EpisodeCutter
from collector.evaluation import Evaluation
from collector.interruptor import Interruptor
from collector.policy.policy_call import ExplorationType, Policy, as_exploration_type, requested_exploration_type
from collector.policy.runner import PolicyRunner
from collector.policy.weights import PolicyWeights
from collector.timing import Clock
from vecenv import nest
from vecenv.extending import add_note, as_ids, check_count, flat, resets_in_step, warn_caller


class BatchRequest(NamedTuple):
    """One batch that a loop is to collect."""

    frames: int
    """The largest number of steps."""
    random: bool
    """True if random actions take the place of the policy's."""
    quota: np.ndarray | None = None
    """int `(N,)`: the episodes that are to end in each env; the loop counts them down. None: any number."""
    on_step: StepExtras | None = None
    reuse: bool = False
    """True to record into the memory of the last such batch, where a loop can."""


class BatchCollector(BatchIterator):
    """A collector without its loop; arguments and methods are documented in `SyncDataCollector`.

    After a failure the next batch begins new episodes in all envs; where there can be none, the collector is shut down.
    """

    _default_backend = "dummy"
    _runner: PolicyRunner = None  # type: ignore[assignment]  # until the envs are known
    _failed = False
    """True if a failure ended the last batch."""
    _shut_down_by = ""
    """The failure that shut the collector down, by its class."""

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
        devices = device, storing_device, policy_device, env_device
        finishing = postproc, split_trajs, return_same_td
        super().__init__(policy, frames_per_batch, total_frames, init_random_frames, devices, *finishing)
        if not reset_when_done:
            raise ValueError("reset_when_done is deprecated.")
        self._exploration_type = as_exploration_type(exploration_type, exploration_mode)
        self._seeds, self._seeded = episode_seeds, episode_seeds is not None
        self._info_keys = check_info_keys(info_keys)
        self._info_layout: dict[str, Any] = {}
        if reset_at_each_iter:
            self._refuse_with_seeds("reset_at_each_iter")
        self.reset_at_each_iter, self.set_truncated = reset_at_each_iter, set_truncated
        self._limit = limit("max_frames_per_traj", max_frames_per_traj)
        """Steps at which an episode is truncated, or 0."""
        self._interruptor = Interruptor() if interruptor is None else interruptor
        self._threads = None if policy_threads is None else check_count("policy_threads", policy_threads)
        faster = {"compile": compile_policy, "cudagraph": cudagraph_policy}
        self._make_env(create_env_fn, create_env_kwargs, make, transforms, faster)

    def _make_env(self, source: Any, kwargs: Any, make: VectorEnvMaker, transforms: Any, faster: Any) -> None:
        """Make the vector env, with the transforms around it, and prepare for the first batch."""
        self.env = make_vector_env(source, kwargs, make)
        is_own = self.env is not source and not isinstance(source, VectorEnv)
        try:
            make.check_used()
            self.env = with_transforms(self.env, transforms, self.policy, self.policy_device)
            if self._limit:
                check_step_count(self.env.observation_space)
            self._prepare(faster)
            where = self.policy, self.policy_device

            def make_again(source: Any) -> Any:
                clones = None if transforms is None else [each.clone() for each in flat(transforms)]
                return with_transforms(make_vector_env(source, kwargs, make), clones, *where)

            self._evaluation = Evaluation(source, make_again, self.env)
        except BaseException as error:
            # A vector env that was passed is the caller's until there is a collector.
            if is_own:
                self._note_exception(error)
            self._close(env_too=is_own)
            if isinstance(source, VectorEnv) and hasattr(self.env, "release"):
                self.env.release()
            raise

    def _prepare(self, faster: dict[str, Any]) -> None:
        """Make what a batch needs. faster: `compile_policy` and `cudagraph_policy`."""
        n = self._env_num = self.env.env_num
        self._all_ids = np.arange(n)
        self._cutter, self._reward_shape, self._clock = EpisodeCutter(), RewardShape(), Clock()
        self._autoreset = resets_in_step(self.env)
        self._episodes = EnvEpisodes(n, self._seeds, ahead=self._autoreset)
        self._steps = 0
        self._warned_of_failures = False
        self._obs: Any = None
        job_seed = getattr(self._seeds, "job_seed", 0) if self._seeded else None
        options: dict[str, Any] = {"clock": self._clock, "threads": self._threads, "job_seed": job_seed}
        options |= {"info_keys": self._info_keys, **faster}
        self._runner = PolicyRunner(self.policy, self.env, self._exploration_type, self.policy_device, **options)
        if (noise := self._runner.noise) is not None:
            self._episodes.share(noise.numbers[:n], noise.steps[:n])
        self._weights = PolicyWeights(self.policy, self._runner.module)
        if self.init_random_frames:
            self._runner.replaces(random=True)  # now, because it refuses spaces from which it cannot draw

    # The loop.

    @abstractmethod
    def _gather(self, request: BatchRequest) -> Any:
        """Collect one batch of numpy arrays."""

    @abstractmethod
    def _round_up(self, frames: int) -> int:
        """Number of steps that `_gather` collects for a request of `frames`."""

    def _finish_steps(self, discard: bool) -> None:
        """Wait for the envs that are stepping; `discard`: also discard the steps that belong to no batch yet."""

    def _discard_steps(self) -> None:
        """After a failure: discard the steps that belong to no batch, and what envs in flight return or raise."""

    def _begin(self, env_ids: np.ndarray, infos: np.ndarray | None = None) -> None:
        """Note that episodes begin in these envs, with these infos."""
        self._episodes.over[env_ids] = False
        self._runner.begin(env_ids, infos)  # the policy's state begins too where random actions take its place

    def _count_steps(
        self, ids: np.ndarray, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, resets: Any = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Count the steps of a round, of which the envs in the mask `resets` took none.

        Returns the rewards in their shape, the flags with long episodes cut, and which episodes the envs themselves
        have ended.
        """
        taken = self._episodes.taken
        if resets is not None:
            taken[ids] += ~resets
            terminated, truncated = terminated & ~resets, truncated & ~resets
        elif len(ids) == self._env_num:
            taken += 1
        else:
            taken[ids] += 1
        by_env = terminated | truncated
        if self._limit:
            truncated = truncated | (taken[ids] >= self._limit)
        return self._reward_shape.fit(reward), terminated, truncated, by_env

    def _end_episodes(self, ids: np.ndarray, ended: np.ndarray, info: Any, quota: np.ndarray | None) -> Any:
        """End the episodes in the rows `ended` of a round; returns in which of them the env failed: a mask, or None."""
        failures = self._episodes.note_failures(ids, ended, info)
        over = ids[ended]
        self._episodes.end(over)
        failed = np.isin(ended, failures) if failures else None
        if quota is not None:
            quota[over if failed is None else over[~failed]] -= 1
        return failed

    # One batch.

    @property
    def frames_per_batch(self) -> int:
        """Steps in a full batch."""
        return self._round_up(self.requested_frames_per_batch)

    def _is_complete(self) -> bool:
        """Return whether all of `total_frames`, or all of `episode_seeds`, are collected."""
        return super()._is_complete() or (self._seeded and self.all_played)

    def _collect_batch(self) -> Any:
        if self.reset_at_each_iter:
            self.reset()
        random = self.frames < self.init_random_frames
        request = BatchRequest(self.frames_per_batch, random, on_step=self._extras(None), reuse=self._reuse)
        batch, _ = self._gather_checked(request)
        if self.set_truncated:
            truncate_last(batch)
        return batch

    def _extras(self, on_step: StepHook | None) -> StepExtras | None:
        """Calls the hook after each round, and stores entries of the infos; None where there is neither."""
        if on_step is None and not self._info_keys:
            return None
        return StepExtras(on_step, self._info_keys, self._info_layout, lambda: self._runner.layout)

    def _gather_checked(self, request: BatchRequest) -> tuple[Any, Ended]:
        """One batch of the loop, as numpy arrays, and the episodes that ended in it."""
        self._check_open()
        self._recover()
        self._clock.begin_batch()
        request = request._replace(random=self._runner.replaces(request.random))
        try:
            wanted = requested_exploration_type() or self._exploration_type
            with self._weights.kept(), self._runner.in_batch(wanted):
                batch = self._gather(request)
            check_rewards(batch)
        except BaseException as error:
            self._note_failure(error)
            raise
        if request.on_step is not None:
            request.on_step.fill(batch.extras, batch.shape)
        ended = self._cutter.totals(batch)
        self._steps += batch.frames
        self._clock.lap("storage")
        self._warn_of_failures()
        return batch, ended

    # Failures.

    def _warn_of_failures(self) -> None:
        """Give a warning after the first batch in which episodes broke off."""
        count = self._episodes.broken
        if not count or self._warned_of_failures:
            return
        self._warned_of_failures = True
        which = "1 episode" if count == 1 else f"{count} episodes"
        warn_caller(
            f"{which} of this batch broke off where envs failed ({self._episodes.first_failure}): `batch.broken` marks "
            "their steps, and `mask` leaves out the rows of the failures. Others are only counted: collector.stats()"
        )

    def _note_failure(self, error: BaseException) -> None:
        """Note that an exception ended a batch: new episodes come next. Where there can be none, shut down."""
        if self._seeded:
            why = "its steps are lost, and with episode_seeds every episode is played to its end"
        elif getattr(self.env, "is_closed", False):
            why = "its vector env is closed"
        else:
            self._failed = True
            add_note(error, "the steps of this batch are lost; the collector can go on, with new episodes in all envs")
            return
        add_note(error, f"the collector was shut down by this: {why}")
        self._shut_down_by = type(error).__name__
        self._note_exception(error)
        self.shutdown()

    def _recover(self) -> None:
        """After a failure: abandon the episodes in progress, and what is in flight."""
        if self._failed:
            self._discard_steps()
            self._episodes.abandon()
            self._runner.begin(self._all_ids)
            self._failed = False

    def _check_open(self) -> None:
        if self._closed and self._shut_down_by:
            raise RuntimeError(f"the collector was shut down by the {self._shut_down_by} before; make a new one")
        if self._closed:
            raise RuntimeError("the collector is shut down; make a new one")
        if getattr(self.env, "is_closed", False):
            raise RuntimeError("the vector env was closed, and the collector cannot go on; make new ones")

    # Episodes and seeds.

    @property
    def all_played(self) -> bool:
        """Return whether all of `episode_seeds` have been played to their end; False for a collector without.

        The iterator ends then; `rollout` and `collect` raise `RuntimeError`.
        """
        return self._seeded and self._episodes.all_played

    @property
    def everything_keyed(self) -> bool:
        """Return whether all actions so far depend on the observations, the weights, and the job seed, number and
        step of their episode alone. See `episode_seeds`; False for a collector without.
        """
        return self._runner.noise is not None and self._runner.noise.everything

    @property
    def not_keyed_because(self) -> str:
        """The reason why `everything_keyed` is False; "" if it is True."""
        return self._runner.noise.reason if self._runner.noise is not None else "the collector has no episode_seeds"

    def _refuse_with_seeds(self, what: str) -> None:
        if self._seeded:
            raise ValueError(
                f"{what} cannot be used with episode_seeds: each episode is reset with its own seed and played to its "
                "end; limit them with EpisodeSeeds(job_seed, numbers=range(n))"
            )

    def reset(self, index: Any = None, **kwargs: Any) -> None:
        """Reset envs (ids or a mask; None: all) before their next step; their episodes in progress are abandoned.

        With `kwargs` (`seed`, `options`) for the envs' `reset` it is done at once. Ids that are wrong raise what the
        vector env's `reset` raises for them, before anything is changed.
        """
        self._refuse_with_seeds("reset()")
        ids = self._all_ids if index is None else as_ids(index, self._env_num)
        self._recover()
        self._finish_steps(discard=len(ids) == self._env_num)
        self._episodes.abandon(ids)
        if kwargs:
            obs, infos = self.env.reset(ids, **kwargs)
            self._put_obs(ids, obs)
            self._begin(ids, infos)

    def _put_obs(self, ids: np.ndarray, obs: Any) -> None:
        """Set the observations that the policy gets next for these envs."""
        if self._obs is None:
            self._obs = nest.map(self._zeros_like, obs)
        nest.put(self._obs, ids, obs)

    def _zeros_like(self, rows: np.ndarray) -> np.ndarray:
        """Zeros for each env, of the shape and dtype of these rows."""
        return np.zeros((self._env_num, *rows.shape[1:]), rows.dtype)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed all envs and the random actions, and reset: the batches that follow are reproducible.

        Each env gets its own seed from the chain that begins with `seed` (with `static_seed`: `seed` itself).
        Returns the seed after the last one, to go on with. A policy that draws from torch's random stream needs
        `torch.manual_seed` too.
        """
        self._refuse_with_seeds("set_seed()")
        self._recover()
        self._finish_steps(discard=False)
        following: int = self.env.set_seed(seed, static_seed)
        self._runner.reseed_random_actions()
        self.reset()
        return following

    # Life.

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
            if self._runner is not None:
                self._runner.close()
            if env_too:
                self.env.close()
