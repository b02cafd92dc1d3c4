"""ThreadPool: starts, replaces and ends block threads, and runs their callbacks. Independent of rounds."""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from vecenv.backends.host.env_host import EnvReport, check_distinct
from vecenv.backends.host.failure import Failure, describe, died_failure
from vecenv.backends.system_limits import blocks_of
from vecenv.backends.worker.block_thread import BlockThread
from vecenv.errors import ClosedError, WorkerDiedError, WorkerTimeoutError

LONGEST_SLEEP = 60.0
"""Seconds, at most, of one wait: the system rejects very long timeouts, so the caller waits again."""


class ThreadPool:
    """The threads of one vector env. `start_timeout` bounds the constructors of envs."""

    def __init__(self, start_timeout: float) -> None:
        self._start_timeout = start_timeout
        self.blocks: list[BlockThread] = []
        self.block_of: list[BlockThread] = []
        """The block of each env."""
        self.on_death: Callable[[BlockThread, str], None]
        """Called when a thread has ended unexpectedly, with the reason."""
        self._unsent: deque[tuple[BlockThread, Callable[[], None]]] = deque()
        self._inbox: deque[tuple[BlockThread, Callable[..., None], tuple[Any, ...]]] = deque()
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._needs_wakeup = False
        """True if the caller's thread sleeps or is about to."""
        self._closing = False

    def line(self, worker: int) -> Any:
        """The numbers of a block that the watchdog reads."""
        return self.blocks[worker].line

    # Start and end of threads.

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int, eager: bool) -> list[EnvReport]:
        """Start all threads, and return the report of each env."""
        self._env_fns, self._eager = env_fns, eager
        for k, ids in enumerate(blocks_of(len(env_fns), num_workers)):
            self.blocks.append(self._block(k, ids))
            self.blocks[k].thread.start()
        self.block_of = [block for block in self.blocks for _ in block.ids]
        reports = self._await_reports(self.blocks)
        check_distinct([env for block in self.blocks for env in block.envs])
        return reports

    def restart(self, old: BlockThread) -> BlockThread:
        """Start a new block in place of one that was abandoned, and wait until its envs are made."""
        new = self._block(old.index, old.ids)
        try:
            new.thread.start()
            self._await_reports([new])
        except BaseException:
            new.abandon()
            raise
        self.blocks[new.index] = new
        self.block_of[new.start : new.ids.stop] = [new] * len(new.ids)
        return new

    def _block(self, index: int, ids: range) -> BlockThread:
        return BlockThread(index, ids, self._env_fns, self._eager, self._deliver, self._on_end)

    def _on_end(self, block: BlockThread, error: BaseException) -> None:
        reason = f"its {block.title} has ended with {describe(error)}"
        if block.reports is None:
            block.reports = died_failure(block.start, "__init__", WorkerDiedError(f"env {block.start}: {reason}"))
        self.on_death(block, reason)

    def _await_reports(self, blocks: Sequence[BlockThread]) -> list[EnvReport]:
        """Wait until all have reported; raises for the first constructor that failed or is late."""
        deadline = time.monotonic() + self._start_timeout
        while late := [block for block in blocks if block.reports is None]:
            if time.monotonic() >= deadline:
                for block in late:
                    block.abandon()
                ids = [i for block in late for i in block.ids]
                raise WorkerTimeoutError(
                    f"envs {ids} were not constructed within start_timeout={self._start_timeout} s; pass a larger "
                    f"one if they need it. Threads cannot be killed: {late[0].thread.name} was abandoned and is at\n"
                    + stack_of_thread(late[0])
                )
            self.sleep(deadline)
            failures = [block.reports for block in blocks if isinstance(block.reports, Failure)]
            if failures:
                raise failures[0].exception()
        return [report for block in blocks for report in block.reports]  # type: ignore[union-attr]

    def close(self, timeout: float) -> list[str]:
        """Have all threads close their envs and end; returns a line for each problem."""
        deadline = time.monotonic() + timeout
        blocks, self._closing = [block for block in self.blocks if block.alive], True
        self.blocks, self.block_of = [], []
        self._wakeups.put(None)
        for block in blocks:
            block.abandon()
        problems = []
        for block in blocks:
            if block.thread.ident is not None:  # None if an interrupt came before it was started
                block.thread.join(max(0.0, deadline - time.monotonic()))
            if block.thread.is_alive():
                problems.append(
                    f"the thread of envs {list(block.ids)} ({block.thread.name}) did not close in time and goes on: "
                    f"threads cannot be killed. It is at\n{stack_of_thread(block)}"
                )
            problems += block.problems
        return problems

    # Work for threads, and their callbacks.

    def blocks_of(self, ids: Iterable[int] | None) -> Sequence[BlockThread]:
        """The blocks of these envs (None: all)."""
        return self.blocks if ids is None else list(dict.fromkeys(self.block_of[i] for i in ids))

    def put(self, work: Sequence[tuple[BlockThread, Callable[[], None]]]) -> None:
        """Queue work for threads. What an interrupt leaves unsent is queued by the next wait."""
        self._unsent.extend(work)
        self._put_unsent()

    def _put_unsent(self) -> None:
        while self._unsent:
            block, work = self._unsent[0]
            block.work.put(work)
            self._unsent.popleft()

    def _deliver(self, block: BlockThread, callback: Callable[..., None], *args: Any) -> None:
        """In the thread of a block: have the caller's thread call `callback(*args)`, and wake it if it sleeps."""
        self._inbox.append((block, callback, args))
        if self._needs_wakeup:
            self._needs_wakeup = False
            self._wakeups.put(None)

    def sleep(self, until: float) -> None:
        """Sleep until a callback arrives, at most until `until` (of time.monotonic), and run what has arrived."""
        self._needs_wakeup = True
        if not self._inbox and not self._closing:
            with suppress(Empty):
                self._wakeups.get(timeout=min(max(0.0, until - time.monotonic()), LONGEST_SLEEP))
        self._needs_wakeup = False
        self.run_callbacks()

    def run_callbacks(self) -> None:
        """Run the callbacks that have arrived. Each leaves the inbox when it has returned: no interrupt loses one."""
        if self._unsent:
            self._put_unsent()
        while self._inbox:
            block, callback, args = self._inbox[0]
            if block.alive:
                callback(*args)
            self._inbox.popleft()
        if self._closing:  # by another thread or a signal handler
            raise ClosedError("the vector env was closed while this call waited for its envs")


def stack_of_thread(block: BlockThread) -> str:
    """The Python stack of the thread of a block."""
    frame = sys._current_frames().get(block.thread.ident or 0)
    return "(the thread has ended)" if frame is None else "".join(traceback.format_stack(frame))
