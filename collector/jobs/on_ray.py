"""A job on a Ray cluster: tasks play a range of episodes each, with the local player, and the driver merges manifests.

    driver  --numbers-->  play_range  --whole episodes-->  shards/w001/
    manifest  <---------------------- lines of its shards

An episode is in the manifest once the driver has put the line of its shard there. What a task has written and not
returned is lost with it: its numbers are handed out again, and its shards are removed when the next task takes the
folder, or the job is resumed. So each episode is in the manifest once, whichever tasks play, and whatever becomes of
them.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from collector.episodes.episode import Episode
from collector.jobs.head import SAME, check_unchanged, job_head, notes_on
from collector.jobs.job import Job, JobError, as_record
from collector.jobs.making import with_statistics
from collector.jobs.playing import Commits, JobFailedError, Plan, Player, check_budget
from collector.jobs.stopping import Stopping
from collector.store.errors import DatasetError, FolderInUseError
from collector.store.head import HEAD, LARGEST_HEAD
from collector.store.manifest import read_manifest
from collector.store.safe_folder import SafeFolder
from collector.store.writer import StoreWriter
from vecenv.errors import RemoteTraceback, WorkerTimeoutError
from vecenv.ray_cluster import RayCluster, cause_of, connect, free_places, is_loss, reason_of, start_task, unscheduled

SEES_WITHIN = 10.0
"""Seconds in which a file of the driver is to be seen: file systems over a network are late."""
FOLDERS = 100
"""Folders for shards that a task tries: a killed task that is still ending has its own."""
PLACED_WITHIN = 120.0
"""Seconds in which the first task is to find a place."""
MOST_DEATHS = 10
"""Tasks that may die while they have one and the same episode."""
NOTICE_WITHIN = 0.5
"""Seconds in which a signal is noticed while no task ends."""
LAST_COMMITS = 12.0
"""Seconds that tasks have, after a signal or an error, for the round in progress and the commit of what is whole."""


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
    """Where the policies run: on GPUs only where the job asks for them."""
    return "cpu" if job.device == "auto" else job.device


# The task.


@dataclass
class Range:
    """What a task is to play, and where."""

    job: Job
    folder: str
    device: str
    numbers: Sequence[int]
    skipped_before: int
    """Episodes that the job has given up so far."""
    digest: str
    """SHA-256 of the head that the driver has written; "": there is none yet, and the task only finds out its own."""
    recorded: Collection[str] = ()
    """The shards that are in the manifest."""
    slot: int = 0
    slots: int = 1
    """This task's place among those that play at once."""
    here: str = "."
    import_path: Sequence[str] = ()
    """The current folder and `sys.path` of the driver."""


@dataclass
class Played:
    """What a task has done."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    """For the manifest: the shards of these lines are on the disk."""
    head: dict[str, Any] | None = None
    """The head of the data set as this task would write it."""
    node: str = ""
    frames: int = 0
    seconds: float = 0.0
    retried: int = 0
    skipped: dict[int, str] = field(default_factory=dict)
    """Numbers of the episodes that were given up, with the last error of each."""
    bottleneck: str = ""
    error: Exception | None = None
    """What ended it early,"""
    trace: str = ""
    """and its traceback."""


def play_range(task: Range) -> Played:
    """Play these episodes, and commit them to shards of this task alone; SIGINT ends it after the round in progress."""
    sys.path += [path for path in task.import_path if path not in sys.path]
    with suppress(OSError):
        os.chdir(task.here)  # names of files in a job are seen from there
    played, began, stop = Played(node=socket.gethostname()), time.monotonic(), Stopping()
    commits: Commits | None = None

    def take(batches: Any, episodes: list[Episode]) -> None:
        if played.head is None:
            played.head = job_head(task.job, batches, player.policy, task.device)
        if commits is None:
            stop.stop_collection()
            return
        played.bottleneck = batches.stats().bottleneck_share
        commits.add(episodes)

    player = Player(task.job, Plan(task.job.seed, numbers=task.numbers), stop, task.device, take)
    player.skipped_before = task.skipped_before
    previous = signal.signal(signal.SIGINT, lambda *_: stop.stop_collection())
    writer = _open_writer(task, played.lines) if task.digest else None
    try:
        if writer is not None:
            commits = Commits(writer, task.job)
        try:
            player.play()
        except Exception as error:
            played.error, played.trace = _portable(error), traceback.format_exc()
        if commits is not None and not commits.is_broken:
            commits.commit()
    finally:
        if writer is not None:
            writer.close()
        signal.signal(signal.SIGINT, previous)
    played.frames, played.retried, played.skipped = player.frames, player.retried, player.skipped
    played.seconds = time.monotonic() - began
    return played


def _portable(error: Exception) -> Exception:
    """The error, or one with its text where it does not survive pickling."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    return error if type(copy) is type(error) else JobFailedError(f"{type(error).__name__}: {error}")


def _open_writer(task: Range, lines: list[dict[str, Any]]) -> StoreWriter:
    """A writer with a folder that no other process writes to, and no other task tries."""
    folder = Path(task.folder)
    path, until = folder / HEAD, time.monotonic() + SEES_WITHIN
    while not _sees(folder, task.digest):
        if time.monotonic() >= until:
            found = "sees another file there" if path.exists() else "sees no such file"
            raise DatasetError(
                f"the job has written {path}, and a task on the node {socket.gethostname()} {found}: the folder of a "
                "job on a cluster lies on a file system that all its nodes share; choose such a folder with --out"
            )
        time.sleep(0.1)
    options: dict[str, Any] = {"compress": task.job.compress, "recorded": task.recorded, "commit_line": lines.extend}
    for i in range(FOLDERS):
        with suppress(FolderInUseError):
            return StoreWriter(folder, None, writer=1 + task.slot + i * task.slots, **options)
    raise DatasetError(
        f"{folder} is being written by {FOLDERS} other processes where task {task.slot} would write: wait for their "
        "end, or choose another folder"
    )


