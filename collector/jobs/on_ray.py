"""Run a job on a Ray cluster: tasks play ranges of episodes, and the driver merges their shards.

    driver  --numbers-->  play_range  --whole episodes-->  shards/w001/, a data set of its own
      shards/000000/  <-------------- adopts its shards --------'

An episode is committed once the driver has adopted its shard, which it does when the task has ended, or has died: what
that had not committed is handed out again. Where the driver dies, what it had not adopted is removed when the job is
resumed, and played again. So each episode is there once, whichever tasks play, and whatever becomes of them.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from collector.basics.interruptor import Stopping
from collector.jobs.job import Job, JobError, as_record
from collector.jobs.job_files import check_head
from collector.jobs.making import with_statistics
from collector.jobs.plan import Plan
from collector.jobs.playing import Commits, Episodes, HeadOf, JobFailedError, Player, Tally, give_up
from collector.jobs.transform_statistics import States
from collector.store.safe_folder import DatasetError
from collector.store.schema import ShardLine
from collector.store.writer import SHARDS, StoreWriter
from vecenv.errors import WorkerTimeoutError
from vecenv.ray_cluster import RayCluster, cause_of, connect, free_places, is_loss, reason_of, start_task, unscheduled

SEES_WITHIN = 10.0
"""Seconds in which a file of the driver is to be seen: file systems over a network are late."""
SHARED = (
    "the folder of a job on a cluster lies on a file system that all its nodes share; choose such a folder with --out"
)
PLACED_WITHIN = 120.0
"""Seconds in which the first task is to find a place."""
MOST_DEATHS = 10
"""Tasks that may die while they have one and the same episode."""
NOTICE_WITHIN = 0.5
"""Seconds in which a signal is noticed while no task ends."""
LAST_COMMITS = 12.0
"""Seconds that tasks have, after a signal or an error, for the round in progress and the last commit."""
ENDED_WITHIN = 5.0
"""Seconds in which tasks that are killed have ended."""


# The job and the cluster.


def check_cluster(job: Job, cluster: str | None, actors: int | None) -> None:
    """Raise `JobError` for a job that cannot be played by so many tasks (None: as many as find a place)."""
    if cluster is None:
        if actors is not None:
            raise JobError(f'cluster_actors = {actors} are for a cluster: pass cluster = "auto" too (--cluster auto)')
        return
    if actors is not None and actors < 1:
        raise JobError(f"cluster_actors must be at least 1, got {actors}")
    if names := with_statistics(job):
        raise JobError(
            f"the statistics of {', '.join(names)} go from one episode to the next, and each task on a cluster would "
            'have its own: freeze them (frozen = "statistics.json"), or run the job without --cluster'
        )
    if job.backend == "ray":
        raise JobError(
            'backend = "ray" puts each env into an actor, and with --cluster whole episodes are given to tasks: leave '
            'it out, or name the backend of each task, such as backend = "shmem"'
        )
    if job.device not in ("auto", "cpu", "cuda"):
        raise JobError(f'device = "{job.device}": a task sees its own GPU only; use device = "cuda"')


def connect_to(address: str) -> RayCluster:
    """Connect to the cluster of a job. Raises `JobError` where there is none."""
    try:
        if re.fullmatch(r"[\w.-]+:\d+", address):
            host, port = address.split(":")
            socket.create_connection((host, int(port)), timeout=5.0).close()  # Ray itself tries for minutes
        return connect(address)
    except SystemExit:  # what Ray makes of a SIGTERM while it starts
        raise SystemExit(128 + signal.SIGTERM) from None
    except OSError as error:
        raise JobError(
            f'there is no Ray cluster at {address!r}: {error}; --cluster takes "auto", or the address of one, such '
            "as 10.0.0.1:6379"
        ) from error


def device_of_tasks(job: Job) -> str:
    """The device of the policies: a GPU only where the job asks for them."""
    return "cpu" if job.device == "auto" else job.device


# The task.


@dataclass
class Range:
    """A range of episodes for a task, and the place where it runs."""

    job: Job
    part: str
    """The folder of its own data set, which the driver has made."""
    head: dict[str, Any] | None
    """Head of the data set; None: it is not known yet, and the task only finds it out."""
    numbers: Sequence[int]
    skipped: Sequence[int] = ()
    """The episodes that the job has given up so far."""
    here: str = "."
    import_path: Sequence[str] = ()
    """The current folder and `sys.path` of the driver."""


@dataclass(kw_only=True)
class Played(Tally):
    """The result of a task."""

    episodes: int = 0
    """Number of episodes that the task has committed."""
    head: dict[str, Any] = field(default_factory=dict)
    """The head of the data set as this task would write it; empty where no batch was collected."""
    node: str = ""
    seconds: float = 0.0


def play_range(task: Range) -> Played:
    """Play these episodes, and commit them to a data set of this task. SIGINT ends it after the round in progress.

    Raises as `Player.play`, and `DatasetError` where the folder is not seen here.
    """
    sys.path += [path for path in task.import_path if path not in sys.path]
    with suppress(OSError):
        os.chdir(task.here)  # names of files in a job are seen from there
    job, began, stop = task.job, time.monotonic(), Stopping()
    device, played = device_of_tasks(job), Played(node=socket.gethostname())
    if task.head is not None and not _becomes_true(lambda: os.path.isdir(task.part)):
        raise DatasetError(
            f"the job has made {task.part}, and a task on the node {played.node} sees no such folder: {SHARED}"
        )
    plan = Plan(job.seed, numbers=task.numbers)
    plan.skipped.update(task.skipped)
    commits = Commits(job, plan, Tally(), lambda head: StoreWriter(task.part, head, compress=job.compress))

    def take(head_of: HeadOf, episodes: Episodes, statistics: States | None) -> None:
        played.head = played.head or head_of(job)
        if task.head is None:
            stop.stop_collection()
            return
        if commits.writer is None:
            commits.open(task.head)
        commits.add(episodes)

    previous = signal.signal(signal.SIGINT, lambda *_: stop.stop_collection())
    try:
        with commits:
            Player(job, plan, stop, played, take, device).play()
        played.episodes = 0 if commits.writer is None else len(commits.writer.committed)
    finally:
        signal.signal(signal.SIGINT, previous)
        if commits.writer is not None:
            commits.writer.close()
    played.seconds = time.monotonic() - began
    return played


def _becomes_true(check: Callable[[], bool]) -> bool:
    """Return True as soon as the check does, False where it does not within `SEES_WITHIN`."""
    until = time.monotonic() + SEES_WITHIN
    while not (found := check()) and time.monotonic() < until:
        time.sleep(0.1)
    return found


# The driver.


@dataclass
class RayPlayer:
    """Plays what is left of a plan, as `Player` does, by tasks on a cluster, into `folder`.

    `commits` is opened with the head that the first task finds out, and `on_played` called after each range with the
    lengths and returns of its episodes, which are committed. `count`: how many tasks play at once; None: as many as
    find a place.
    """

    job: Job
    plan: Plan
    stop: Stopping
    tally: Tally
    commits: Commits
    on_played: Callable[[list[int], list[float]], object]
    cluster: RayCluster
    count: int | None
    folder: Path

    def __post_init__(self) -> None:
        job, self._ray, self._folder = self.job, self.cluster.ray, os.path.abspath(self.folder)
        self._options = {"num_cpus": job.num_workers or 1, "num_gpus": 1 if device_of_tasks(job) == "cuda" else 0}
        most = max(1, free_places(self._options)) if self.count is None else self.count
        self.places = min(most, job.episodes or most)
        """The number of tasks that play at once."""
        self._tasks: dict[Any, Range] = {}
        """Ranges that are played, by the reference of the answer."""
        self._deaths: Counter[int] = Counter()
        self._losses = self._parts = 0
        self._pace = 0.0
        """Episodes that a task plays in a second."""
        self._head: dict[str, Any] | None = None

    def play(self) -> None:
        """Play until the plan is complete and its episodes are in the manifest, or a signal came.

        Raises as `Player.play`; `DatasetError` where a task cannot write to the folder, `WorkerTimeoutError` where the
        first one finds no place. Whole episodes until then are in the manifest, but for those of tasks that do not end.
        """
        errors = list[Exception]()
        try:
            try:
                self._play_ranges()
            except Exception as error:
                errors.append(error)
            for reference in self._tasks:  # they commit their whole episodes
                self._ray.cancel(reference, force=self.plan.is_complete)
            until = time.monotonic() + LAST_COMMITS * (not self.plan.is_complete)
            while self._tasks and (rest := until - time.monotonic()) > 0:
                try:
                    self._take_answer(rest)
                except Exception as error:
                    errors.append(error)
        finally:  # also at a second Ctrl-C: the cluster may go on without this job
            for reference in self._tasks:
                self._ray.cancel(reference, force=True)
        if self._tasks:  # once they have ended, nothing is written to what is removed
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=ENDED_WITHIN)
        for task in self._tasks.values():
            with suppress(DatasetError):
                self._adopt(task, Played())
        if self._losses:
            self.tally.notes.append(f"{self._losses} tasks failed, and what they had was played again")
        if errors:
            raise errors[0]

    def _play_ranges(self) -> None:
        began = time.monotonic()
        while not (self.plan.is_complete or self.stop.is_stopped):
            self._hand_out()
            self._take_answer(NOTICE_WITHIN)
            if self._head is None and time.monotonic() > began + PLACED_WITHIN and not free_places(self._options):
                raise WorkerTimeoutError(unscheduled(1, self.places, self._options, PLACED_WITHIN))

    def _hand_out(self) -> None:
        """Give ranges to the places that have none: first one task finds out the head."""
        job = self.job
        if job.num_workers is None and job.backend not in ("auto", "dummy"):
            job = msgspec.structs.replace(job, num_workers=1)  # a task has one CPU
        while len(self._tasks) < (1 if self._head is None else self.places):
            size = self.job.num_envs
            if not self.plan.waiting:  # otherwise a task has failed, perhaps because of one of these
                # As many as are played until a shard is due; and all are to end together.
                size = max(size, int(min(self._pace * self.job.shard_seconds, self.plan.left / self.places)))
            numbers = [number for number, _ in islice(self.plan, size)]
            if not numbers:
                return
            self._parts += 1
            part = f"{SHARDS}/w{self._parts:03d}"
            if self.commits.writer is not None:
                self.commits.writer.opened.inside(part, make=True).close()
            where, skipped = os.path.join(self._folder, part), sorted(self.plan.skipped)
            task = Range(job, where, self._head, numbers, skipped, os.getcwd(), sys.path)
            self._tasks[start_task(play_range, self._options, task)] = task

    def _take_answer(self, timeout: float) -> None:
        """Take the next answer, if there is one in time."""
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=timeout)
        for reference in ready:
            task = self._tasks.pop(reference)
            try:
                played = self._ray.get(reference)
            except Exception as error:
                self._adopt(task, Played())
                if is_loss(error):
                    self._lose(task.numbers, error)
                elif not isinstance(error, self._ray.exceptions.TaskCancelledError):
                    raise cause_of(error) from error
            else:
                self._take(task, played)

    def _take(self, task: Range, played: Played) -> None:
        self.tally.frames += played.frames
        self.tally.retried += played.retried
        self.tally.bottleneck = played.bottleneck or self.tally.bottleneck
        if played.episodes:
            self._pace = played.episodes / played.seconds
        try:
            give_up(self.job, self.plan, self.tally, played.skipped)
        finally:
            self._adopt(task, played)
        if played.head:
            self._take_head(played.node, played.head)
        self.commits.commit()  # the failures

    def _adopt(self, task: Range, played: Played) -> None:
        """Take what a task has committed into the folder, and hand out the rest again."""
        if (writer := self.commits.writer) is not None:
            lines, part = list[ShardLine](), os.path.relpath(task.part, self._folder)

            def sees_all() -> bool:
                lines.extend(writer.adopt(part))
                return sum(len(line.episodes) for line in lines) >= played.episodes

            is_whole = _becomes_true(sees_all)
            for line in lines:
                for number, length in zip(line.episodes, line.lengths, strict=True):
                    self.plan.finished(number, length)
                self.on_played(line.lengths, line.returns)
            if not is_whole:
                raise DatasetError(
                    f"a task on the node {played.node} has committed {played.episodes} episodes to "
                    f"{task.part}, and not all of them are seen here: {SHARED}"
                )
            with suppress(OSError):  # a task that is killed may still be writing
                writer.opened.remove(part)
        self.plan.again(self.plan.playing.intersection(task.numbers))

    def _take_head(self, node: str, head: dict[str, Any]) -> None:
        """Open the folder with the first head; the others are to be the same."""
        if self._head is None:
            self._head = {**head, "job": as_record(self.job), "ran_on": {**head["ran_on"], "actors": self.places}}
            self.commits.open(self._head)
        found = [f"on the node {node} {note}" for note in check_head(Path(self._folder), self._head, head)]
        self.tally.notes += [note for note in found if note not in self.tally.notes]

    def _lose(self, numbers: Sequence[int], error: Exception) -> None:
        """Note that a task has died with these numbers."""
        self._losses += 1
        self._deaths.update(numbers)
        if found := sorted(number for number in numbers if self._deaths[number] >= MOST_DEATHS):
            episodes = f"one of the episodes {str(found[:20])[1:-1]}" if len(found) > 1 else f"episode {found[0]}"
            raise JobFailedError(
                f"{MOST_DEATHS} tasks have died while they had {episodes}; the last failure: {reason_of(error)}. An "
                'env that ends its process does so; with backend = "shmem" the process is not the task\'s, and the '
                "episode is skipped and counted"
            )
