"""Playing the episodes of a plan: together, and those whose env failed alone; and committing them.

    plan --(number, seed)--> collector --batches--> whole episodes --> Commits --> shards
      ^                          |
      |                      an env fails: its episode is set aside
      +-- finished, skipped <-- played again alone, `retries` times <--+

An episode that breaks off may not be to blame: the worker that an env takes down hosts other envs too, and an error
that is raised ends the batch of all. So each of them is played again with no other beside it, and only one that fails
there is skipped. Which episodes a job has does not depend on who shared a worker with whom.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from collector.batch.rollout import RewardError
from collector.episodes.episode import Episode, EpisodeBatch, EpisodeCutter
from collector.interruptor import OutOfTime, Stopping
from collector.jobs.job import Job, JobError
from collector.jobs.job_files import job_head
from collector.jobs.making import make_policy, make_venv, transforms_with_statistics
from collector.jobs.plan import Plan
from collector.jobs.transform_statistics import States, statistics_of, write_statistics
from collector.store.safe_folder import DatasetError
from collector.store.writer import StoreWriter
from collector.sync_collector import SyncDataCollector
from vecenv import nest
from vecenv.errors import VectorEnvError
from vecenv.extending import Leaf, common_layout

BATCH_BYTES = 64 * 2**20
BATCH_STEPS = 64
Episodes = Sequence[Episode] | EpisodeBatch
OpenFolder = Callable[[dict[str, Any]], "Commits | None"]
"""Opens the folder for the data set that a head describes; None: only the head was wanted."""
OnPlayed = Callable[[list[int], list[float]], object]
"""Takes the lengths and returns of episodes that have ended."""


class JobFailedError(JobError):
    """More episodes failed than the job allows."""


class _State(msgspec.Struct, frozen=True):
    """The state that commits of a job leave in the manifest, besides episodes."""

    skipped: list[int] = []


def skipped_in(state: Any) -> set[int]:
    """The numbers of the episodes that earlier runs have given up, from the state in a manifest (None: there is none).

    >>> skipped_in({"skipped": [3, 7]})
    {3, 7}
    >>> skipped_in({"skipped": 3})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    collector.store.safe_folder.DatasetError: its state is no state of a job: Expected `array`, got `int`...
    """
    try:
        return {*msgspec.convert({} if state is None else state, _State).skipped}
    except msgspec.ValidationError as error:
        raise DatasetError(f"its state is no state of a job: {error}") from None


@dataclass(kw_only=True)
class Tally:
    """The figures of a run, which its player keeps."""

    frames: int = 0
    """Steps that were taken in this run, those of episodes that are not whole too."""
    retried: int = 0
    """How often an episode whose env had failed was played again in this run."""
    skipped: dict[int, str] = field(default_factory=dict)
    """Numbers of the episodes that were given up in this run, with the last error of each."""
    notes: list[str] = field(default_factory=list)
    """What there is to know about a run that was resumed, its envs, and the tasks on a cluster."""
    bottleneck: str = ""
    """What most of the time goes to, and its share: "envs 80 %"; "idle" is what the job does with the episodes."""


class Commits:
    """Gives whole episodes to a writer, and commits them, between slices of play, when they are large or old enough.

    With the `tally` and the `plan` of a job, commits count its failures, and name for the next run what is skipped.
    """

    def __init__(self, writer: StoreWriter, job: Job, tally: Tally | None = None, plan: Plan | None = None) -> None:
        self.writer, self._job, self._tally, self._plan = writer, job, tally, plan
        self._noted = {"retried": 0, "skipped": 0}
        self._statistics: States | None = None
        self._due = float("inf")

    def add(self, episodes: Episodes, statistics: States | None) -> None:
        """Take episodes, and what the transforms have learnt by then, which is stored with them; commit what is due.

        Raises `DatasetError` where the disk refuses a commit.
        """
        self.writer.add(episodes)
        if len(episodes):
            self._due = min(self._due, time.monotonic() + self._job.shard_seconds)
            self._statistics = statistics
        if self.writer.waiting_bytes >= self._job.shard_bytes or time.monotonic() >= self._due:
            self.commit()

    def commit(self) -> None:
        """Commit all that is there."""
        self._due = float("inf")
        if self._statistics is not None:
            write_statistics(self.writer.opened, self._statistics)
        if self._tally is None or self._plan is None:
            self.writer.commit()
        else:
            now = {"retried": self._tally.retried, "skipped": len(self._tally.skipped)}
            failed = {name: count - self._noted[name] for name, count in now.items() if count > self._noted[name]}
            self.writer.commit(failed=failed, state={"skipped": sorted(self._plan.skipped)} if failed else None)
            self._noted = now
        self._statistics = None


class Player:
    """Plays what is left of a plan in this process and its workers, and commits it: a whole job, or a range of it.

    `open_folder` is called after the first batch, which shows what the folder will hold; `on_played` after each batch,
    with the lengths and returns of the episodes that have ended.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        stop: Stopping,
        tally: Tally,
        open_folder: OpenFolder = lambda head: None,
        on_played: OnPlayed = lambda lengths, returns: None,
        *,
        device: str,
    ) -> None:
        self._job, self._plan, self._stop, self._device, self._tally = job, plan, stop, device, tally
        self._open_folder, self._on_played = open_folder, on_played
        self._commits: Commits | None = None
        self._suspects: set[int] = set()
        self._warned: set[str] = set()
        self._learning = bool(transforms_with_statistics(job))
        self.statistics: States | None = None
        """What the transforms of each env had learnt when it was last asked: envs that are made anew begin with it."""

    def play(self) -> None:
        """Play until the plan is complete or a signal came; what is whole is committed then, and after an error too.

        Raises `JobFailedError` where more episodes fail than the job allows, with `on_error="raise"` what the env
        raises, always what the policy raises, and `DatasetError` where the disk refuses a commit.
        """
        try:
            while not self._is_over():
                with suppress(OutOfTime), self._stop.leaving_in_time():
                    self._play_together()
                    for number in sorted(self._suspects):
                        if self._is_over():
                            break
                        self._play_alone(number)
        except BaseException:
            with suppress(DatasetError):  # the first error is raised
                self._commit()
            raise
        self._commit()

    def _commit(self) -> None:
        if self._commits is not None:
            self._commits.commit()

    def _is_over(self) -> bool:
        return self._plan.is_complete or self._stop.is_stopped

    def _play_together(self) -> None:
        plan = self._plan
        if plan.is_exhausted:
            return
        try:
            with make_venv(self._job, self.statistics) as env, self._collector(env, plan) as batches:
                cutter = EpisodeCutter()
                # With an env that always fails there would be no end.
                most = self._job.max_failed + self._job.num_envs
                while not (self._is_over() or plan.is_exhausted or len(self._suspects) > most):
                    batch = self._next_batch(batches)
                    self._suspect(batch.broken_ids.tolist())
                    whole = cutter.cut(batch)
                    infinite = [each.number for each in whole if not np.isfinite(each.reward).all()]
                    self._suspect(infinite)
                    self._keep(batches, [each for each in whole if each.number not in infinite] if infinite else whole)
        except Exception as error:
            if self._job.on_error == "raise" or not plan.playing or not is_of_env(error):
                raise
            self._suspect([error.traj_id] if isinstance(error, RewardError) else [*plan.playing])
        finally:
            plan.again(plan.playing)  # what was in progress

    def _play_alone(self, number: int) -> None:
        """Play one episode again until it ends well, or give it up."""
        job, reason = _alone(self._job), "its env failed"
        for _ in range(self._job.retries):
            self._tally.retried += 1
            try:
                seeds = Plan(self._plan.job_seed, numbers=[number])
                with make_venv(job, self.statistics) as env, self._collector(env, seeds) as batches:
                    cutter, episodes = EpisodeCutter(), list[Episode]()
                    while not episodes:
                        if self._stop.is_stopped:
                            return
                        episodes = list(cutter.cut(self._next_batch(batches)))
                    if not np.isfinite(episodes[0].reward).all():
                        raise RewardError(f"episode {number} has an infinite reward")
                    self._suspects.discard(number)
                    self._keep(batches, episodes)
                return
            except Exception as error:
                if not is_of_env(error):
                    raise
                reason = f"{type(error).__name__}: {error}"
        self._suspects.discard(number)
        give_up(self._job, self._plan, self._tally, {number: reason})

    def _collector(self, env: Any, seeds: Iterable[tuple[int, int]]) -> SyncDataCollector:
        return SyncDataCollector(
            env,
            make_policy(self._job, env, self._device),
            frames_per_batch=env.env_num * steps_per_batch(self._job, env),
            interruptor=self._stop,
            policy_threads=self._job.policy_threads,
            episode_seeds=seeds,
        )

    def _next_batch(self, batches: SyncDataCollector) -> Any:
        self._stop.begin_slice()
        with warnings.catch_warnings(record=True) as caught:
            # Failures are counted here, and their episodes played again.
            warnings.filterwarnings("ignore", ".*broke off where envs failed", RuntimeWarning)
            warnings.filterwarnings("always", ".*they wait more than they compute", RuntimeWarning)
            batch = batches.rollout()
        for each in caught:
            text = str(each.message)
            if waits := re.match("(.*they wait more than they compute).* num_workers=([0-9]+)", text):
                note = f"{waits[1]}; num_workers = {waits[2]} gives each its own worker"
                self._tally.notes += [note] if note not in self._tally.notes else []
            elif text not in self._warned:
                self._warned.add(text)
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        self._tally.frames += batch.frames
        return batch

    def _keep(self, batches: SyncDataCollector, episodes: Episodes) -> None:
        with self._stop.finishing():
            self.take(batches, episodes)
        for episode in episodes:
            self._plan.finished(episode.number, len(episode))

    def take(self, batches: SyncDataCollector, episodes: Episodes) -> None:
        """Commit the episodes that have ended in a batch, when that is due."""
        if self._commits is None:
            self._commits = self._open_folder(job_head(self._job, batches, self._device))
            if self._commits is None:
                self._stop.stop_collection()
                return
        if self._learning and len(episodes) and (found := statistics_of(batches.env)) is not None:
            # There may be fewer envs than statistics: an episode is played alone.
            self.statistics = [*found, *(self.statistics or [])[len(found) :]]
        self._tally.bottleneck = batches.stats().bottleneck_share
        self._commits.add(episodes, self.statistics if self._learning else None)
        self._on_played([len(each) for each in episodes], [each.total_reward for each in episodes])

    def _suspect(self, numbers: list[int]) -> None:
        self._suspects.update(numbers)
        self._plan.set_aside(numbers)


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
