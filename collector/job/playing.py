"""Playing the episodes of a plan: together, and those whose env failed alone.

    plan --(number, seed)--> collector --batches--> whole episodes --> committer --> shards
      ^                          |
      |                      an env fails: its episode is set aside
      +-- finished, skipped <-- played again alone, `retries` times <--+

An episode that breaks off may not be to blame: the worker that an env takes down hosts other envs too, and an error
that is raised ends the batch of all. So each of them is played again with no other beside it, and only one that fails
there is skipped. Which episodes a job has does not depend on who shared a worker with whom.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import gymnasium
import msgspec
import numpy as np

from collector.batch.rewards import RewardError
from collector.episodes.episode import Episode, EpisodeCutter
from collector.episodes.seeds import EpisodeSeeds
from collector.job.job import Job, JobError
from collector.job.make_envs import make_venv
from collector.job.statistics.kept import States, statistics_of
from collector.job.stopping import OutOfTime, Stopping
from collector.sync_collector import SyncDataCollector
from vecenv.errors import VectorEnvError

BATCH_BYTES = 64 * 2**20
BATCH_STEPS = 64


class JobFailedError(JobError):
    """More episodes failed than the job allows."""


class Numbers(Protocol):
    """What a player plays: the `Plan` of a job, or the part of it that an actor of a cluster has got."""

    job_seed: int
    playing: set[int]

    def __iter__(self) -> Iterator[tuple[int, int]]: ...
    def __next__(self) -> tuple[int, int]: ...
    def finished(self, number: int, length: int) -> None: ...
    def again(self, numbers: Iterable[int]) -> None: ...
    def set_aside(self, numbers: Iterable[int]) -> None: ...
    @property
    def is_complete(self) -> bool: ...
    @property
    def is_exhausted(self) -> bool: ...


class Player:
    """Plays what is left of a plan.

    `make_policy(env)` is called for each vector env that is made, and `on_batch(batches, episodes)` after each batch,
    with the collector and the whole episodes that have ended.
    """

    def __init__(
        self,
        job: Job,
        plan: Numbers,
        stop: Stopping,
        make_policy: Callable[[Any], Any],
        on_batch: Callable[[SyncDataCollector, list[Episode]], None],
    ) -> None:
        self._job, self._plan, self._stop = job, plan, stop
        self._make_policy, self._on_batch = make_policy, on_batch
        self._suspects: set[int] = set()
        self.frames = 0
        """Steps taken, those of episodes that are not whole too."""
        self.failures = 0
        """How often an episode broke off, or had a reward that is no number; those that share a worker all count."""
        self.retried = 0
        """How often an episode was played again alone."""
        self.skipped_before = 0
        """Episodes that earlier runs of the job have given up."""
        self.statistics: States | None = None
        """What the transforms of each env had learnt when it was last asked: envs that are made anew begin with it."""
        self.skipped: dict[int, str] = {}
        """Episodes that were given up, with the last error of each."""

    def play(self) -> None:
        """Play until the plan is complete or a signal came.

        Raises `JobFailedError` where more episodes fail than the job allows, with `on_error="raise"` what the env
        raises, and always what the policy raises.
        """
        for _ in self.batches():
            pass

    def batches(self) -> Iterator[None]:
        """As `play`, with a pause after each batch, and after each episode that is played again."""
        while not self._is_over():
            try:
                with self._stop.leaving_in_time():
                    yield from self._play_together()
                    for number in sorted(self._suspects):
                        if self._is_over():
                            break
                        yield from self._play_alone(number)
                        yield
            except OutOfTime:
                break

    @property
    def has_work(self) -> bool:
        """Whether there is something to play now."""
        return bool(self._suspects) or not self._plan.is_exhausted

    def _is_over(self) -> bool:
        return self._plan.is_complete or self._stop.is_stopped

    def _play_together(self) -> Iterator[None]:
        plan = self._plan
        if plan.is_exhausted:
            return
        try:
            with make_venv(self._job, self.statistics) as env, self._collector(env, plan) as batches:
                cutter = EpisodeCutter()
                while not (plan.is_complete or plan.is_exhausted or self._are_many_suspect()):
                    batch = self._next_batch(batches)
                    self._suspect(batch.broken_ids.tolist())
                    whole = list(cutter.cut(batch))
                    finite = [episode for episode in whole if np.isfinite(episode.reward).all()]
                    self._suspect([episode.number for episode in whole if episode not in finite])
                    self._keep(batches, finite)
                    if self._stop.is_stopped:
                        return
                    yield
        except Exception as error:
            if self._job.on_error == "raise" or not plan.playing or not is_of_env(error):
                raise
            if isinstance(error, RewardError):
                self._suspect([error.traj_id])
            else:
                self._suspect(list(plan.playing))
        finally:
            plan.again(plan.playing)  # what was in progress

    def _play_alone(self, number: int) -> Iterator[None]:
        """Play one episode again until it ends well, or give it up."""
        job = _alone(self._job)
        last: Exception | None = None
        for _ in range(self._job.retries):
            self.retried += 1
            try:
                seeds = EpisodeSeeds(self._plan.job_seed, [number])
                with make_venv(job, self.statistics) as env, self._collector(env, seeds) as batches:
                    cutter, episodes = EpisodeCutter(), list[Episode]()
                    while not episodes:
                        if self._stop.is_stopped:
                            return
                        episodes = list(cutter.cut(self._next_batch(batches)))
                        yield
                    _check_finite(episodes[0])
                    self._suspects.discard(number)
                    self._keep(batches, episodes)
                return
            except Exception as error:
                if not is_of_env(error):
                    raise
                last = error
        self._skip(number, "its env failed" if last is None else f"{type(last).__name__}: {last}")

    def _skip(self, number: int, reason: str) -> None:
        self._suspects.discard(number)
        self.skipped[number] = reason
        check_budget(self._job, self.skipped_before + len(self.skipped), number, reason)
        self._plan.finished(number, 0)

    def _collector(self, env: Any, seeds: Iterable[tuple[int, int]]) -> SyncDataCollector:
        steps = steps_per_batch(self._job, env)
        return SyncDataCollector(
            env,
            self._make_policy(env),
            frames_per_batch=env.env_num * steps,
            interruptor=self._stop,
            policy_threads=self._job.policy_threads,
            episode_seeds=seeds,
        )

    def _next_batch(self, batches: SyncDataCollector) -> Any:
        self._stop.begin_slice()
        with warnings.catch_warnings():  # failures are counted here, and their episodes played again
            warnings.filterwarnings("ignore", ".*broke off where envs failed", RuntimeWarning)
            batch = batches.rollout()
        self.frames += batch.frames
        return batch

    def ask_statistics(self, venv: Any) -> States | None:
        """What the transforms of all envs have learnt, where `venv` has some or all of these."""
        found = statistics_of(venv)
        if found is not None:
            self.statistics = [*found, *(self.statistics or [])[len(found) :]]
        return self.statistics

    def _keep(self, batches: SyncDataCollector, episodes: list[Episode]) -> None:
        self._on_batch(batches, episodes)
        for episode in episodes:
            self._plan.finished(episode.number, len(episode))

    def _suspect(self, numbers: list[int]) -> None:
        self._suspects.update(numbers)
        self.failures += len(numbers)
        self._plan.set_aside(numbers)

    def _are_many_suspect(self) -> bool:
        """Whether the budget may be spent: with an env that always fails there would be no end."""
        return len(self._suspects) > self._job.max_failed + self._job.num_envs


def check_budget(job: Job, count: int, number: int, reason: str) -> None:
    """Raise `JobFailedError` where `count` skipped episodes, of which this is the last, are too many."""
    if count > job.max_failed:
        raise JobFailedError(
            f"{count} episodes failed, and max_failed is {job.max_failed}; episode {number}, "
            f"played {job.retries + 1} times, failed with {reason}"
        )


def is_of_env(error: BaseException) -> bool:
    """Whether an error is that of an env, and not of the policy or this program: a vector env has marked it."""
    if isinstance(error, RewardError):
        return not error.policy
    return isinstance(error, VectorEnvError) or hasattr(error, "partial")


def _alone(job: Job) -> Job:
    """The job for one episode: its error is raised. Random actions do not depend on how many envs there are, and the
    others have as many rows as before, of which one is used.
    """
    backend = "shmem" if job.backend == "auto" else job.backend  # "auto" would take this process for one env
    if job.policy != "random":
        return msgspec.structs.replace(job, on_error="raise", backend=backend)
    return msgspec.structs.replace(job, on_error="raise", backend=backend, num_envs=1, num_workers=None)


def _check_finite(episode: Episode) -> None:
    """Raise `RewardError` where a reward is infinite; NaN does not get so far."""
    if not np.isfinite(episode.reward).all():
        raise RewardError(f"episode {episode.number} has an infinite reward")


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
