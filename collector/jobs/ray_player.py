"""`RayPlayer`: runs a job on a Ray cluster. Ray tasks play episodes, and the driver (this process) stores them.

    driver  --numbers-->  play_range  --whole episodes-->  shards/w001/, a separate data set
      shards/000000/  <-------------- adopts its shards --------'

A task plays a range of episode numbers, and commits episodes to shards. When the task has ended or died, the driver
moves ("adopts") the shards into the job's data set. Other tasks play the uncommitted episodes. If the driver dies, a
resumed job removes shards that were not adopted, and plays their episodes.

If a task's node does not see the folder, the task returns its files. If such a task dies, others play all its episodes.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from collector.basics.interruptor import Stopping, stop_when_host_ends
from collector.jobs.job import Job, JobError, as_record
from collector.jobs.job_files import check_head
from collector.jobs.job_progress import JobProgress
from collector.jobs.plan import Plan
from collector.jobs.player import EpisodeWriter, JobFailedError, PlayedEpisodes, Player, give_up
from collector.store.dataset_folder import SHARDS, read_files, write_files
from collector.store.safe_folder import DatasetError
from collector.store.schema import ShardLine
from vecenv import DummyVectorEnv, RemoteTraceback, WorkerTimeoutError
from vecenv.ray_cluster import (
    RayCluster,
    cause_of,
    dead_nodes,
    free_places,
    get_record,
    is_loss,
    missing_package,
    put_record,
    reason_of,
    remove_record,
    start_task,
    unscheduled,
)

VISIBLE_TIMEOUT = 10.0
"""Seconds to wait for files of other nodes, because network file systems are slow."""
PLACEMENT_ADVICE = (
    "choose with --out a folder that all nodes share, or one whose path exists only on the node of the driver"
)
PLACEMENT_TIMEOUT = 120.0
"""Seconds to wait until Ray has resources for the first task."""
SIGNAL_INTERVAL = 0.5
"""Maximum seconds until a signal is noticed."""
NODE_CHECK_INTERVAL = 1.0
"""Seconds between checks for lost nodes, because Ray reports tasks of a silent node as failed only after minutes."""
COMMIT_TIMEOUT = 12.0
"""Seconds for the last commits of tasks after a signal or an error."""
KILL_TIMEOUT = 5.0


def task_options(job: Job) -> dict[str, Any]:
    ray, options = job.ray, dict[str, Any]()
    options["num_cpus"] = (job.num_workers or 1) if ray.num_cpus is None else ray.num_cpus
    options["num_gpus"] = int(device_of_tasks(job) == "cuda") if ray.num_gpus is None else ray.num_gpus
    given = {name: getattr(ray, name) for name in ("memory", "resources", "runtime_env")}
    return options | {name: value for name, value in given.items() if value} | {"scheduling_strategy": ray.scheduling}


def device_of_tasks(job: Job) -> str:
    """Return the device of the tasks' policies. "auto" is the CPU, because Ray reserves no GPU by default."""
    return "cpu" if job.device == "auto" else job.device


@dataclass
class Range:
    job: Job
    part: str
    head: dict[str, Any] | None
    """Content of dataset.json. None for the first task, which plays one batch to build it."""
    numbers: Sequence[int]
    skipped: Sequence[int] = ()
    unseen_by: Sequence[str] = ()
    """Nodes that do not see the job's folder."""
    key: str = ""
    """Name of the cluster record in which the task stores its node."""
    here: str = "."
    import_path: Sequence[str] = ()
    """The driver's current folder and `sys.path`."""
    checks_env: bool = False
    """Check whether the env repeats episodes, in the first task of a new job."""


@dataclass(kw_only=True)
class RangeResult(JobProgress):
    episodes: int = 0
    head: dict[str, Any] = field(default_factory=dict)
    """This task's dataset.json, to compare with the first task's; empty without a batch."""
    files: dict[str, np.ndarray] = field(default_factory=dict)
    """Files for the driver to write in this order."""
    node: str = ""
    seconds: float = 0.0


