"""Commits of a job: by size and by time, in a thread, so that they happen while envs are slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from collector.episodes.episode import Episode
from collector.job.statistics.kept import States, write_statistics
from collector.store.writer import StoreWriter

MOST_WAITING = 2
"""Shards that may wait in memory while the disk is slower than the envs; then the job waits for the disk."""


class Committer:
    """Gives episodes to a store, and commits them when they are `nbytes` large or the oldest is `seconds` old.

    An error of the store ends it, and is raised by the next `add` and by `close`. Use it in `with`: what is there in
    the end is committed, also after an exception.

    Example::

        with Committer(writer, 64 * 2**20, 30.0) as committer:
            committer.add(episodes)
    """

    def __init__(self, writer: StoreWriter, nbytes: int, seconds: float) -> None:
        self._writer, self._bytes, self._seconds = writer, nbytes, seconds
        self._changed = threading.Condition()
        self._waiting: list[Episode] = []
        self._waiting_bytes = 0
        self._bytes_of_step = 0.0
        self._due = float("inf")
        self._ends = False
        self._error: BaseException | None = None
        self._failed: dict[str, int] = {}
        self._state: Any = None
        self._statistics: States | None = None
        self._thread = threading.Thread(target=self._run, name="collector-committer", daemon=True)

    def __enter__(self) -> Committer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is None:
            try:
                self._commit()  # what was noted besides episodes
            except BaseException as error:
                self._error = error
        if self._error is not None and kind is None:
            raise self._error

    def note(self, failed: dict[str, int], state: Any) -> None:
        """Store these counts of failures, and a state that the next run is to find, with the next commit."""
        with self._changed:
            for name, count in failed.items():
                self._failed[name] = self._failed.get(name, 0) + count
            self._state = state

    def add(self, episodes: Sequence[Episode], statistics: States | None = None) -> None:
        """Take episodes, and what the transforms have learnt by then, which is stored with them.

        Waits while more than two shards are waiting for the disk. Raises the error of a commit.
        """
        # About: one multiplication in the place of a sum over all arrays.
        nbytes = int(self._row_bytes(episodes) * sum(map(len, episodes)))
        with self._changed:
            while self._waiting and self._waiting_bytes + nbytes > MOST_WAITING * self._bytes and self._error is None:
                self._due = 0.0  # those that wait may be less than a shard
                self._changed.notify_all()
                self._changed.wait()
            self.check()
            if not episodes:
                return
            if not self._waiting:
                self._due = time.monotonic() + self._seconds
                self._changed.notify_all()
            self._waiting += episodes
            self._statistics = statistics
            self._waiting_bytes += nbytes
            if self._waiting_bytes >= self._bytes:
                self._due = 0.0
                self._changed.notify_all()

    def _row_bytes(self, episodes: Sequence[Episode]) -> float:
        """Bytes of a step, as the first episode has them."""
        if not self._bytes_of_step and episodes:
            self._bytes_of_step = episodes[0].nbytes / len(episodes[0])
        return self._bytes_of_step

    def check(self) -> None:
        """Raise the error of a commit, if there was one."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while self._wait_until_due():
                self._commit()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _wait_until_due(self) -> bool:
        """Wait until something is to be committed; False: there will be no more."""
        with self._changed:
            while not self._ends and (rest := self._due - time.monotonic()) > 0:
                self._changed.wait(None if rest == float("inf") else rest)
            return bool(self._waiting)

    def _commit(self) -> None:
        with self._changed:
            episodes, self._waiting, self._waiting_bytes = self._waiting, [], 0
            failed, self._failed, state, self._state = self._failed, {}, self._state, None
            statistics, self._statistics = self._statistics, None
            self._due = float("inf")
            self._changed.notify_all()
        if episodes:
            self._writer.add(episodes)
        if statistics is not None:
            write_statistics(self._writer.opened, statistics)
        self._writer.commit(failed=failed, state=state)
