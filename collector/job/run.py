"""Running a job: from its settings to whole episodes in a folder, as often as it takes."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collector.episodes.episode import Episode
from collector.job.committing import Committer
from collector.job.head import (
    SAME,
    check_folder,
    check_same_job,
    check_unchanged,
    job_head,
    job_of,
    notes_on,
    read_job_head,
    stored_job,
)
from collector.job.job import Job, JobError
from collector.job.job_files import with_settings
from collector.job.look.metrics import Metrics, import_tensorboard
from collector.job.look.size import bytes_of_step, job_bytes
from collector.job.make_envs import check_env, transforms_with_statistics, with_statistics, wrappers_with_statistics
from collector.job.on_cluster.cluster_player import ClusterPlayer
from collector.job.on_cluster.connecting import check_cluster, connect_to, device_of_actors
from collector.job.on_cluster.episode_actor import ActorReport
from collector.job.plan import Plan, skipped_in
from collector.job.playing import Player
from collector.job.policies import declares_repeatable, hash_of, make_policy, resolve_device
from collector.job.statistics.frozen import with_frozen
from collector.job.statistics.kept import States, read_statistics
from collector.job.stopping import Stopping
from collector.store.errors import DatasetError
from collector.store.manifest import MANIFEST, Manifest, read_manifest
from collector.store.writer import StoreWriter
from collector.sync_collector import SyncDataCollector
from vecenv.venvs import DummyVectorEnv

RECENT = 100
"""Episodes in a mean that is shown while a job runs."""
STATS_SECONDS = 0.2
"""How often it is asked where the time goes."""


@dataclass
class JobState:
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
    frames: int = 0
    """Steps that were taken in this run, those of episodes that are not whole too."""
    bottleneck: str = ""
    """What most of the time goes to, and its share: "envs 80 %"; "idle" is what the job does with the episodes."""
    workers: int = 1
    actors: int = 0
    """Of a Ray cluster, each with the envs and workers of the job; 0: the job runs in this process."""
    device: str = "cpu"
    status: str = "failed"
    """"complete" or "interrupted" once the job has ended so; "failed" before."""
    signum: int = 0
    """The signal that ended the job; 0: none did."""
    retried: int = 0
    """How often an episode whose env had failed was played again in this run."""
    skipped: dict[int, str] = field(default_factory=dict)
    """Numbers of the episodes that were given up in this run, with the last error of each."""
    bytes_of_step: float = 0.0
    """Bytes that a step takes on the disk, about; 0 before an episode of this run has ended."""
    repeatable: bool = False
    """Whether another run of the job gives the same bits."""
    notes: list[str] = field(default_factory=list)
    """What there is to know about a run that was resumed, and about the actors of a cluster."""

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
    def expected_bytes(self) -> float | None:
        """Size of the whole job, about; None before an episode has ended, where its length counts."""
        mean = float(np.mean(self.lengths)) if self.lengths else None
        return job_bytes(self.job, self.bytes_of_step, mean) if self.bytes_of_step else None

    @property
    def recent_return(self) -> float:
        """The mean return of the last 100 episodes; NaN where there are none."""
        return float(np.mean(self.returns[-RECENT:])) if self.returns else float("nan")


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
    it, whose actors play whole episodes, each with the envs of the job: "auto" is the one that runs here, or one that
    is started; all its nodes must see the folder. `cluster_actors`: how many; None: as many as there are free CPUs.
    `on_progress` is called after every batch. A signal (handled in the main thread only) or an exception commits the
    whole episodes so far; `resume_job` goes on from them. Raises `DatasetError` where the folder cannot be used or
    written to, `JobError` where the settings or the env do not allow the job, `JobFailedError` where too many episodes
    failed, and what the policy raises; on a cluster also `WorkerDiedError` and `WorkerTimeoutError` where no actor is
    left.

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
        self.state = JobState(job, out, device=resolve_device(job) if cluster is None else device_of_actors(job))
        self._plan = Plan(job.seed, job.episodes, job.steps)
        self._policy: Any = None
        self._learning = transforms_with_statistics(job)
        """The transforms whose statistics are stored with the episodes,"""
        self._statistics: States | None = None
        """and those of an earlier run."""
        # These three from the first batch on.
        self._writer: StoreWriter | None = None
        self._metrics: Metrics | None = None
        self._committer: Committer | None = None
        self._skipped_before: set[int] = set()
        """Numbers of the episodes that were given up, in earlier runs too."""
        self._began = self._next_stats = 0.0

    def start(self, overwrite: bool) -> JobState:
        """Run it in a folder that is new, or whose content is replaced once the job has seen its first batch."""
        check_folder(self._out, overwrite)
        compress = self._job.compress
        return self._run(lambda head: StoreWriter(self._out, head, overwrite=overwrite, compress=compress))

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
            self._writer = writer

            def go_on(head: dict[str, Any]) -> StoreWriter:
                check_unchanged(self._out, *({name: each[name] for name in SAME} for each in (stored, head)))
                self.state.notes += notes_on(stored, head)
                return writer

            return self._run(go_on)

    def _restore(self, manifest: Manifest) -> None:
        """Take up where the job was. Raises `DatasetError`."""
        index = manifest.index
        try:
            self._skipped_before = skipped_in(manifest.state)
            self._plan.restore(index.number, index.length, self._skipped_before)
        except DatasetError as error:
            raise DatasetError(f"{self._out / MANIFEST}: {error}") from None
        if self._learning and len(index) and manifest.end is None:
            self._statistics = read_statistics(self._out, self._job.num_envs)
        self.state.steps, self.state.episodes = int(index.length.sum()), len(index)

    def _run(self, open_writer: Callable[[dict[str, Any]], StoreWriter]) -> JobState:
        state, plan = self.state, self._plan
        # Ray comes first, because it sets a handler of SIGTERM of its own.
        connection: Any = nullcontext() if self._cluster is None else connect_to(self._cluster)
        with connection as cluster, ExitStack() as files, Stopping() as stop:
            self._open_writer, self._files = open_writer, files
            self._player = self._make_player(stop, cluster)
            self._player.skipped_before = len(self._skipped_before)
            self._began = time.monotonic()
            with ExitStack() as self._commits:  # on leaving it, all that was collected is committed
                try:
                    self._player.play()
                finally:
                    self._note_failures()
            if state.actors and self._player.failures:
                state.notes.append(f"{self._player.failures} actors failed, and what they had was played again")
            if plan.is_complete and self._writer is not None:
                self._writer.end("complete", episodes=plan.end)
                self._completed()
            else:
                state.status, state.signum = "interrupted", stop.signum
            if self._metrics is not None:
                self._metrics.write(self._numbers, now=True)
        return state

    def _make_player(self, stop: Stopping, cluster: Any) -> Any:
        if cluster is None:
            local = Player(self._job, self._plan, stop, self._make_policy, self._take)
            local.statistics = self._statistics
            return local
        callbacks = self._open, self._take_report, self._take_back
        player = ClusterPlayer(self._job, self._plan, stop, cluster, self._cluster_actors, self._out, *callbacks)
        self.state.actors = player.actors
        return player

    def _completed(self) -> JobState:
        plan, state = self._plan, self.state
        state.status, state.steps, state.episodes = "complete", plan.end_steps, plan.end_episodes
        return state

    def _make_policy(self, env: Any) -> Any:
        spaces = env.observation_space[0], env.action_space[0]
        self._policy = make_policy(self._job, *spaces, self.state.device)
        return self._policy

    def _take(self, batches: SyncDataCollector, episodes: list[Episode]) -> None:
        """Take what has ended in a batch."""
        if self._committer is None:
            self._begin(batches)
        assert self._committer is not None
        learnt = self._player.ask_statistics(batches.env) if self._learning and episodes else None
        self._committer.add(episodes, learnt)
        if episodes and not self.state.bytes_of_step:
            self.state.bytes_of_step = bytes_of_step(episodes[0], self._job.compress)
        lengths = [len(episode) for episode in episodes]
        self._count(lengths, returns_of(episodes, lengths))
        if self.state.seconds >= self._next_stats:
            self._next_stats = self.state.seconds + STATS_SECONDS
            self.state.bottleneck = batches.stats().bottleneck_share
        self._show()

    def _take_report(self, report: ActorReport) -> None:
        """Take what an actor has done."""
        self._count([length for _, length, _ in report.ended], [total for _, _, total in report.ended])
        self.state.bottleneck = report.bottleneck or self.state.bottleneck
        self.state.notes += [note for note in self._player.notes if note not in self.state.notes]
        if self._writer is not None:
            self._show()

    def _take_back(self, episodes: list[tuple[int, float]]) -> None:
        """Forget episodes that are lost with their actor, by their lengths and returns."""
        state, lost = self.state, Counter(episodes)
        state.episodes -= len(episodes)
        state.steps -= sum(length for length, _ in episodes)
        for i in reversed(range(len(state.lengths))):  # the last ones are lost
            if not lost:
                break
            episode = state.lengths[i], state.returns[i]
            if lost[episode]:
                del state.lengths[i], state.returns[i]
                lost -= Counter([episode])

    def _count(self, lengths: list[int], returns: list[float]) -> None:
        state = self.state
        state.returns += returns
        state.lengths += lengths
        state.episodes += len(lengths)
        state.steps += sum(lengths)
        state.frames, state.seconds = self._player.frames, time.monotonic() - self._began

    def _show(self) -> None:
        """Note failures, and report the progress."""
        assert self._metrics is not None
        state = self.state
        if self._player.retried > state.retried or len(self._player.skipped) > len(state.skipped):
            self._note_failures()
        self._metrics.write(self._numbers)
        self._on_progress(state)

    def _note_failures(self) -> None:
        state, player = self.state, self._player
        found = {"retried": player.retried - state.retried, "skipped": len(player.skipped) - len(state.skipped)}
        state.retried, state.skipped = player.retried, dict(player.skipped)
        self._skipped_before.update(player.skipped)
        noted = {"skipped": sorted(self._skipped_before)}
        if any(found.values()) and self._committer is not None:
            self._committer.note(found, noted)
        elif any(found.values()) and self._writer is not None:  # actors commit the episodes
            self._writer.commit(failed=found, state=noted)

    def _begin(self, batches: SyncDataCollector) -> None:
        """Open the folder: now that there is a batch, it is known what it will hold."""
        state, venv = self.state, batches.env
        state.workers = 0 if isinstance(venv, DummyVectorEnv) else venv.num_workers
        keyed = declares_repeatable(self._policy) or batches.everything_keyed
        repeatable = keyed and not with_statistics(self._job)
        head = job_head(self._job, venv, state.device, hash_of(self._policy), repeatable)
        writer = self._open(head)
        committer = Committer(writer, self._job.shard_bytes, self._job.shard_seconds)
        self._committer = self._commits.enter_context(committer)

    def _open(self, head: dict[str, Any]) -> StoreWriter:
        """Open the folder for what this head describes."""
        self.state.repeatable = head["repeatable"]
        self._writer = self._open_writer(head)
        self._files.enter_context(closing(self._writer))
        self._metrics = self._files.enter_context(closing(Metrics(self._writer.opened, self._tensorboard)))
        return self._writer

    def _numbers(self) -> dict[str, Any]:
        """What `metrics.jsonl` gets."""
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


def returns_of(episodes: list[Episode], lengths: list[int]) -> list[float]:
    """The return of each episode, by one sum over all of them.

    >>> flags = np.array([False, True])
    >>> returns_of([Episode(np.zeros(3), np.zeros(2), np.array([1.0, 2.0]), flags, ~flags, 0)], [2])
    [3.0]
    """
    if not episodes:
        return []
    rewards = np.concatenate([episode.reward for episode in episodes])
    starts = np.cumsum([0, *lengths[:-1]])
    found: list[float] = np.add.reduceat(rewards if rewards.ndim == 1 else rewards.sum(1), starts).tolist()
    return found
