"""A job on a Ray cluster: tasks play a range of episodes each, with the local player, and the driver merges manifests.

    driver  --numbers-->  play_range  --whole episodes-->  shards/w001/, a data set of its own
      shards/000000/  <-------------- adopts its shards --------'

An episode is committed once the driver has adopted its shard, which it does when the task has ended, or has died: what
that had not committed is handed out again. Where the driver dies, what it had not adopted is removed when the job is
resumed, and played again. So each episode is there once, whichever tasks play, and whatever becomes of them.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from collector.interruptor import Stopping
from collector.jobs.job import Job, JobError, as_record
from collector.jobs.job_files import SAME, check_unchanged, notes_on
from collector.jobs.making import with_statistics
from collector.jobs.plan import Plan
from collector.jobs.playing import Commits, JobFailedError, OnPlayed, Player, Tally, give_up
from collector.store.safe_folder import DatasetError
from collector.store.schema import ShardLine
from collector.store.writer import SHARDS, StoreWriter
from vecenv.errors import RemoteTraceback, WorkerTimeoutError
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
"""Seconds that tasks have, after a signal or an error, for the round in progress and the commit of what is whole."""
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
    """Of the data set; None: it is not known yet, and the task only finds it out."""
    device: str
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
    """How many it has committed."""
    head: dict[str, Any] | None = None
    """The head of the data set as this task would write it."""
    node: str = ""
    seconds: float = 0.0
    error: Exception | None = None
    """What ended it early,"""
    trace: str = ""
    """and its traceback."""


def play_range(task: Range) -> Played:
    """Play these episodes, and commit them to a data set of this task. SIGINT ends it after the round in progress.

    Raises `DatasetError` where the folder is not seen here.
    """
    sys.path += [path for path in task.import_path if path not in sys.path]
    with suppress(OSError):
        os.chdir(task.here)  # names of files in a job are seen from there
    played, began, stop = Played(node=socket.gethostname()), time.monotonic(), Stopping()

    def open_folder(head: dict[str, Any]) -> Commits | None:
        played.head = head
        return None if writer is None else Commits(writer, task.job)

    previous = signal.signal(signal.SIGINT, lambda *_: stop.stop_collection())
    with ExitStack() as opened:
        opened.callback(signal.signal, signal.SIGINT, previous)
        writer = None if task.head is None else opened.enter_context(_open_writer(task, played.node))
        plan = Plan(task.job.seed, numbers=task.numbers, skipped=task.skipped)
        try:
            Player(task.job, plan, stop, played, open_folder, device=task.device).play()
        except Exception as error:
            played.error, played.trace = _portable(error), traceback.format_exc()
        played.episodes = 0 if writer is None else len(writer.committed)
    played.seconds = time.monotonic() - began
    return played


def _portable(error: Exception) -> Exception:
    """The error, or one with its text where it does not survive pickling."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    return error if type(copy) is type(error) else JobFailedError(f"{type(error).__name__}: {error}")


def _open_writer(task: Range, node: str) -> StoreWriter:
    until = time.monotonic() + SEES_WITHIN
    while not os.path.isdir(task.part):
        if time.monotonic() >= until:
            raise DatasetError(
                f"the job has made {task.part}, and a task on the node {node} sees no such folder: {SHARED}"
            )
        time.sleep(0.1)
    return StoreWriter(task.part, task.head, compress=task.job.compress)


# The driver.


class _Task(NamedTuple):
    """A task that plays."""

    part: str
    numbers: list[int]


