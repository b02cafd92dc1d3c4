"""`run_job`, `resume_job`: play the episodes of a job, and store them in a folder."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.basics.interruptor import Stopping
from collector.jobs.builders import (
    check_cluster,
    check_env_name,
    device_of_policy,
    transforms_with_statistics,
    wrappers_with_statistics,
)
from collector.jobs.job import Job, JobError
from collector.jobs.job_files import check_unchanged, fixed_settings, read_job, with_settings
from collector.jobs.job_progress import JobState, Metrics, import_tensorboard
from collector.jobs.names import check_names, names_of_script
from collector.jobs.plan import Plan
from collector.jobs.player import EpisodeWriter, JobFailedError, PlayedEpisodes, Player, skipped_in
from collector.jobs.ray_player import RayPlayer, device_of_tasks
from collector.jobs.transform_statistics import States, load_frozen_statistics, read_statistics
from collector.store.dataset_folder import check_folder
from collector.store.dataset_head import HEAD
from collector.store.manifest import MANIFEST, Manifest, read_manifest
from collector.store.safe_folder import DatasetError
from collector.store.writer import StoreWriter
from vecenv import DummyVectorEnv
from vecenv.errors import warn_caller
from vecenv.ray_cluster import RayCluster, connect

Progress = Callable[[JobState], None]


def run_job(
    job: Job,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    resume: bool = False,
    cluster: str | None = None,
    cluster_actors: int | None = None,
    tensorboard: bool = False,
    on_progress: Progress = lambda state: None,
) -> JobState:
    """Collect the episodes of a job into the folder `out`, and return the final state.

    In the main thread, SIGINT and SIGTERM end the job after the envs' current step. A second signal does what it did
    before the call. After a signal or exception, whole episodes are committed. Then SIGINT raises KeyboardInterrupt,
    and SIGTERM raises SystemExit(143). The attribute `state` of this exception is the final state.

    Args:
        out: Folder of the data set.
        overwrite: Replace an earlier data set.
        resume: If the folder has a part of this job, continue it, as `resume_job(out, job)`.
        cluster: Address of a Ray cluster to play on. "auto": RAY_ADDRESS if set, else a running cluster on this
            machine, else a new one. A Ray task whose node does not see `out` sends its episodes to this process.
        cluster_actors: Number of parallel tasks on the cluster, each with `num_envs` envs; default: as many as fit.
        on_progress: Called after every batch, and when the job is complete.

    Raises `DatasetError` if the folder cannot be used, `JobError` if the job cannot run with its settings or env,
    `JobFailedError` if too many episodes or tasks failed, `WorkerTimeoutError` if the cluster lacks resources, errors
    of the env with `on_error="raise"`, and errors of the policy.

    Example::

        state = run_job(Job(env="CartPole-v1", episodes=400), "data/cartpole")
        print(state.status, state.steps)
    """
    if resume and overwrite:
        raise JobError("resume continues the data that overwrite would replace: pass only one of them")
    running: Any = {"cluster": cluster, "cluster_actors": cluster_actors, "tensorboard": tensorboard}
    running["on_progress"] = on_progress
    if resume and Path(out, HEAD).exists():
        return resume_job(out, job, **running)
    runner = JobRunner(load_frozen_statistics(job), Path(out), **running)
    check_folder(runner.out, overwrite)
    if names := names_of_script(job):
        warn_caller(
            f"the job names {', '.join(names)}, which only this script can import: it can resume the job, but "
            "`python -m collector resume`, `verify --replay` and `video` cannot; put the definition into a module, and "
            "import it here"
        )
    return runner.run(overwrite=overwrite)


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
    """Resume the job of a folder. Committed episodes are neither lost nor played twice.

    Args:
        job: Used instead of the stored job. If settings that change episodes differ, `JobError` names them.
        settings: New values ("name=value") for settings that do not change episodes, such as `backend`.
        allow_import: Trusted modules. A stranger may have made the folder, so a stored job may name only code of these
            modules, and listed classes of gymnasium and vecenv.
        cluster, cluster_actors, tensorboard, on_progress: See `run_job`.

    Raises the errors of `run_job`, and KeyboardInterrupt or SystemExit after a signal.

    Example::

        state = resume_job("data/cartpole", settings=["backend=dummy"])
    """
    folder = Path(out)
    stored, head = read_job(folder)
    if job is None:
        check_names(stored, allow_import, folder)
    wanted = with_settings(stored if job is None else load_frozen_statistics(job), settings)
    check_unchanged(folder, fixed_settings(stored), fixed_settings(wanted))
    runner = JobRunner(wanted, folder, cluster, cluster_actors, tensorboard, on_progress)
    if names := wrappers_with_statistics(wanted):
        raise JobError(
            f"the statistics of {', '.join(names)} were not stored, so the job cannot be resumed; "
            "collect again with the transforms VecNorm or NormalizeReward, whose statistics are stored"
        )
    manifest = read_manifest(folder)
    runner.state.repeatable = head["repeatable"]
    if manifest.end is not None:
        runner.restore(manifest)
        runner.state.notes.append("the job was already complete")
        return runner.completed()
    store = StoreWriter(folder, head, resume=True, compress=wanted.compress, check=runner.restore)
    with closing(store):
        return runner.run(resumed=store)


@dataclass
class JobRunner:
    job: Job
    out: Path
    cluster: str | None
    cluster_actors: int | None
    tensorboard: bool
    on_progress: Progress

    def __post_init__(self) -> None:
        check_env_name(self.job)
        if self.cluster is not None or self.cluster_actors is not None:
            check_cluster(self.job, self.cluster, self.cluster_actors)
        if self.tensorboard:
            import_tensorboard()  # fail before the first batch
        device = device_of_policy(self.job) if self.cluster is None else device_of_tasks(self.job)
        self.plan = Plan(self.job.seed, self.job.episodes, self.job.steps)
        self.state = JobState(job=self.job, out=self.out, device=device)
        self.out = Path(os.path.abspath(self.out))  # an env in this process may change the current folder
        self._statistics: States | None = None
        self._metrics: Metrics | None = None

    def restore(self, manifest: Manifest) -> None:
        index = manifest.index
        try:
            self.plan.restore(index["number"], index["length"], skipped_in(manifest.state))
        except DatasetError as error:
            raise DatasetError(f"{self.out / MANIFEST}: {error}") from None
        if transforms_with_statistics(self.job) and len(index) and manifest.end is None:
            self._statistics = read_statistics(self.out, self.job.num_envs)
        self.state.steps, self.state.episodes = int(index["length"].sum()), len(index)

    def run(self, *, overwrite: bool = False, resumed: StoreWriter | None = None) -> JobState:
        """Play and store the remaining episodes. If none remains, only mark the data set as complete."""
        with ExitStack() as context:
            writer = EpisodeWriter(self.job, self.plan, self.state, self.out, overwrite=overwrite, resumed=resumed)
            player = self._player(writer, context, is_new=resumed is None)
            context.enter_context(closing(writer))
            began = time.monotonic()
            with writer, closing(player.play()) as episodes:
                for played in episodes:
                    writer.add(played)
                    self._open_metrics(writer, context)
                    self._report(played, time.monotonic() - began)
            self._open_metrics(writer, context)
            if self.plan.is_complete:
                self._finish(writer)
                self.on_progress(self.state)  # the last batch may have played more episodes than the job wants
            else:
                self.state.status, self.state.signum = "interrupted", player.stop.signum
            if self._metrics is not None:
                self._metrics.write(self.state.metrics, now=True)
        if player.stop.signum:  # the caller's program ends too, as without the handlers of the job
            raise ended_by(player.stop.signum, self.state)
        return self.state

    def _player(self, writer: EpisodeWriter, context: ExitStack, is_new: bool) -> Player | RayPlayer:
        """Create the player. From then on, SIGINT and SIGTERM end the job."""
        job, plan, state = self.job, self.plan, self.state
        if self.cluster is None:
            stop = context.enter_context(Stopping())
            return Player(job, plan, stop, state, state.device, self._statistics, checks_env=is_new)
        # Connect before Stopping, because Ray replaces the SIGTERM handler.
        cluster = context.enter_context(connect_to(self.cluster))
        stop = context.enter_context(Stopping())
        actors = self.cluster_actors
        player = RayPlayer(job, plan, stop, state, writer, cluster, actors, self.out, checks_env=is_new)
        state.actors = player.places
        return player

    def _open_metrics(self, writer: EpisodeWriter, context: ExitStack) -> None:
        if self._metrics is None and writer.store is not None:
            state, ran_on = self.state, writer.head["ran_on"]
            # Only the first run checks the env.
            state.repeatable = writer.store.head["repeatable"] and writer.head["repeatable"]
            state.workers = 0 if ran_on["vector_env"] == DummyVectorEnv.__name__ else ran_on["num_workers"]
            self._metrics = context.enter_context(closing(Metrics(writer.store.opened, self.tensorboard)))

    def _report(self, played: PlayedEpisodes, seconds: float) -> None:
        self.state.add(played.lengths, played.returns)
        self.state.seconds = seconds
        if self._metrics is not None:
            self._metrics.write(self.state.metrics)
        self.on_progress(self.state)

    def _finish(self, writer: EpisodeWriter) -> None:
        if not writer.end():
            if not self.state.skipped:
                raise JobFailedError(f"each of the job's {self.plan.end} episodes failed in an earlier run")
            number, error = max(self.state.skipped.items())
            raise JobFailedError(f"all episodes failed; the last, episode {number}, with {error}")
        self.completed()

    def completed(self) -> JobState:
        plan, state = self.plan, self.state
        state.status, state.steps, state.episodes = "complete", plan.end_steps, plan.end_episodes
        return state


def ended_by(signum: int, state: JobState) -> Any:
    """Return the exception that ends the program after a signal, with the final state."""
    error: Any = KeyboardInterrupt() if signum == signal.SIGINT else SystemExit(128 + signum)
    error.state = state
    return error


def connect_to(address: str) -> RayCluster:
    try:
        if re.fullmatch(r"[\w.-]+:\d+", address):
            host, port = address.split(":")
            socket.create_connection((host, int(port)), timeout=5.0).close()  # Ray would try for minutes
        return connect(address)
    except SystemExit:  # Ray's answer to a SIGTERM during its start
        raise SystemExit(128 + signal.SIGTERM) from None
    except OSError as error:
        raise JobError(
            f'there is no Ray cluster at {address!r}: {error}; --cluster takes "auto", or the address of one, such '
            "as 10.0.0.1:6379"
        ) from error
