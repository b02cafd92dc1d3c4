"""Running a job: from its settings to whole episodes in a folder, as often as it takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from collector.interruptor import Stopping
from collector.jobs.job import Job, JobError
from collector.jobs.job_files import (
    SAME,
    check_folder,
    check_same_job,
    check_unchanged,
    job_of,
    notes_on,
    read_job_head,
    stored_job,
    with_settings,
)
from collector.jobs.look import Metrics, import_tensorboard, spread
from collector.jobs.making import check_env, resolve_device, transforms_with_statistics, wrappers_with_statistics
from collector.jobs.on_ray import RayPlayer, check_cluster, connect_to, device_of_tasks
from collector.jobs.plan import Plan
from collector.jobs.playing import Commits, Player, Tally, skipped_in
from collector.jobs.transform_statistics import States, read_statistics, with_frozen
from collector.store.manifest import MANIFEST, Manifest, read_manifest
from collector.store.safe_folder import LOCK, DatasetError
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
    """Since the first step of this run."""
    workers: int = 1
    actors: int = 0
    """How many tasks play at once on a Ray cluster, each with the envs and workers of the job; 0: the job runs in this
    process."""
    device: str = "cpu"
    status: str = "failed"
    """"complete" or "interrupted" once the job has ended so; "failed" before."""
    signum: int = 0
    """The signal that ended the job; 0: none did."""
    repeatable: bool = False
    """Whether another run of the job gives the same bits."""

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
        return float(np.mean(self.returns[-RECENT:])) if self.returns else float("nan")

    def rows(self) -> dict[str, str]:
        """Its figures, by name."""
        found = {
            "job": f"{self.job.env}, seed {self.job.seed}: {self.status}",
            "data": str(self.out),
            "episodes": f"{self.episodes:,}",
            "steps": f"{self.steps:,}",
            "speed": f"{self.steps_per_second:,.0f} steps/s for {self.seconds:.1f} s in this run",
        }
        for name, values in (("return", self.returns), ("length", self.lengths)):
            if values:
                found[f"{name} in this run"] = "mean {mean:,.1f}, from {min:g} to {max:g}".format(
                    **spread(np.array(values)) or {}
                )
        if self.skipped:
            found["skipped"] = f"{len(self.skipped):,} episodes"
        return found

    def __repr__(self) -> str:
        return "JobState\n" + "\n".join(f"  {name:19} {text}" for name, text in self.rows().items())

    def _repr_html_(self) -> str:
        cells = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in self.rows().items())
        return f"<table>{cells}</table>"


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
    return _Run(with_frozen(job), Path(out), tensorboard, on_progress, cluster, cluster_actors).start(overwrite)


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
    that it names must be in `allow_import` (see `job_of`). `settings` as in `load_job`; they may only change where
    episodes are played and how they are stored (`backend`, `num_workers`, ...). `cluster`, `cluster_actors`: as for
    `run_job`, wherever the job has run before. Raises as `run_job` does.

    Example::

        state = resume_job("data/cartpole", settings=["backend=dummy"])
    """
    folder = Path(out)
    stored = job_of(folder, allow_import) if job is None else stored_job(folder)
    wanted = with_settings(stored if job is None else with_frozen(job), settings)
    check_same_job(folder, stored, wanted)
    return _Run(wanted, folder, tensorboard, on_progress, cluster, cluster_actors).resume()