class RayPlayer:
    """Plays what is left of a plan, as `Player` does, by tasks on a cluster.

    `open_folder` is called with the head that the first task finds out, and `on_played` after each range, with the
    episodes of it that are committed. `count`: how many tasks play at once; None: as many as find a place.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        stop: Stopping,
        tally: Tally,
        open_folder: Callable[[dict[str, Any]], Commits],
        on_played: OnPlayed,
        cluster: RayCluster,
        count: int | None,
        folder: Path,
    ) -> None:
        self._job, self._plan, self._stop, self._tally = job, plan, stop, tally
        self._open_folder, self._on_played = open_folder, on_played
        self._ray, self._folder = cluster.ray, os.path.abspath(folder)
        self._device = device_of_tasks(job)
        self._options = {"num_cpus": job.num_workers or 1, "num_gpus": 1 if self._device == "cuda" else 0}
        places = max(1, free_places(self._options)) if count is None else count
        self.count = min(places, job.episodes or places)
        """How many tasks play at once."""
        self._tasks: dict[Any, _Task] = {}
        """By the reference of the answer."""
        self._deaths: Counter[int] = Counter()
        self._losses = 0
        self._pace = 0.0
        """Episodes that a task plays in a second."""
        self._commits: Commits | None = None
        self._head: dict[str, Any] | None = None
        self._parts = 0

    def play(self) -> None:
        """Play until the plan is complete and its episodes are in the manifest, or a signal came.

        Raises as `Player.play`; `DatasetError` where a task cannot write to the folder, `WorkerTimeoutError` where the
        first one finds no place. Whole episodes until then are in the manifest, but for those of tasks that do not end.
        """
        first: Exception | None = None
        try:
            began = time.monotonic()
            while not (self._plan.is_complete or self._stop.is_stopped):
                self._hand_out()
                self._take_answer(NOTICE_WITHIN)
                if self._head is None and time.monotonic() > began + PLACED_WITHIN and not free_places(self._options):
                    raise WorkerTimeoutError(unscheduled(1, self.count, self._options, PLACED_WITHIN))
        except Exception as error:
            first = error
        for reference in self._tasks:  # they commit what is whole
            self._ray.cancel(reference, force=self._plan.is_complete)
        until = time.monotonic() + LAST_COMMITS * (not self._plan.is_complete)
        while self._tasks and (rest := until - time.monotonic()) > 0:
            try:
                self._take_answer(rest)
            except Exception as error:
                first = first or error
        for reference in self._tasks:
            self._ray.cancel(reference, force=True)
        if self._tasks:  # once they have ended, nothing is written to what is removed
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=ENDED_WITHIN)
        for task in self._tasks.values():
            with suppress(DatasetError):
                self._remove(task) if self._plan.is_complete else self._adopt(task, Played())
        if self._losses:
            self._tally.notes.append(f"{self._losses} tasks failed, and what they had was played again")
        if self._commits is not None:  # what has failed
            with suppress(DatasetError) if first is not None else nullcontext():
                self._commits.commit()
        if first is not None:
            raise first

    def _hand_out(self) -> None:
        """Give ranges to the places that have none: first one task finds out the head."""
        job = self._job
        if job.num_workers is None and job.backend not in ("auto", "dummy"):
            job = msgspec.structs.replace(job, num_workers=1)  # a task has one CPU
        while len(self._tasks) < (1 if self._head is None else self.count):
            size = self._job.num_envs
            if not self._plan.waiting:  # otherwise a task has failed, perhaps because of one of these
                # As many as are played until a shard is due; and all are to end together.
                size = max(size, int(min(self._pace * self._job.shard_seconds, self._plan.left / self.count)))
            numbers = [number for number, _ in islice(self._plan, size)]
            if not numbers:
                return
            self._parts += 1
            part = f"{SHARDS}/w{self._parts:03d}"
            if self._commits is not None:
                self._commits.writer.opened.inside(part, make=True).close()
            where, skipped = os.path.join(self._folder, part), sorted(self._plan.skipped)
            task = Range(job, where, self._head, self._device, numbers, skipped, os.getcwd(), sys.path)
            self._tasks[start_task(play_range, self._options, task)] = _Task(part, numbers)

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

    def _take(self, task: _Task, played: Played) -> None:
        self._tally.frames += played.frames
        self._tally.retried += played.retried
        self._tally.bottleneck = played.bottleneck or self._tally.bottleneck
        if played.episodes:
            self._pace = played.episodes / played.seconds
        try:
            give_up(self._job, self._plan, self._tally, played.skipped)
        except JobFailedError as error:
            played.error = played.error or error
        self._adopt(task, played)
        if played.head is not None:
            self._take_head(played.node, played.head)
        if played.error is not None:
            raise played.error from (RemoteTraceback(played.trace) if played.trace else None)
        if self._commits is not None:  # what has failed
            self._commits.commit()

    def _adopt(self, task: _Task, played: Played) -> None:
        """Take what a task has committed into the folder, and hand out the rest again."""
        found: list[ShardLine] = []
        if self._commits is not None:
            until = time.monotonic() + SEES_WITHIN
            while True:
                found += self._commits.writer.adopt(task.part)
                seen = sum(len(line.episodes) for line in found)
                if seen >= played.episodes:
                    break
                if time.monotonic() >= until:
                    part = os.path.join(self._folder, task.part)
                    where = f"a task on the node {played.node} has committed {played.episodes} episodes to {part}"
                    raise DatasetError(f"{where}, and here {seen} are seen: {SHARED}")
                time.sleep(0.1)
            self._remove(task)
        for line in found:
            for number, length in zip(line.episodes, line.lengths, strict=True):
                self._plan.finished(number, length)
            self._on_played(line.lengths, line.returns)
        self._plan.again(self._plan.playing.intersection(task.numbers))

    def _remove(self, task: _Task) -> None:
        if self._commits is not None:
            with suppress(OSError):  # a task that is killed may still be writing
                self._commits.writer.opened.remove(task.part)

    def _take_head(self, node: str, head: dict[str, Any]) -> None:
        """Open the folder with the first head; the others are to be the same."""
        head = {**head, "job": as_record(self._job), "ran_on": {**head["ran_on"], "actors": self.count}}
        if self._head is None:
            self._commits, self._head = self._open_folder(head), head
            return
        check_unchanged(Path(self._folder), *({name: each[name] for name in SAME} for each in (self._head, head)))
        found = [f"on the node {node} {note}" for note in notes_on(self._head, head)]
        self._tally.notes += [note for note in found if note not in self._tally.notes]

    def _lose(self, numbers: list[int], error: Exception) -> None:
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
