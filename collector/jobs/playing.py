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
from typing import Any

import gymnasium
import msgspec
import numpy as np

from collector.batch.rewards import RewardError
from collector.episodes.episode import Episode, EpisodeCutter
from collector.interruptor import OutOfTime, Stopping
from collector.jobs.job import Job, JobError
from collector.jobs.making import make_policy, make_venv
from collector.jobs.plan import Plan
from collector.jobs.transform_statistics import States, statistics_of, write_statistics
from collector.store.safe_folder import DatasetError
from collector.store.writer import StoreWriter
from collector.sync_collector import SyncDataCollector
from vecenv.errors import VectorEnvError

BATCH_BYTES = 64 * 2**20
BATCH_STEPS = 64


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


class Commits:
    """Gives whole episodes to a writer, and commits them, between slices of play, when they are large or old enough."""

    def __init__(self, writer: StoreWriter, job: Job) -> None:
        self.writer, self._job = writer, job
        self._episodes: list[Episode] = []
        self._bytes = 0.0
        self._due = float("inf")
        self._failed: dict[str, int] = {}
        self._state: Any = None
        self._statistics: States | None = None
        self.is_broken = False
        """Whether a commit has failed: there can be no other."""

    def note(self, failed: dict[str, int], state: Any) -> None:
        """Store these counts of failures, and a state that the next run is to find, with the next commit."""
        for name, count in failed.items():
            self._failed[name] = self._failed.get(name, 0) + count
        self._state = state

    def add(self, episodes: Sequence[Episode], statistics: States | None = None) -> None:
        """Take episodes, and what the transforms have learnt by then, which is stored with them; commit what is due.

        Raises `DatasetError` where the disk refuses a commit.
        """
        if episodes:
            if not self._episodes:
                self._due = time.monotonic() + self._job.shard_seconds
            self._episodes += episodes
            self._statistics = statistics
            # About: a multiplication in the place of a sum over all arrays.
            self._bytes += episodes[0].nbytes / len(episodes[0]) * sum(map(len, episodes))
        if self._bytes >= self._job.shard_bytes or time.monotonic() >= self._due:
            self.commit()

    def commit(self) -> None:
        """Commit all that is there."""
        self.is_broken = True
        if self._episodes:
            self.writer.add(self._episodes)
            self._episodes, self._bytes, self._due = [], 0.0, float("inf")
        if self._statistics is not None:
            write_statistics(self.writer.opened, self._statistics)
        self.writer.commit(failed=self._failed, state=self._state)
        self._failed, self._state, self._statistics, self.is_broken = {}, None, None, False


class Player:
    """Plays what is left of a plan, in this process and its workers.

    `on_batch(batches, episodes)` is called after each batch, with the collector and the whole episodes that have ended.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        stop: Stopping,
        device: str,
        on_batch: Callable[[SyncDataCollector, list[Episode]], None],
    ) -> None:
        self._job, self._plan, self._stop, self._device, self._on_batch = job, plan, stop, device, on_batch
        self._suspects: set[int] = set()
        self._warned: set[str] = set()
        self.policy: Any = None
        self.notes: list[str] = []
        """What there is to know about the envs."""
        self.frames = 0
        """Steps taken, those of episodes that are not whole too."""
        self.retried = 0
        """How often an episode was played again alone."""
        self.skipped_before = 0
        """Episodes that earlier runs of the job have given up."""
        self.skipped: dict[int, str] = {}
        """Episodes that were given up, with the last error of each."""
        self.statistics: States | None = None
        """What the transforms of each env had learnt when it was last asked: envs that are made anew begin with it."""

    def play(self) -> None:
        """Play until the plan is complete or a signal came.

        Raises `JobFailedError` where more episodes fail than the job allows, with `on_error="raise"` what the env
        raises, and always what the policy raises.
        """
        while not self._is_over():
            try:
                with self._stop.leaving_in_time():
                    self._play_together()
                    for number in sorted(self._suspects):
                        if self._is_over():
                            break
                        self._play_alone(number)
            except OutOfTime:
                break

    def ask_statistics(self, venv: Any) -> States | None:
        """Return what the transforms of all envs have learnt, where `venv` has some or all of these."""
        found = statistics_of(venv)
        if found is not None:
            self.statistics = [*found, *(self.statistics or [])[len(found) :]]
        return self.statistics

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
                    whole = list(cutter.cut(batch))
                    finite = [episode for episode in whole if np.isfinite(episode.reward).all()]
                    self._suspect([episode.number for episode in whole if episode not in finite])
                    self._keep(batches, finite)
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
            self.retried += 1
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
        self.skipped[number] = reason
        check_budget(self._job, self.skipped_before + len(self.skipped), number, reason)
        self._plan.finished(number, 0)

    def _collector(self, env: Any, seeds: Iterable[tuple[int, int]]) -> SyncDataCollector:
        self.policy = make_policy(self._job, env, self._device)
        return SyncDataCollector(
            env,
            self.policy,
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
                self.notes.append(f"{waits[1]}; num_workers = {waits[2]} gives each its own worker")
            elif text not in self._warned:
                self._warned.add(text)
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        self.frames += batch.frames
        return batch

    def _keep(self, batches: SyncDataCollector, episodes: list[Episode]) -> None:
        with self._stop.finishing():
            self._on_batch(batches, episodes)
        for episode in episodes:
            self._plan.finished(episode.number, len(episode))

    def _suspect(self, numbers: list[int]) -> None:
        self._suspects.update(numbers)
        self._plan.set_aside(numbers)


def check_budget(job: Job, count: int, number: int, reason: str) -> None:
    """Raise `JobFailedError` where `count` skipped episodes, of which this is the last, are too many."""
    if count > job.max_failed:
        raise JobFailedError(
            f"{count} episodes failed, and max_failed is {job.max_failed}; episode {number}, "
            f"played {job.retries + 1} times, failed with {reason}"
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
    rows = job.num_envs * max(1, _bytes_of(env.observation_space[0]))
    wanted = BATCH_STEPS if job.steps is None else -(-job.steps // job.num_envs)
    return max(1, min(BATCH_STEPS, BATCH_BYTES // rows, wanted))


def _bytes_of(space: gymnasium.Space[Any]) -> int:
    """Size of one observation, roughly where the space has no fixed one."""
    if isinstance(space, gymnasium.spaces.Dict):
        return sum(_bytes_of(part) for part in space.values())
    if isinstance(space, gymnasium.spaces.Tuple):
        return sum(_bytes_of(part) for part in space.spaces)
    return int(np.prod(space.shape)) * np.dtype(space.dtype).itemsize if space.shape is not None else 8