def _sees(folder: Path, digest: str) -> bool:
    with suppress(OSError), SafeFolder(folder) as opened:
        opened.entries()  # has a file system over a network look again
        return hashlib.sha256(opened.read(HEAD, LARGEST_HEAD)).hexdigest() == digest
    return False


# The driver.


class _Task(NamedTuple):
    """A task that plays."""

    slot: int
    numbers: list[int]


class RayPlayer:
    """Plays what is left of a plan, as `Player` does, by tasks on a cluster.

    `open_folder(head)` is called with the head that the first task finds out, and returns the writer that keeps the
    manifest; `on_played(played)` after each range, whose lines are in the manifest then.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        stop: Stopping,
        cluster: RayCluster,
        count: int | None,
        folder: Path,
        open_folder: Callable[[dict[str, Any]], StoreWriter],
        on_played: Callable[[Played], None],
    ) -> None:
        self._job, self._plan, self._stop, self._folder = job, plan, stop, os.path.abspath(folder)
        self._ray, self._open_folder, self._on_played = cluster.ray, open_folder, on_played
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
        self._writer: StoreWriter | None = None
        self._head: dict[str, Any] = {}
        self._digest = ""
        self._recorded: set[str] = set()
        self._notes: dict[str, None] = {}
        self.frames = 0
        """Steps taken, those of episodes that are not whole too."""
        self.retried = 0
        """How often an episode was played again alone."""
        self.skipped_before = 0
        """Episodes that earlier runs of the job have given up."""
        self.skipped: dict[int, str] = {}
        """Episodes that were given up, with the last error of each."""

    @property
    def notes(self) -> list[str]:
        """What there is to know about the tasks."""
        lost = f"{self._losses} tasks failed, and what they had was played again"
        return [*self._notes, *([lost] if self._losses else [])]

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
                if not self._head and time.monotonic() > began + PLACED_WITHIN and not free_places(self._options):
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
        if first is not None:
            raise first

    def _hand_out(self) -> None:
        """Give ranges to the places that have none: first one task finds out the head."""
        slots = {*range(self.count if self._head else 1)} - {task.slot for task in self._tasks.values()}
        for slot in sorted(slots):
            size = self._job.num_envs
            if not self._plan.waiting:  # otherwise a task has failed, perhaps because of one of these
                # As many as are played until a shard is due; and all are to end together.
                size = max(size, int(min(self._pace * self._job.shard_seconds, self._plan.left / self.count)))
            numbers = [number for number, _ in islice(self._plan, size)]
            if not numbers:
                return
            job = self._job
            if job.num_workers is None and job.backend not in ("auto", "dummy"):
                job = msgspec.structs.replace(job, num_workers=1)  # a task has one CPU
            skipped = self.skipped_before + len(self.skipped)
            where = self._digest, frozenset(self._recorded), slot, self.count, os.getcwd(), sys.path
            task = Range(job, self._folder, self._device, numbers, skipped, *where)
            self._tasks[start_task(play_range, self._options, task)] = _Task(slot, numbers)

    def _take_answer(self, timeout: float) -> None:
        """Take the next answer, if there is one in time."""
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=timeout)
        for reference in ready:
            numbers = self._tasks.pop(reference).numbers
            try:
                played = self._ray.get(reference)
            except Exception as error:
                self._plan.again(numbers)
                if is_loss(error):
                    self._lose(numbers, error)
                elif not isinstance(error, self._ray.exceptions.TaskCancelledError):
                    raise cause_of(error) from error
            else:
                self._take(numbers, played)

    def _take(self, numbers: list[int], played: Played) -> None:
        if played.head is not None:
            self._take_head(played.node, played.head)
        left = {*numbers}
        if played.lines:
            assert self._writer is not None
            self._writer.record(played.lines)
            for line in played.lines:
                self._recorded |= {line["shard"]} if "shard" in line else set()
                for number, length in zip(line.get("episodes", ()), line.get("lengths", ()), strict=True):
                    self._plan.finished(number, length)
                    left.discard(number)
            self._pace = (len(numbers) - len(left)) / played.seconds
        self.frames += played.frames
        self.retried += played.retried
        for number, reason in played.skipped.items():
            self.skipped[number] = reason
            self._plan.finished(number, 0)
            left.discard(number)
        self._plan.again(left)
        if self._writer is not None:
            self._on_played(played)
        if played.error is not None:
            raise played.error from RemoteTraceback(played.trace)
        for number in played.skipped:
            check_budget(self._job, self.skipped_before + len(self.skipped), number, played.skipped[number])

    def _take_head(self, node: str, head: dict[str, Any]) -> None:
        """Open the folder with the first head; the others are to be the same."""
        head = {**head, "job": as_record(self._job), "ran_on": {**head["ran_on"], "actors": self.count}}
        if not self._head:
            self._writer, self._head = self._open_folder(head), head
            self._recorded = {shard.path for shard in read_manifest(self._writer.opened).shards}
            self._digest = hashlib.sha256(self._writer.opened.read(HEAD, LARGEST_HEAD)).hexdigest()
            return
        check_unchanged(Path(self._folder), *({name: each[name] for name in SAME} for each in (self._head, head)))
        for note in notes_on(self._head, head):
            self._notes[f"on the node {node} {note}"] = None

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