class _Run:
    """One run of a job."""

    def __init__(
        self,
        job: Job,
        out: Path,
        tensorboard: bool,
        on_progress: Progress,
        cluster: str | None,
        cluster_actors: int | None,
    ) -> None:
        check_env(job)
        check_cluster(job, cluster, cluster_actors)
        if tensorboard:
            import_tensorboard()  # rather now than after the first batch
        self._job, self._out, self._tensorboard, self._on_progress = job, out, tensorboard, on_progress
        self._cluster, self._cluster_actors = cluster, cluster_actors
        self.state = JobState(job=job, out=out, device=resolve_device(job) if cluster is None else device_of_tasks(job))
        self._plan = Plan(job.seed, job.episodes, job.steps)
        self._statistics: States | None = None
        """Those of an earlier run."""
        self._commits: Commits | None = None  # until it is known what the folder will hold
        self._metrics: Metrics
        self._began = 0.0

    def start(self, overwrite: bool) -> JobState:
        """Run it in a folder that is new, or whose content is replaced once the job has seen its first batch."""
        is_new, compress = not self._out.exists(), self._job.compress
        check_folder(self._out, overwrite)
        try:
            return self._run(lambda head: StoreWriter(self._out, head, overwrite=overwrite, compress=compress))
        finally:
            if is_new and self._commits is None:  # the job has not begun
                with suppress(OSError):
                    (self._out / LOCK).unlink()
                    self._out.rmdir()

    def resume(self) -> JobState:
        """Run what is left of it."""
        if names := wrappers_with_statistics(self._job):
            raise JobError(
                f"{', '.join(names)} had statistics of the episodes before, which a job that is resumed has not; "
                "run it again with the transforms VecNorm or NormalizeReward, whose statistics are stored"
            )
        stored, manifest = read_job_head(self._out), read_manifest(self._out)
        if manifest.end is not None:
            self._restore(manifest)
            self.state.notes.append("it was complete already")
            return self._completed()
        options: dict[str, Any] = {"compress": self._job.compress, "check": self._restore}
        with closing(StoreWriter(self._out, stored, resume=True, **options)) as writer:

            def go_on(head: dict[str, Any]) -> StoreWriter:
                check_unchanged(self._out, *({name: each[name] for name in SAME} for each in (stored, head)))
                self.state.notes += notes_on(stored, head)
                return writer

            return self._run(go_on)

    def _restore(self, manifest: Manifest) -> None:
        """Take up where the job was. Raises `DatasetError`."""
        index = manifest.index
        try:
            self._plan.restore(index["number"], index["length"], skipped_in(manifest.state))
        except DatasetError as error:
            raise DatasetError(f"{self._out / MANIFEST}: {error}") from None
        if transforms_with_statistics(self._job) and len(index) and manifest.end is None:
            self._statistics = read_statistics(self._out, self._job.num_envs)
        self.state.steps, self.state.episodes = int(index["length"].sum()), len(index)

    def _run(self, open_writer: Callable[[dict[str, Any]], StoreWriter]) -> JobState:
        state, plan = self.state, self._plan
        with ExitStack() as context:
            cluster = None
            if self._cluster is not None:  # first, because Ray sets a handler of SIGTERM of its own
                cluster = context.enter_context(connect_to(self._cluster))
            files = context.enter_context(ExitStack())
            stop = context.enter_context(Stopping())

            def open_folder(head: dict[str, Any]) -> Commits:
                state.repeatable, ran_on = head["repeatable"], head["ran_on"]
                state.workers = 0 if ran_on["vector_env"] == DummyVectorEnv.__name__ else ran_on["num_workers"]
                writer = files.enter_context(closing(open_writer(head)))
                self._metrics = files.enter_context(closing(Metrics(writer.opened, self._tensorboard)))
                self._commits = Commits(writer, self._job, state, plan)
                return self._commits

            player: Player | RayPlayer
            shared = self._job, plan, stop, state, open_folder, self._played
            if cluster is None:
                player = Player(*shared, device=state.device)
                player.statistics = self._statistics
            else:
                player = RayPlayer(*shared, cluster, self._cluster_actors, self._out)
                state.actors = player.count
            self._began = time.monotonic()
            player.play()
            if plan.is_complete and self._commits is not None:
                self._commits.writer.end(episodes=plan.end)
                self._completed()
            else:
                state.status, state.signum = "interrupted", stop.signum
            if self._commits is not None:
                self._metrics.write(self._numbers, now=True)
        return state

    def _completed(self) -> JobState:
        plan, state = self._plan, self.state
        state.status, state.steps, state.episodes = "complete", plan.end_steps, plan.end_episodes
        return state

    def _played(self, lengths: list[int], returns: list[float]) -> None:
        """Count episodes that have been played, and report the progress."""
        state = self.state
        state.returns += returns
        state.lengths += lengths
        state.episodes += len(lengths)
        state.steps += sum(lengths)
        state.seconds = time.monotonic() - self._began
        self._metrics.write(self._numbers)
        self._on_progress(state)

    def _numbers(self) -> dict[str, Any]:
        """The figures for `metrics.jsonl`."""
        state = self.state
        recent: dict[str, float] = {}
        if state.returns:
            recent = {"mean_return": state.recent_return, "mean_length": float(np.mean(state.lengths[-RECENT:]))}
        return {
            "seconds": round(state.seconds, 3),
            "steps": state.steps,
            "episodes": state.episodes,
            "steps_per_second": round(state.steps_per_second, 1),
            **recent,
            "skipped": len(state.skipped),
            "bottleneck": state.bottleneck,
        }
