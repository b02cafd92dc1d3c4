"""`Player`: plays the episodes of a `Plan`. `EpisodeWriter`: stores and commits episodes.

    plan --(number, seed)--> collector --batches--> PlayedEpisodes --> EpisodeWriter --> shards
      ^                          |
      |                      an env fails: its episode is set aside
      +-- finished, skipped <---- retried alone, `retries` times <----+

A failing env may interrupt the episodes of other envs. So each interrupted episode is retried alone, and is skipped
only if all its retries fail.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from collector.basics.interruptor import Stopping
from collector.batch.rollout import RewardError
from collector.collectors.sync_collector import SyncDataCollector
from collector.episodes.cutter import EpisodeCutter
from collector.episodes.episode import EpisodeBatch
from collector.jobs.builders import (
    find_env_difference,
    make_job_policy,
    make_venv,
    names_with_statistics,
    transforms_with_statistics,
)
from collector.jobs.job import Job, JobError
from collector.jobs.job_files import check_head, job_head
from collector.jobs.job_progress import JobProgress
from collector.jobs.plan import Plan
from collector.jobs.transform_statistics import States, venv_statistics, write_statistics
from collector.policy.weights import hash_of
from collector.store.safe_folder import DatasetError
from collector.store.shard_layout import row_layout
from collector.store.writer import StoreWriter
from vecenv import VectorEnvError, nest
from vecenv.layout import Leaf, common_layout

BATCH_BYTES = 64 * 2**20
BATCH_STEPS = 64


class JobFailedError(JobError):
    """Raised if more episodes or tasks failed than the job allows."""


@dataclass(frozen=True)
class PlayedEpisodes:
    """Whole episodes of a batch, and the head (dataset.json) of their data set."""

    head: dict[str, Any]
    lengths: list[int]
    returns: list[float]
    episodes: EpisodeBatch | None = None
    """None if a task on a cluster has stored the episodes."""
    statistics: States | None = None


def skipped_in(state: Any) -> set[int]:
    """Return the numbers of skipped episodes from the state in a manifest.

    >>> skipped_in({"skipped": [3, 7]})
    {3, 7}
    >>> skipped_in({"skipped": 3})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    collector.store.safe_folder.DatasetError: its state is not the state of a job: Expected `array`, got `int`...
    """
    try:
        return {*msgspec.convert({} if state is None else state, dict[str, list[int]]).get("skipped", ())}
    except msgspec.ValidationError as error:
        raise DatasetError(f"its state is not the state of a job: {error}") from None


class EpisodeWriter:
    """Writer of episodes. Commits when uncommitted episodes are large or old, and when its `with` block ends.

    `resumed`: open store of a resumed job. If None, the first batch creates the data set.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        progress: JobProgress,
        folder: Path,
        *,
        overwrite: bool = False,
        resumed: StoreWriter | None = None,
    ) -> None:
        self._job, self._plan, self._progress = job, plan, progress
        self._folder, self._overwrite, self._resumed = folder, overwrite, resumed
        self.store: StoreWriter | None = None
        self.head: dict[str, Any] = {}
        self._recorded_failures = {"retried": 0, "skipped": 0}
        self._statistics: States | None = None
        self._commit_due = float("inf")

    def open(self, head: dict[str, Any]) -> StoreWriter:
        if self._resumed is None:
            store = StoreWriter(self._folder, head, overwrite=self._overwrite, compress=self._job.compress)
        else:
            store = self._resumed
            self._progress.notes += check_head(self._folder, store.head, head)
        self.store, self.head = store, head
        return store

    def add(self, played: PlayedEpisodes) -> None:
        store = self.store or self.open(played.head)
        if played.episodes is not None and len(played.episodes):
            store.add(played.episodes)
            self._commit_due = min(self._commit_due, time.monotonic() + self._job.shard_seconds)
            self._statistics = played.statistics
        if store.waiting_bytes >= self._job.shard_bytes or time.monotonic() >= self._commit_due:
            self.commit()

    def commit(self) -> None:
        if self.store is None:
            return
        self._commit_due = float("inf")
        if self._statistics is not None:
            write_statistics(self.store.opened, self._statistics)
        now = {"retried": self._progress.retried, "skipped": len(self._progress.skipped)}
        failed = {
            name: count - self._recorded_failures[name]
            for name, count in now.items()
            if count > self._recorded_failures[name]
        }
        self.store.commit(failed=failed, state={"skipped": sorted(self._plan.skipped)} if failed else None)
        self._recorded_failures, self._statistics = now, None

    def end(self) -> bool:
        """Commit. Mark the data set as complete, or return False if all episodes failed."""
        self.store = self.store or self._resumed
        self.commit()
        if self.store is None or not self._plan.end_episodes:
            return False
        self.store.end(episodes=self._plan.end)
        return True

    def close(self) -> None:
        if self.store is not None:
            self.store.close()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        with suppress(DatasetError) if error is not None else nullcontext():  # the first error is more useful
            self.commit()


