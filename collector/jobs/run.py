"""`run`: run a job until all episodes are stored, and resume a job that was interrupted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collector.basics.interruptor import Stopping
from collector.jobs.job import Job, JobError
from collector.jobs.job_files import (
    check_head,
    check_unchanged,
    compared,
    read_job,
    with_settings,
)
from collector.jobs.look import Metrics, import_tensorboard, spread
from collector.jobs.making import check_env, resolve_device, transforms_with_statistics, wrappers_with_statistics
from collector.jobs.names import check_names
from collector.jobs.on_ray import RayPlayer, check_cluster, connect_to, device_of_tasks
from collector.jobs.plan import Plan
from collector.jobs.playing import Commits, Episodes, HeadOf, JobFailedError, Player, Tally, skipped_in
from collector.jobs.transform_statistics import States, read_statistics, with_frozen
from collector.store.dataset_folder import check_folder
from collector.store.manifest import MANIFEST, Manifest, read_manifest
from collector.store.safe_folder import DatasetError
from collector.store.writer import StoreWriter
from vecenv.venvs import DummyVectorEnv

RECENT = 100
"""Episodes in a mean that is shown while a job runs."""


@dataclass(repr=False, kw_only=True)
class JobState(Tally):
    """The progress of a job, passed to `on_progress` and returned at its end."""

    job: Job
    out: Path
    steps: int = 0
    """Steps of the whole episodes, those of earlier runs included."""
    episodes: int = 0
    """Whole episodes, those of earlier runs included."""
    returns: list[float] = field(default_factory=list)
    """The return of each episode of this run, in the order of their ends."""
    lengths: list[int] = field(default_factory=list)
    seconds: float = 0.0
    """Seconds since the first step of this run."""
    workers: int = 1
    actors: int = 0
    """The number of tasks that play at once on a Ray cluster, each with the envs and workers of the job; 0: the job
    runs in this process."""
    device: str = "cpu"
    status: str = "failed"
    """"complete" or "interrupted" once the job has ended so; "failed" before."""
    signum: int = 0
    """The signal that ended the job; 0: none did."""
    repeatable: bool = False
    """True if another run of the job gives the same bits."""

    @property
    def steps_per_second(self) -> float:
        """Steps collected a second in this run."""
        return self.frames / self.seconds if self.seconds else 0.0

    @property
    def done(self) -> float:
        """The share of the job that is done."""
        if self.job.episodes is not None:
            return min(1.0, self.episodes / self.job.episodes)
        return min(1.0, self.steps / (self.job.steps or 1))

    @property
    def recent_return(self) -> float:
        """The mean return of the last 100 episodes; NaN where there are none."""
        found = spread(np.array(self.returns[-RECENT:]))
        return found["mean"] if found else float("nan")

    @property
    def mean_return(self) -> tuple[float, float]:
        """The mean return of all episodes of this run, and half of its 95 % confidence interval; NaN without episodes,
        and for the interval of a single episode.
        """
        found, count = spread(np.array(self.returns)), len(self.returns)
        if not found:
            return float("nan"), float("nan")
        return found["mean"], 1.96 * found["std"] / (count - 1) ** 0.5 if count > 1 else float("nan")

    def returns_in_words(self) -> str:
        """The mean return of this run, and of its last 100 episodes."""
        mean, half = self.mean_return
        text = f"mean return {mean:,.1f}" + (f" \N{PLUS-MINUS SIGN} {half:,.1f}" if half == half else "")
        return f"{text} (last {RECENT}: {self.recent_return:,.1f})" if len(self.returns) > RECENT else text

    def metrics(self) -> dict[str, Any]:
        """The figures for a line of `metrics.jsonl`."""
        means = {"mean_return": self.recent_return, "mean_length": float(np.mean(self.lengths[-RECENT:] or [0]))}
        return {
            "seconds": round(self.seconds, 3),
            "steps": self.steps,
            "episodes": self.episodes,
            "steps_per_second": round(self.steps_per_second, 1),
            **(means if self.returns else {}),
            "skipped": len(self.skipped),
            "bottleneck": self.bottleneck,
        }

    def __repr__(self) -> str:
        figures = f"{self.episodes:,} episodes, {self.steps:,} steps, {self.steps_per_second:,.0f} steps/s"
        means = f", {self.returns_in_words()}" if self.returns else ""
        return f"JobState({self.job.env} in {self.out}, {self.status}: {figures}{means}, {len(self.skipped)} skipped)"


Progress = Callable[[JobState], None]


def run_job(
    job: Job,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    cluster: str | None = None,
    cluster_actors: int | None = None,
    tensorboard: bool = False,
    on_progress: Progress = lambda state: None,
) -> JobState:
    """Collect the episodes of a job into the folder `out`, and return what was done.

    `overwrite`: replace what an earlier job wrote there. `cluster`: the address of a Ray cluster, as `ray.init` takes
    it, whose tasks each play a range of episodes, with the envs of the job: "auto" is the one that runs here, or one
    that is started; all its nodes must see the folder. `cluster_actors`: how many play at once; None: as many as there
    are free CPUs. `on_progress` is called after every batch. A signal (handled in the main thread only) or an exception
    commits the whole episodes so far; `resume_job` goes on from them. Raises `DatasetError` where the folder cannot be
    used or written to, `JobError` where the settings or the env do not allow the job, `JobFailedError` where too many
    episodes failed, and what the policy raises; on a cluster also `WorkerTimeoutError` where no task finds a place.

    Example::

        state = run_job(Job(env="CartPole-v1", episodes=400), "data/cartpole")
        print(state.status, state.steps)
    """
    run = _Run(with_frozen(job), Path(out), cluster, cluster_actors, tensorboard, on_progress)
    check_folder(run.out, overwrite)
    return run.play(lambda head: StoreWriter(run.out, head, overwrite=overwrite, compress=job.compress))


def resume_job(
    out: str | os.PathLike[str],
    job: Job | None = None,
    settings: Iterable[str] = (),
    *,
    allow_import: Iterable[str] = (),
    cluster: str | None = None,
    cluster_actors: int | None = None,
    tensorboard: bool = False,
    on_progress: Progress = lambda state: None,
) -> JobState:
    """Go on with the job of a folder, where it was: nothing that was committed is lost or played again.

    `job`: what it should be; `JobError` says what differs from what is stored. None: the stored one, and then modules
    that it names must be in `allow_import`: the folder may come from anybody. `settings` as in `load_job`; they may
    only change where episodes are played and how they are stored (`backend`, `num_workers`, ...). `cluster`,
    `cluster_actors`: as for `run_job`, wherever the job has run before. Raises as `run_job` does.

    Example::

        state = resume_job("data/cartpole", settings=["backend=dummy"])
    """
    folder = Path(out)
    stored, head = read_job(folder)
    if job is None:
        check_names(stored, allow_import, folder)
    wanted = with_settings(stored if job is None else with_frozen(job), settings)
    check_unchanged(folder, compared(stored), compared(wanted))
    run = _Run(wanted, folder, cluster, cluster_actors, tensorboard, on_progress)
    if names := wrappers_with_statistics(wanted):
        raise JobError(
            f"{', '.join(names)} had statistics of the episodes before, which a job that is resumed has not; "
            "run it again with the transforms VecNorm or NormalizeReward, whose statistics are stored"
        )
    manifest = read_manifest(folder)
    if manifest.end is not None:
        run.restore(manifest)
        run.state.notes.append("it was complete already")
        return run.completed(head["repeatable"])
    with closing(StoreWriter(folder, head, resume=True, compress=wanted.compress, check=run.restore)) as writer:

        def go_on(now: dict[str, Any]) -> StoreWriter:
            run.state.notes += check_head(folder, head, now)
            return writer

        run.state.repeatable = head["repeatable"]
        return run.play(go_on, writer)


@dataclass
class _Run:
    """One run of a job, new or resumed."""

    job: Job
    out: Path
    cluster: str | None
    cluster_actors: int | None
    tensorboard: bool
    on_progress: Progress
    statistics: States | None = None
    """The statistics of an earlier run."""
    metrics: Metrics | None = None
    """None until the folder is opened, after the first batch."""
    began: float = 0.0

    def __post_init__(self) -> None:
        job = self.job
        check_env(job)
        check_cluster(job, self.cluster, self.cluster_actors)
        if self.tensorboard:
            import_tensorboard()  # rather now than after the first batch
        device = resolve_device(job) if self.cluster is None else device_of_tasks(job)
        self.plan, self.state = Plan(job.seed, job.episodes, job.steps), JobState(job=job, out=self.out, device=device)

    def restore(self, manifest: Manifest) -> None:
        """Take up where the job was. Raises `DatasetError`."""
        index = manifest.index
        try:
            self.plan.restore(index["number"], index["length"], skipped_in(manifest.state))
        except DatasetError as error:
            raise DatasetError(f"{self.out / MANIFEST}: {error}") from None
        if transforms_with_statistics(self.job) and len(index) and manifest.end is None:
            self.statistics = read_statistics(self.out, self.job.num_envs)
        self.state.steps, self.state.episodes = int(index["length"].sum()), len(index)

    def play(
        self, open_writer: Callable[[dict[str, Any]], StoreWriter], resumed: StoreWriter | None = None
    ) -> JobState:
        """Play the rest of the episodes into the folder that `open_writer` opens, with the head of its first batch.

        `resumed`: the writer of a job that goes on, in which no batch may be left to play.
        """
        job, plan, state = self.job, self.plan, self.state
        with ExitStack() as context:
            cluster = None
            if self.cluster is not None:  # first, because Ray sets a handler of SIGTERM of its own
                cluster = context.enter_context(connect_to(self.cluster))
            stop = context.enter_context(Stopping())

            def open_files(head: dict[str, Any]) -> StoreWriter:
                state.repeatable, ran_on = head["repeatable"], head["ran_on"]
                state.workers = 0 if ran_on["vector_env"] == DummyVectorEnv.__name__ else ran_on["num_workers"]
                writer = context.enter_context(closing(open_writer(head)))
                self.metrics = context.enter_context(closing(Metrics(writer.opened, self.tensorboard)))
                return writer

            def take(head_of: HeadOf, episodes: Episodes, statistics: States | None) -> None:
                if commits.writer is None:
                    commits.open(head_of(job))
                commits.add(episodes, statistics)
                self.played([len(each) for each in episodes], [each.total_reward for each in episodes])

            player: Player | RayPlayer
            commits = Commits(job, plan, state, open_files)
            if cluster is None:
                player = Player(job, plan, stop, state, take, state.device, self.statistics)
            else:
                player = RayPlayer(job, plan, stop, state, commits, self.played, cluster, self.cluster_actors, self.out)
                state.actors = player.places
            self.began = time.monotonic()
            with commits:
                player.play()
            if not plan.is_complete:
                state.status, state.signum = "interrupted", stop.signum
            elif (writer := commits.writer or resumed) is None:
                number, error = max(state.skipped.items())
                raise JobFailedError(f"each of its episodes failed; episode {number}, as the last one, with {error}")
            else:
                commits.writer = writer
                commits.commit()  # failures, where no batch came
                writer.end(episodes=plan.end)
                self.completed(state.repeatable)
            if self.metrics is not None:
                self.metrics.write(state.metrics, now=True)
        return state

    def completed(self, repeatable: bool) -> JobState:
        """Return the state, with the figures of the whole job."""
        plan, state = self.plan, self.state
        state.status, state.steps, state.episodes = "complete", plan.end_steps, plan.end_episodes
        state.repeatable = repeatable
        return state

    def played(self, lengths: list[int], returns: list[float]) -> None:
        """Count episodes that have been played, and report the progress."""
        state = self.state
        state.returns += returns
        state.lengths += lengths
        state.episodes += len(lengths)
        state.steps += sum(lengths)
        state.seconds = time.monotonic() - self.began
        if self.metrics is not None:
            self.metrics.write(state.metrics)
        self.on_progress(state)