def play_range(task: Range) -> RangeResult:
    """Play and commit a range of episodes in a Ray task.

    The task ends after the current step if Ray sends SIGINT or announces the end of the host.
    """
    sys.path += [path for path in task.import_path if path not in sys.path]
    with suppress(OSError):
        os.chdir(task.here)  # file names in a job are relative to this folder
    put_record(task.key)
    began, result = time.monotonic(), RangeResult(node=socket.gethostname())
    if task.head is None or _sees_folder(task, result.node):
        _play(task, Path(task.part), result)
    else:
        with TemporaryDirectory(prefix="vecenv-") as folder:
            _play(task, Path(folder), result)
            result.files = read_files(Path(folder))
    result.seconds = time.monotonic() - began
    return result


def _sees_folder(task: Range, node: str) -> bool:
    """Return whether this node sees the task's folder, which may appear late on a shared file system."""
    if node in task.unseen_by:
        return os.path.isdir(task.part)
    return _wait_until(lambda: os.path.isdir(task.part))


def _play(task: Range, folder: Path, result: RangeResult) -> None:
    job, stop = task.job, Stopping()
    plan = Plan(job.seed, numbers=task.numbers)
    plan.skipped.update(task.skipped)
    # The driver, not this writer, counts failures.
    writer = EpisodeWriter(job, plan, JobProgress(), folder)
    player = Player(job, plan, stop, result, device_of_tasks(job), checks_env=task.checks_env)
    previous = signal.signal(signal.SIGINT, lambda *_: stop.stop_collection())
    host_watch = stop_when_host_ends(stop)
    try:
        with closing(writer), writer, closing(player.play()) as episodes:
            for played in episodes:
                result.head = result.head or played.head
                if task.head is None:
                    stop.stop_collection()
                else:
                    writer.add(replace(played, head=task.head))
        if writer.store is not None:
            result.episodes = len(writer.store.committed)
    finally:
        host_watch.set()
        signal.signal(signal.SIGINT, previous)


def _wait_until(check: Callable[[], bool]) -> bool:
    until = time.monotonic() + VISIBLE_TIMEOUT
    while not (found := check()) and time.monotonic() < until:
        time.sleep(0.1)
    return found


