"""The actor's side of a job on a cluster: plays the episodes that it is given, and writes them to shards of its own.

    driver  --numbers-->  player  --whole episodes-->  committer  -->  shards/w001/
    manifest  <--------------- lines and lengths, with the answer to each call

A line is in the manifest once the driver has put it there. What an actor has written and not reported is lost with it;
it is removed when the next actor takes its folder, or the job is resumed. Nothing here imports ray: the class works
as it is, too, in the process that makes it.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collector.episodes.episode import Episode
from collector.job.committing import Committer
from collector.job.head import job_head
from collector.job.job import Job
from collector.job.on_cluster.share import Share
from collector.job.playing import Player
from collector.job.policies import declares_repeatable, hash_of, make_policy
from collector.job.stopping import Stopping
from collector.store.errors import DatasetError, FolderInUseError
from collector.store.head import HEAD, LARGEST_HEAD
from collector.store.safe_folder import SafeFolder
from collector.store.writer import StoreWriter
from collector.sync_collector import SyncDataCollector

SLICE = 1.0
"""Seconds of playing in a call, and one round more."""
SEES_WITHIN = 10.0
"""Seconds in which a file of the driver is to be seen: file systems over a network are late."""
FOLDERS = 100
"""Folders for shards that an actor tries: a killed actor that is still ending has its own."""


@dataclass
class ActorReport:
    """What an actor has done since its last report."""

    ended: list[tuple[int, int, float]] = field(default_factory=list)
    """Number, length and return of each episode that is whole."""
    lines: list[dict[str, Any]] = field(default_factory=list)
    """For the manifest: the shards of these lines are on the disk."""
    frames: int = 0
    retried: int = 0
    skipped: dict[int, str] = field(default_factory=dict)
    """Numbers of the episodes that were given up, with the last error of each."""
    bottleneck: str = ""
    head: dict[str, Any] | None = None
    """The head of the data set as this actor would write it: in the report on its first batch."""


class EpisodeActor:
    """One of `count` actors. After `start`, calls of `play`; `open` once the driver has written the head."""

    def __init__(self, index: int, count: int) -> None:
        self._index, self._count = index, count
        self._report = ActorReport()
        self._held: list[Episode] = []
        """Episodes from before `open`."""
        self._lines: deque[dict[str, Any]] = deque()
        self._writer: StoreWriter | None = None
        self._committer: Committer | None = None
        self._batches: SyncDataCollector | None = None
        self._policy: Any = None
        self._knows_head = False
        self._frames = self._retried = 0

    def whereabouts(self) -> tuple[int, str]:
        """The pid of this process, and the name of its machine."""
        return os.getpid(), socket.gethostname()

    def start(
        self, job: Job, folder: str, device: str, skipped_before: int, here: str = "", import_path: Sequence[str] = ()
    ) -> None:
        """Get ready to play. skipped_before: episodes that the job has given up so far. here, import_path: the current
        folder and `sys.path` of the driver.
        """
        sys.path += [path for path in import_path if path not in sys.path]
        if here:
            with suppress(OSError):
                os.chdir(here)  # names of files in a job are seen from there
        self._job, self._folder, self._device = job, Path(folder), device
        self._share = Share(job.seed)
        # It is not entered, so it handles no signals: the driver stops an actor.
        stop = Stopping(slice_seconds=SLICE)
        self._player = Player(job, self._share, stop, self._make_policy, self._keep)
        self._player.skipped_before = skipped_before
        self._playing = self._player.batches()

    def play(self, numbers: Sequence[int], more: bool) -> ActorReport:
        """Play for a second, these episodes after those that were given before.

        more: the driver has others: return as soon as an env has nothing to do. Raises as `Player.play`.
        """
        self._share.give(numbers)
        until = time.monotonic() + SLICE
        while self._player.has_work:
            next(self._playing)
            if time.monotonic() >= until or (more and self._share.waiting == 0):
                break
        return self._take_report()

    def open(self, digest: str, recorded: Collection[str]) -> ActorReport:
        """Begin to write to the folder. digest: the SHA-256 of the head that the driver has written; recorded: the
        shards that are in the manifest.
        """
        self._see(digest)
        self._writer = self._open_writer(recorded)
        held, self._held = self._held, []
        self._commit(held)
        return self._take_report()

    def flush(self) -> ActorReport:
        """Commit the episodes that are whole."""
        if self._committer is not None:
            committer, self._committer = self._committer, None
            committer.__exit__(None, None, None)
        return self._take_report()

    def close(self) -> None:
        """Close the vector env, and give the folder back; what is not committed is discarded."""
        self._playing.close()  # type: ignore[attr-defined]  # a generator
        if self._writer is not None:
            self._writer.close()

    # Episodes.

    def _make_policy(self, env: Any) -> Any:
        self._policy = make_policy(self._job, env.observation_space[0], env.action_space[0], self._device)
        return self._policy

    def _keep(self, batches: SyncDataCollector, episodes: list[Episode]) -> None:
        """Take the episodes that have ended in a batch."""
        self._batches = batches
        if not self._knows_head:
            self._knows_head = True
            repeatable = declares_repeatable(self._policy) or batches.everything_keyed
            self._report.head = job_head(self._job, batches.env, self._device, hash_of(self._policy), repeatable)
        self._commit(episodes)
        self._report.ended += [(each.number, len(each), each.total_reward) for each in episodes]

    def _commit(self, episodes: list[Episode]) -> None:
        if self._writer is None:
            self._held += episodes
            return
        if self._committer is None:
            self._committer = Committer(self._writer, self._job.shard_bytes, self._job.shard_seconds).__enter__()
        self._committer.add(episodes)

    def _take_report(self) -> ActorReport:
        report, self._report = self._report, ActorReport()
        while self._lines:
            report.lines.append(self._lines.popleft())
        player = self._player
        report.frames, self._frames = player.frames - self._frames, player.frames
        report.retried, self._retried = player.retried - self._retried, player.retried
        report.skipped, player.skipped = player.skipped, {}
        player.skipped_before += len(report.skipped)
        if self._batches is not None:
            report.bottleneck = self._batches.stats().bottleneck_share
        return report

    # The folder.

    def _see(self, digest: str) -> None:
        """Wait until the head of the driver is seen here."""
        path, until = self._folder / HEAD, time.monotonic() + SEES_WITHIN
        while True:
            with suppress(OSError), SafeFolder(self._folder) as opened:
                opened.entries()  # has a file system over a network look again
                if hashlib.sha256(opened.read(HEAD, LARGEST_HEAD)).hexdigest() == digest:
                    return
            if time.monotonic() >= until:
                found = "sees another file there" if path.exists() else "sees no such file"
                raise DatasetError(
                    f"the job has written {path}, and actor {self._index} on the node {socket.gethostname()} {found}: "
                    "the folder of a job on a cluster lies on a file system that all its nodes share; choose such a "
                    "folder with --out"
                )
            time.sleep(0.1)

    def _open_writer(self, recorded: Collection[str]) -> StoreWriter:
        """A writer with a folder that no other process writes to, and no other actor tries."""
        options: dict[str, Any] = {"compress": self._job.compress, "recorded": recorded}
        for i in range(FOLDERS):
            number = 1 + self._index + i * self._count
            with suppress(FolderInUseError):
                return StoreWriter(self._folder, None, writer=number, commit_line=self._lines.extend, **options)
        raise DatasetError(
            f"{self._folder} is being written by {FOLDERS} other processes where actor {self._index} would write: wait "
            "for their end, or choose another folder"
        )