@dataclass
class Player:
    """Player that plays the episodes of a plan in this process and its workers.

    `statistics`: initial statistics of each env's transforms. `checks_env`: check whether the env repeats episodes,
    for a new data set.
    """

    job: Job
    plan: Plan
    stop: Stopping
    progress: JobProgress
    device: str
    statistics: States | None = None
    checks_env: bool = False

    def __post_init__(self) -> None:
        self._env_difference = ""
        self._suspects: set[int] = set()
        self._head: dict[str, Any] | None = None
        self._has_statistics = bool(transforms_with_statistics(self.job))

    def play(self) -> Generator[PlayedEpisodes, None, None]:
        """Yield the whole episodes of each batch, until the plan is complete or a signal arrives.

        The caller stores the episodes. When the caller asks for the next batch, the plan records the episodes as
        finished. Raises `JobFailedError` if too many episodes fail, the env's error with `on_error="raise"`, and errors
        of the policy.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*broke off because envs failed", RuntimeWarning)
            if self.checks_env and not names_with_statistics(self.job):
                self._env_difference = find_env_difference(self.job)
            while not self._is_over(self.plan):
                yield from self._play_together(self.job, self.plan, self._suspects)
                for number in sorted(self._suspects):
                    if self._is_over(self.plan):
                        break
                    yield from self._play_alone(number)

    def _is_over(self, plan: Plan) -> bool:
        return plan.is_complete or self.stop.is_stopped

    def _play_together(self, job: Job, plan: Plan, suspects: set[int]) -> Iterator[PlayedEpisodes]:
        """Play in a new vector env. Add interrupted or infinite episodes to `suspects`, to be retried alone."""
        if plan.is_exhausted:
            return
        try:
            with make_venv(job, self.statistics) as env:
                row_layout(env.observation_space, env.action_space)  # refuse bad spaces before playing
                policy, size = make_job_policy(job, env, self.device), env.env_num * steps_per_batch(job, env)
                policy_hash = hash_of(policy)
                options: Any = {"policy_threads": job.policy_threads, "episode_seeds": plan, "info_keys": job.info_keys}
                batches = SyncDataCollector(env, policy, frames_per_batch=size, interruptor=self.stop, **options)
                with batches:
                    for episodes in self._play_batches(batches, job, plan, suspects):
                        yield from self._deliver(batches, policy_hash, plan, episodes)
        except Exception as error:
            if job.on_error == "raise" or not plan.playing or not is_env_error(error):
                raise
            self._add_suspects(plan, suspects, [error.traj_id] if isinstance(error, RewardError) else [*plan.playing])
        finally:
            plan.again(plan.playing)

    def _play_batches(
        self, batches: SyncDataCollector, job: Job, plan: Plan, suspects: set[int]
    ) -> Iterator[EpisodeBatch]:
        cutter = EpisodeCutter(job.info_keys)
        # If an env always fails, the limit on `suspects` ends the loop.
        while not (self._is_over(plan) or plan.is_exhausted or len(suspects) > job.max_failed + job.num_envs):
            self.stop.begin_batch()
            batch = batches.rollout()
            self.progress.frames += batch.frames
            self._add_suspects(plan, suspects, batch.broken_ids.tolist())
            whole = cutter.cut(batch)
            infinite = whole.episode[whole.not_finite].tolist()
            self._add_suspects(plan, suspects, infinite)
            yield whole.select(~np.isin(whole.episode, infinite)) if infinite else whole
            if infinite and job.on_error == "raise":
                raise RewardError(f"episode {infinite[0]} has an infinite reward or return")

    def _deliver(
        self, batches: SyncDataCollector, policy_hash: str | None, plan: Plan, episodes: EpisodeBatch
    ) -> Iterator[PlayedEpisodes]:
        """Yield episodes. Record them as finished after the caller has stored them."""
        if self._has_statistics and len(episodes) and (found := venv_statistics(batches.env)) is not None:
            # A retry may use fewer envs. Keep the statistics of the other envs.
            self.statistics = [*found, *(self.statistics or [])[len(found) :]]
        self.progress.bottleneck = batches.stats().bottleneck_share
        self._head = self._head or job_head(self.job, batches, self.device, policy_hash, self._env_difference)
        lengths, returns = episodes.lengths.tolist(), episodes.total_rewards.tolist()
        statistics = self.statistics if self._has_statistics else None
        yield PlayedEpisodes(self._head, lengths, returns, episodes, statistics)
        for number, length in zip(episodes.episode.tolist(), lengths, strict=True):
            plan.finished(number, length)

    def _play_alone(self, number: int) -> Iterator[PlayedEpisodes]:
        reason = "its env failed"
        for _ in range(count_retries(self.job)):
            self.progress.retried += 1
            plan = Plan(self.plan.job_seed, numbers=[number])
            try:
                yield from self._play_together(_retry_job(self.job), plan, set())
            except Exception as error:
                if not is_env_error(error):
                    raise
                reason = f"{type(error).__name__}: {error}"
            if plan.is_complete:
                self._suspects.discard(number)
                return self.plan.finished(number, plan.steps)
            if self.stop.is_stopped:
                return None
        self._suspects.discard(number)
        return give_up(self.job, self.plan, self.progress, {number: reason})

    def _add_suspects(self, plan: Plan, suspects: set[int], numbers: list[int]) -> None:
        suspects.update(numbers)
        plan.set_aside(numbers)


def give_up(job: Job, plan: Plan, progress: JobProgress, failed: dict[int, str]) -> None:
    """Skip episodes, and record their errors. Raises `JobFailedError` if too many were skipped."""
    progress.skipped.update(failed)
    for number in failed:
        plan.finished(number, 0)
    if failed and len(plan.skipped) > job.max_failed:
        number = max(failed)
        raise JobFailedError(
            f"{len(plan.skipped)} episodes failed, and max_failed is {job.max_failed}; episode {number}, "
            f"played {count_retries(job) + 1} times, failed with {failed[number]}"
        )


def count_retries(job: Job) -> int:
    """Return how often an episode is retried: at least once, because another env may have interrupted the episode."""
    return max(1, job.retries)


def is_env_error(error: BaseException) -> bool:
    """Return whether an env raised this error. Vector envs give such errors the attribute `partial`."""
    if isinstance(error, RewardError):
        return not error.policy
    return isinstance(error, VectorEnvError) or hasattr(error, "partial")


def _retry_job(job: Job) -> Job:
    """Return the job that retries one episode.

    A policy still gets `num_envs` rows, because the number of rows may change the last bits of its outputs.
    """
    backend = "shmem" if job.backend == "auto" else job.backend  # "auto" could run the failing env in this process
    few: dict[str, Any] = {"num_envs": 1, "num_workers": None} if job.policy == "random" else {}
    return msgspec.structs.replace(job, on_error="raise", backend=backend, **few)


def steps_per_batch(job: Job, env: Any) -> int:
    """Return the steps per env: 64, or fewer if rows are large or `job.steps` is small."""
    leaves = nest.leaves(common_layout(env.observation_space, env.action_space).obs)
    row = sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves if isinstance(leaf, Leaf))
    wanted = BATCH_STEPS if job.steps is None else -(-job.steps // job.num_envs)
    return max(1, min(BATCH_STEPS, BATCH_BYTES // (job.num_envs * max(1, row)), wanted))
