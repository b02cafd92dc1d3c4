"""Play the episodes of a plan, retry episodes whose env failed, and commit the results.

    plan --(number, seed)--> collector --batches--> whole episodes --> Commits --> shards
      ^                          |
      |                      an env fails: its episode is set aside
      +-- finished, skipped <-- played again alone, `retries` times <--+

An episode that breaks off may not be to blame: the worker that an env takes down hosts other envs too, and an error
that is raised ends the batch of all. So each of them is played again with no other beside it, and only one that fails
there is skipped. The episodes of a job do not depend on which envs shared a worker.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from collector.basics.interruptor import OutOfTime, Stopping
from collector.batch.rollout import RewardError
from collector.collectors.sync_collector import SyncDataCollector
from collector.episodes.episode import Episode, EpisodeBatch, EpisodeCutter
from collector.jobs.job import Job, JobError
from collector.jobs.job_files import job_head
from collector.jobs.making import make_policy, make_venv, transforms_with_statistics
from collector.jobs.plan import Plan
from collector.jobs.transform_statistics import States, statistics_of, write_statistics
from collector.policy.policy_state import hash_of
from collector.store.packed import row_layout
from collector.store.safe_folder import DatasetError
from collector.store.writer import StoreWriter
from vecenv import nest
from vecenv.errors import VectorEnvError
from vecenv.extending import Leaf, common_layout

BATCH_BYTES = 64 * 2**20
BATCH_STEPS = 64
Episodes = Sequence[Episode] | EpisodeBatch
HeadOf = Callable[[Job], dict[str, Any]]
Take = Callable[[HeadOf, Episodes, States | None], object]
"""Takes a function that returns the head of the folder of a job, the episodes that have ended in a batch, and the
statistics that the transforms of the envs have by then."""


class JobFailedError(JobError):
    """More episodes failed than the job allows."""


def skipped_in(state: Any) -> set[int]:
    """The numbers of the episodes that earlier runs have given up, from the state in a manifest (None: there is none).

    >>> skipped_in({"skipped": [3, 7]})
    {3, 7}
    >>> skipped_in({"skipped": 3})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    collector.store.safe_folder.DatasetError: its state is no state of a job: Expected `array`, got `int`...
    """
    try:
        return {*msgspec.convert({} if state is None else state, dict[str, list[int]]).get("skipped", ())}
    except msgspec.ValidationError as error:
        raise DatasetError(f"its state is no state of a job: {error}") from None


@dataclass(kw_only=True)
class Tally:
    """The figures of a run, which its player keeps."""

    frames: int = 0
    """Steps that were taken in this run, those of unfinished episodes included."""
    retried: int = 0
    """The number of times that an episode whose env had failed was played again in this run."""
    skipped: dict[int, str] = field(default_factory=dict)
    """Numbers of the episodes that were given up in this run, with the last error of each."""
    notes: list[str] = field(default_factory=list)
    """Remarks about a run that was resumed, and the tasks on a cluster."""
    bottleneck: str = ""
    """The work that takes most of the time, and its share: "envs 80 %"; "idle" is the time to store episodes."""


@dataclass
class Commits:
    """Gives whole episodes to the writer of a folder, and commits them, between slices of play, when they are large or
    old enough; at the end of a `with` block the rest.

    `open` opens the writer by `open_writer`, with the head that the first batch shows. Commits count the failures in
    the `tally`, and name for the next run the episodes that the `plan` has skipped.
    """

    job: Job
    plan: Plan
    tally: Tally
    open_writer: Callable[[dict[str, Any]], StoreWriter]
    writer: StoreWriter | None = None
    """None until `open`."""

    def __post_init__(self) -> None:
        self._noted = {"retried": 0, "skipped": 0}
        self._statistics: States | None = None
        self._due = float("inf")

    def open(self, head: dict[str, Any]) -> None:
        """Open the folder for the data set that a head describes. Raises as the writer."""
        self.writer = self.open_writer(head)

    def add(self, episodes: Episodes, statistics: States | None = None) -> None:
        """Take episodes, and the statistics of transforms, which are stored with them; commit what is due.

        Raises `DatasetError` where the disk refuses a commit.
        """
        assert self.writer is not None
        self.writer.add(episodes)
        if len(episodes):
            self._due = min(self._due, time.monotonic() + self.job.shard_seconds)
            self._statistics = statistics
        if self.writer.waiting_bytes >= self.job.shard_bytes or time.monotonic() >= self._due:
            self.commit()

    def commit(self) -> None:
        """Commit all that is there."""
        if self.writer is None:
            return
        self._due = float("inf")
        if self._statistics is not None:
            write_statistics(self.writer.opened, self._statistics)
        now = {"retried": self.tally.retried, "skipped": len(self.tally.skipped)}
        failed = {name: count - self._noted[name] for name, count in now.items() if count > self._noted[name]}
        self.writer.commit(failed=failed, state={"skipped": sorted(self.plan.skipped)} if failed else None)
        self._noted, self._statistics = now, None

    def __enter__(self) -> Commits:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        with suppress(DatasetError) if error is not None else nullcontext():  # the first error is raised
            self.commit()


@dataclass
class Player:
    """Plays what is left of a plan in this process and its workers: a whole job, or a range of it.

    `take` is called after each batch. `statistics`: those with which the transforms of each env begin.
    """

    job: Job
    plan: Plan
    stop: Stopping
    tally: Tally
    take: Take
    device: str
    statistics: States | None = None

    def __post_init__(self) -> None:
        self._suspects: set[int] = set()
        self._policy_hash: str | None = None
        self._learning = bool(transforms_with_statistics(self.job))

    def play(self) -> None:
        """Play until the plan is complete or a signal came.

        Raises `JobFailedError` where more episodes fail than the job allows, with `on_error="raise"` what the env
        raises, and always what the policy or `take` raises.
        """
        with warnings.catch_warnings():
            # Failures are counted here, and their episodes played again.
            warnings.filterwarnings("ignore", ".*broke off where envs failed", RuntimeWarning)
            while not self._is_over():
                with suppress(OutOfTime), self.stop.leaving_in_time():
                    self._play_together()
                    for number in sorted(self._suspects):
                        if self._is_over():
                            break
                        self._play_alone(number)

    def _is_over(self) -> bool:
        return self.plan.is_complete or self.stop.is_stopped

    def _play_together(self) -> None:
        job, plan = self.job, self.plan
        if plan.is_exhausted:
            return
        try:
            with make_venv(job, self.statistics) as env:
                row_layout(env.observation_space, env.action_space)  # refused now, not when the first episode is stored
                policy, size = make_policy(job, env, self.device), env.env_num * steps_per_batch(job, env)
                self._policy_hash = hash_of(policy)
                options: Any = {"policy_threads": job.policy_threads, "episode_seeds": plan}
                self._play_batches(
                    SyncDataCollector(env, policy, frames_per_batch=size, interruptor=self.stop, **options)
                )
        except Exception as error:
            if job.on_error == "raise" or not plan.playing or not is_of_env(error):
                raise
            self._suspect([error.traj_id] if isinstance(error, RewardError) else [*plan.playing])
        finally:
            plan.again(plan.playing)  # what was in progress

    def _play_batches(self, batches: SyncDataCollector) -> None:
        job, plan, cutter = self.job, self.plan, EpisodeCutter()
        with batches:
            # With an env that always fails there would be no end.
            while not (self._is_over() or plan.is_exhausted or len(self._suspects) > job.max_failed + job.num_envs):
                self.stop.begin_slice()
                batch = batches.rollout()
                self.tally.frames += batch.frames
                self._suspect(batch.broken_ids.tolist())
                whole = cutter.cut(batch)
                infinite = [each.number for each in whole if not np.isfinite(each.total_reward)]
                self._suspect(infinite)
                self._keep(batches, [each for each in whole if each.number not in infinite] if infinite else whole)
                if infinite and job.on_error == "raise":
                    raise RewardError(f"episode {infinite[0]} has an infinite reward or return")

    def _play_alone(self, number: int) -> None:
        """Play one episode again until it ends well, or give it up."""
        reason = "its env failed"
        for _ in range(self.job.retries):
            self.tally.retried += 1
            plan = Plan(self.plan.job_seed, numbers=[number])
            alone = replace(self, job=_alone(self.job), plan=plan)
            try:
                alone._play_together()
            except Exception as error:
                if not is_of_env(error):
                    raise
                reason = f"{type(error).__name__}: {error}"
            self.statistics = alone.statistics
            if plan.is_complete:
                self._suspects.discard(number)
                return self.plan.finished(number, plan.steps)
            if self.stop.is_stopped:
                return None
        self._suspects.discard(number)
        return give_up(self.job, self.plan, self.tally, {number: reason})

    def _keep(self, batches: SyncDataCollector, episodes: Episodes) -> None:
        with self.stop.finishing():
            if self._learning and len(episodes) and (found := statistics_of(batches.env)) is not None:
                # There may be fewer envs than statistics: an episode is played alone.
                self.statistics = [*found, *(self.statistics or [])[len(found) :]]
            self.tally.bottleneck = batches.stats().bottleneck_share
            head_of = lambda job: job_head(job, batches, self.device, self._policy_hash)  # noqa: E731
            self.take(head_of, episodes, self.statistics if self._learning else None)
        for episode in episodes:
            self.plan.finished(episode.number, len(episode))

    def _suspect(self, numbers: list[int]) -> None:
        self._suspects.update(numbers)
        self.plan.set_aside(numbers)


def give_up(job: Job, plan: Plan, tally: Tally, failed: dict[int, str]) -> None:
    """Skip these episodes, with the last error of each. Raises `JobFailedError` where there are too many."""
    tally.skipped.update(failed)
    for number in failed:
        plan.finished(number, 0)
    if failed and len(plan.skipped) > job.max_failed:
        number = max(failed)
        raise JobFailedError(
            f"{len(plan.skipped)} episodes failed, and max_failed is {job.max_failed}; episode {number}, "
            f"played {job.retries + 1} times, failed with {failed[number]}"
        )


def is_of_env(error: BaseException) -> bool:
    """Return whether an error is that of an env, and not of the policy or this program: a vector env has marked it."""
    if isinstance(error, RewardError):
        return not error.policy
    return isinstance(error, VectorEnvError) or hasattr(error, "partial")


def _alone(job: Job) -> Job:
    """The job for one episode: its error is raised. Random actions do not depend on how many envs there are, and the
    others have as many rows as before, of which one is used.
    """
    backend = "shmem" if job.backend == "auto" else job.backend  # "auto" would take this process for one env
    few: dict[str, Any] = {"num_envs": 1, "num_workers": None} if job.policy == "random" else {}
    return msgspec.structs.replace(job, on_error="raise", backend=backend, **few)


def steps_per_batch(job: Job, env: Any) -> int:
    """64, or fewer where a batch would be large for the memory or the job."""
    leaves = nest.leaves(common_layout(env.observation_space, env.action_space).obs)
    row = sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves if isinstance(leaf, Leaf))
    wanted = BATCH_STEPS if job.steps is None else -(-job.steps // job.num_envs)
    return max(1, min(BATCH_STEPS, BATCH_BYTES // (job.num_envs * max(1, row)), wanted))