@dataclass
class RayPlayer:
    """Player that plays the episodes of a plan in tasks on a cluster.

    `count`: number of parallel tasks; None: as many as fit. `checks_env`: as in `Player`.
    """

    job: Job
    plan: Plan
    stop: Stopping
    progress: JobProgress
    writer: EpisodeWriter
    cluster: RayCluster
    count: int | None
    folder: Path
    checks_env: bool = False

    def __post_init__(self) -> None:
        job, self._ray, self._folder = self.job, self.cluster.ray, os.path.abspath(self.folder)
        self._options = task_options(job)
        most = max(1, free_places(self._options)) if self.count is None else self.count
        self.places = min(most, job.episodes or most)
        self._tasks: dict[Any, Range] = {}
        self._deaths: Counter[int] = Counter()
        self._losses = Counter[str]()
        self._unseen_by = set[str]()
        self._dead_nodes = dead_nodes()
        self._parts = 0
        self._next_node_check, self._run = 0.0, secrets.token_hex(8)
        self._speed = 0.0
        self._head: dict[str, Any] | None = None
        self._adopted: list[PlayedEpisodes] = []
        """Episodes that `play` has not yielded yet."""

    def play(self) -> Generator[PlayedEpisodes, None, None]:
        """Yield committed episodes until the plan is complete or a signal arrives.

        Raises the errors of `Player.play`, `DatasetError` if a task cannot write to the folder, and
        `WorkerTimeoutError` if the cluster has no resources for the first task. Before raising, the player adopts the
        episodes of all tasks that end in time.
        """
        errors, began = list[Exception](), time.monotonic()
        try:
            while not (errors or self.plan.is_complete or self.stop.is_stopped):
                try:
                    self._play_some(began)
                except Exception as error:
                    errors.append(error)
                yield from self._adopted
                self._adopted.clear()
        except BaseException:  # the caller failed, or a second Ctrl-C interrupts
            self._end_tasks(errors, at_once=self.stop.is_stopped)
            raise
        self._end_tasks(errors)
        yield from self._adopted
        self._note_losses()
        if errors:
            raise errors[0]

    def _play_some(self, began: float) -> None:
        self._start_tasks()
        self._receive_result(SIGNAL_INTERVAL)
        if self._head is None and time.monotonic() > began + PLACEMENT_TIMEOUT and not free_places(self._options):
            raise WorkerTimeoutError(unscheduled(1, self.places, self._options, PLACEMENT_TIMEOUT))

    def _end_tasks(self, errors: list[Exception], at_once: bool = False) -> None:
        """Let the tasks commit and end, unless the plan is complete. Kill the rest, and adopt what they have committed.

        `at_once`: only kill the tasks, and leave their episodes to a resumed job.
        """
        patience = 0.0 if at_once or self.plan.is_complete else COMMIT_TIMEOUT
        until = time.monotonic() + patience
        try:
            for reference in self._tasks if patience else ():
                self._ray.cancel(reference, force=False)
            while self._tasks and (rest := until - time.monotonic()) > 0:
                try:
                    self._receive_result(rest)
                except Exception as error:
                    errors.append(error)
        finally:  # the cluster may outlive this job, so kill the tasks also after a second Ctrl-C
            for reference in self._tasks:
                self._ray.cancel(reference, force=True)
        if self._tasks and not at_once:  # `_adopt` removes folders, so no task may write
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=KILL_TIMEOUT)
            for task in self._tasks.values():
                with suppress(DatasetError):
                    self._adopt(task, RangeResult())

    def _note_losses(self) -> None:
        if not self._losses:
            return
        again = "were played again" if self.plan.is_complete else "are played when the job is resumed"
        self.progress.notes.append(f"{self._losses.total()} tasks failed, and their uncommitted episodes {again}")
        if nodes := [f"{node} ({count})" for node, count in self._losses.items() if node]:
            self.progress.notes.append(f"the failed tasks ran on the nodes {', '.join(nodes)}")

    def _start_tasks(self) -> None:
        """Start tasks. The first task runs alone, because all tasks use its head."""
        job = self.job
        if job.backend == "auto" and self._head is not None:  # use the first task's measurement
            ran_on = self._head["ran_on"]
            is_dummy = ran_on["vector_env"] == DummyVectorEnv.__name__
            found = ("dummy", None) if is_dummy else ("shmem", ran_on["num_workers"])
            job = msgspec.structs.replace(job, backend=found[0], num_workers=found[1])
        while len(self._tasks) < (1 if self._head is None else self.places):
            size = self.job.num_envs
            if not self.plan.waiting:  # while episodes are repeated, ranges stay small
                # Episodes for one shard, or fewer at the end, so that all tasks end together.
                size = max(size, int(min(self._speed * self.job.shard_seconds, self.plan.left / self.places)))
            numbers = [number for number, _ in islice(self.plan, size)]
            if not numbers:
                return
            self._parts += 1
            part = f"{SHARDS}/w{self._parts:03d}"
            if self.writer.store is not None:
                self.writer.store.opened.inside(part, make=True).close()
            where, skipped = os.path.join(self._folder, part), sorted(self.plan.skipped)
            key = f"{self._run}/{self._parts}"
            unseen_by = sorted(self._unseen_by)
            checks_env = self.checks_env and self._head is None
            task = Range(job, where, self._head, numbers, skipped, unseen_by, key, os.getcwd(), sys.path, checks_env)
            options = {**self._options, "name": f"episodes {numbers[0]} to {numbers[-1]}"}
            self._tasks[start_task(play_range, options, task)] = task

    def _receive_result(self, timeout: float) -> None:
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=timeout)
        for reference in ready:
            task = self._tasks.pop(reference)
            try:
                result = self._ray.get(reference)
            except Exception as error:
                self._adopt(task, RangeResult())
                if is_loss(error):
                    self._record_loss(task, reason_of(error))
                elif not isinstance(error, self._ray.exceptions.TaskCancelledError):
                    if advice := missing_package(error):
                        raise JobError(advice) from None
                    cause = cause_of(error)
                    if isinstance(cause, self._ray.exceptions.RayError):
                        raise JobFailedError(f"a task of the job failed: {reason_of(cause)}") from None
                    raise cause from RemoteTraceback(getattr(error, "traceback_str", str(error)))
            else:
                remove_record(task.key)
                self._record_result(task, result)
        if time.monotonic() >= self._next_node_check:
            self._next_node_check = time.monotonic() + NODE_CHECK_INTERVAL
            self._handle_lost_nodes()

    def _handle_lost_nodes(self) -> None:
        """Give the episodes of tasks on lost nodes back to the plan.

        The node of a task is unknown before the task begins. So if a node was lost since the last check, tasks that
        have not begun are included.
        """
        known, self._dead_nodes = self._dead_nodes, dead_nodes()
        for reference, task in list(self._tasks.items()) if self._dead_nodes else ():
            node = get_record(task.key)
            if node in self._dead_nodes or (not node and self._dead_nodes - known):
                del self._tasks[reference]
                self._ray.cancel(reference, force=True)
                self._adopt(task, RangeResult())
                if node:
                    self._record_loss(task, f"its node {node} was lost")

    def _record_result(self, task: Range, result: RangeResult) -> None:
        self.progress.frames += result.frames
        self.progress.retried += result.retried
        self.progress.bottleneck = result.bottleneck or self.progress.bottleneck
        if result.episodes:
            self._speed = result.episodes / result.seconds
        try:
            give_up(self.job, self.plan, self.progress, result.skipped)
        finally:
            self._adopt(task, result)
        if result.head:
            self._compare_head(result.node, result.head)
        self.writer.commit()  # records the failures

    def _adopt(self, task: Range, result: RangeResult) -> None:
        """Move a task's committed episodes into the folder. The plan takes back the rest."""
        if (store := self.writer.store) is not None:
            lines, part = list[ShardLine](), os.path.relpath(task.part, self._folder)
            if result.files:
                self._unseen_by.add(result.node)
                write_files(store.opened, part, result.files)

            def sees_all() -> bool:
                lines.extend(store.adopt(part))
                return sum(len(line.episodes) for line in lines) >= result.episodes

            is_whole = _wait_until(sees_all)
            for line in lines:
                for number, length in zip(line.episodes, line.lengths, strict=True):
                    self.plan.finished(number, length)
                self._adopted.append(PlayedEpisodes(self._head or {}, line.lengths, line.returns))
            if not is_whole:
                raise DatasetError(
                    f"a task on the node {result.node} has committed {result.episodes} episodes to "
                    f"{task.part}, and not all of them are seen here: {PLACEMENT_ADVICE}"
                )
            with suppress(OSError):  # a killed task may still write
                store.opened.remove(part)
        self.plan.again(self.plan.playing.intersection(task.numbers))

    def _compare_head(self, node: str, head: dict[str, Any]) -> None:
        """Create the data set with the first task's head. Later heads must have equal spaces and policy."""
        if self._head is None:
            self._head = {**head, "job": as_record(self.job), "ran_on": {**head["ran_on"], "actors": self.places}}
            self.writer.open(self._head)
        found = [f"on the node {node} {note}" for note in check_head(Path(self._folder), self._head, head)]
        self.progress.notes += [note for note in found if note not in self.progress.notes]

    def _record_loss(self, task: Range, reason: str) -> None:
        """Record the death of a task. Raises `JobFailedError` if too many tasks with the same episode have died."""
        self._losses[get_record(task.key)] += 1
        remove_record(task.key)
        self._deaths.update(task.numbers)
        if found := sorted(number for number in task.numbers if self._deaths[number] > self.job.ray.max_retries):
            episodes = f"one of the episodes {str(found[:20])[1:-1]}" if len(found) > 1 else f"episode {found[0]}"
            raise JobFailedError(
                f"{self._deaths[found[0]]} tasks have died while they had {episodes}; the last failure: {reason}. If "
                'an env ends its process, the task dies too. With backend = "shmem" only a worker process dies, and '
                "the episode is skipped and counted"
            )
