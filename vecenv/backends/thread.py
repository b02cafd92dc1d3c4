"""`ThreadBackend`: steps envs in threads, for envs that wait or release the interpreter lock.

    engine -- send, call --> work queue of a thread --> BlockThread: its envs (a block) write into a separate arena
    engine <-- wait, take -- arena of the batch     <-- BlockThread: copies rows there, wakes the caller

A thread cannot be killed. The backend abandons a thread that hangs, and discards its later results.

A coroutine env is a block of its own (`CoroutineBlock`), which a task serves in place of a thread. All these tasks run
in one `EventLoop`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from vecenv.arguments import check_python
from vecenv.backends.backend import Answers, Backend, EnvCall, Taken, WorkerInfo, unreturned
from vecenv.backends.block import Block
from vecenv.backends.block_thread import BlockThread
from vecenv.backends.free_threading import has_gil, warn_of_gil
from vecenv.backends.host.env_access import copy_if_possible
from vecenv.backends.host.env_checks import check_distinct
from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import Failure, describe, died_failure
from vecenv.backends.host.own_process import hint_at_own_process, warn_of_shared_process
from vecenv.backends.ipc.waiting import SpinWait, fence
from vecenv.backends.memory.arena import Arena
from vecenv.backends.pool.watchdog import Watchdog
from vecenv.backends.pool.worker_handle import Reason, suspects_of
from vecenv.backends.system_limits import blocks_of, default_num_workers, usable_cpus
from vecenv.backends.worker.round_server import advice
from vecenv.errors import (
    CLOSED_MEANWHILE,
    RESTARTS,
    ClosedError,
    OneEnvPerProcess,
    WorkerDiedError,
    WorkerTimeoutError,
    WorkerWarnings,
    how_to_reset,
)
from vecenv.layout import Layout
from vecenv.portability import IN_ORDER

if TYPE_CHECKING:
    from vecenv.backends.event_loop import EventLoop

LONGEST_SLEEP = 60.0
"""Maximum seconds per sleep, because the system rejects very long timeouts."""
SHARED_SPINS, SPARE_SPINS = 50, 1000
"""Number of checks for answers before the caller sleeps, without and with a spare CPU."""


class ThreadBackend(Backend):
    autoresets = hosts_here = True

    def __init__(self, start_timeout: float, step_timeout: float | None = None) -> None:
        super().__init__()
        self._start_timeout = start_timeout
        self.blocks: list[Block] = []
        self._loop: EventLoop | None = None
        self._watchdog = Watchdog(step_timeout, self._lose)
        self._answers: Answers
        self._calls: list[EnvCall] = []
        self._warnings = WorkerWarnings()
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._done: Callable[[], bool] | None = None
        self._ended: deque[tuple[Block, BaseException]] = deque()
        self._closing = False
        self.looks = False
        """True if there is a CPU per thread. If so, and without interpreter lock, waits begin with a busy-wait."""

    @property
    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(block.ids, None, block.busy_seconds) for block in self.blocks]

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        n = len(env_fns)
        self.env_fns, self.eager = env_fns, eager
        self.num_workers = num_workers or default_num_workers(n, eager)
        cpus = usable_cpus()
        self.looks = self.num_workers <= cpus
        self._looking = SpinWait(SPARE_SPINS if self.num_workers < cpus else SHARED_SPINS)
        reports = list[EnvReport]()
        for k, ids in enumerate(blocks_of(n, self.num_workers)):
            block = BlockThread(k, ids, self)
            self.blocks.append(block)
            reports += self._start_block(block, hints=True)
            self._replace(block, self._blocks_for(block))
        self.num_workers = len(self.blocks)
        envs = [env for block in self.blocks for env in block.envs]
        check_distinct(envs)
        warn_of_shared_process(envs)
        warn_of_gil()
        return reports

    def _start_block(self, block: BlockThread, hints: bool) -> list[EnvReport]:
        """Start the thread of a block, and wait until it has made its envs.

        One thread makes envs at a time, because constructors may change what all threads share: `np.random`, the
        working directory, new classes.
        """
        block.thread.start()
        self.wait(lambda: block.reports is not None, time.monotonic() + self._start_timeout)
        if isinstance(block.reports, Failure):
            error = block.reports.exception()
            if hints and any(each.envs for each in self.blocks):
                hint_at_own_process(error, len(self.env_fns), in_workers=False)
            raise error
        if block.reports is None:
            block.abandon()
            raise WorkerTimeoutError(
                f"envs {list(block.ids)} were not constructed within start_timeout={self._start_timeout} s; pass a "
                "larger one for slow constructors. Threads cannot be killed: "
                f"{block.thread.name} was abandoned and is at\n{block.stack()}"
            )
        return block.reports

    def _blocks_for(self, block: BlockThread) -> Sequence[Block]:
        """Return the blocks that run the envs of a new block: the block itself, or a block per coroutine env."""
        if not any(block.coroutines):
            return [block]
        if not all(block.coroutines):
            both = block.start + block.coroutines.index(True), block.start + block.coroutines.index(False)
            raise OneEnvPerProcess("env {} is a coroutine env, and shares a worker with env {}".format(*both))
        check_python("coroutine envs")
        from vecenv.backends.event_loop import CoroutineBlock, EventLoop  # imports asyncio

        if self._loop is None or self._loop.error is not None:
            self._loop = EventLoop()
        hosts = zip(block.ids, block.split(), strict=True)
        return [CoroutineBlock(block.index, range(i, i + 1), self, host, self._loop) for i, host in hosts]

    def _replace(self, old: Block, new: Sequence[Block]) -> None:
        at = self.blocks.index(old)
        self.blocks[at : at + 1] = new
        self._block_of = [block for block in self.blocks for _ in block.ids]

    def _flush(self) -> None:
        if self._loop is not None:
            self._loop.flush()

    def bind(self, layout: Layout) -> Arena:
        self._layout, self.arena = layout, Arena.build(layout, len(self.env_fns))
        self._answers = Answers(self.arena)
        # The tasks of an event loop never write at the same time, so their rows may be neighbors in a single arena.
        own = None if self._loop is None else Arena.build(layout, len(self.env_fns))
        for block in self.blocks:
            shared = None if own is None or isinstance(block, BlockThread) else own.block(block.start, block.stop)
            block.bind(layout, self.arena.block(block.start, block.stop), self._answers, shared)
        self._flush()
        return self.arena

    def restart(self, env_id: int) -> Sequence[int]:
        old = self._block_of[env_id]
        new = BlockThread(old.index, old.ids, self)
        self._replace(old, [new])
        try:
            self._start_block(new, hints=False)
            blocks = self._blocks_for(new)
        except BaseException:
            new.abandon()
            raise
        self._replace(new, blocks)
        for block in blocks:
            block.bind(self._layout, self.arena.block(block.start, block.stop), self._answers)
        self._flush()
        for i in new.ids:  # keep the status bytes, which may announce earlier answers
            self.lost.pop(i, None)
        return new.ids

    def resynchronise(self, deadline: float) -> None:
        for block in self.blocks:
            lost = [i for i in block.ids if i in self.lost]
            if block.has_ended if not lost else block.alive or len(lost) < len(block.ids):
                self._end(block, f"its {block.title} has ended")
        for call in self._calls:
            call.discarded = not call.done()
        self._calls, answered = [], set[Block]()
        for block in self.blocks:
            block.post(partial(block.deliver, answered.add, block))
        self._flush()
        self._sleep(lambda: all(block in answered or not block.alive for block in self.blocks), deadline)
        for block in self.blocks:
            if block.alive and block not in answered:
                self._lose(block, partial(unreturned, block=block.ids, suspects=suspects_of(block, block.ids)))
        self._done = None
        self._answers.take(None)

    def ended(self) -> set[int]:
        return {i for block in self.blocks if block.has_ended for i in block.ids}

    def end_wait(self) -> None:
        self._closing = True
        self._wakeups.put(None)

    def abandon_envs(self, timeout: float) -> None:
        """End the threads, because a thread that runs native code while Python ends can crash the process."""
        for block in self.blocks:
            block.closes_envs = False
        self._end_threads(self.blocks, timeout)

    def close(self, timeout: float) -> list[str]:
        blocks, self._closing = [block for block in self.blocks if block.alive], True
        self.blocks, self._block_of = [], []
        self._wakeups.put(None)
        self._end_threads(blocks, timeout)
        problems = []
        for block in blocks:
            if isinstance(block, BlockThread) and block.thread.is_alive():
                problems.append(
                    f"the thread of envs {list(block.ids)} ({block.thread.name}) did not close in time and continues: "
                    f"threads cannot be killed. It is at\n{block.stack()}"
                )
            problems += block.problems
        if self._loop is not None and (problem := self._loop.problem()) is not None:
            problems.append(problem)
        # Drop the arena, which lives until the caller drops the last view.
        vars(self).pop("arena", None)
        vars(self).pop("_answers", None)
        return problems

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        rows: Any = ... if ids is None else ids
        asked = np.zeros(len(self.env_fns), dtype=np.uint8)
        asked[rows] = ops
        raw = asked.tobytes()
        blocks = self.blocks if ids is None else dict.fromkeys(map(self._block_of.__getitem__, ids.tolist()))
        self.arena.status[rows] = ops
        for block in blocks:
            block.post(partial(block.round, raw[block.start : block.stop], payloads))
        self._flush()
        if self.lost:
            self._answer_lost(self.lost)

    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> EnvCall:
        given = map(copy_if_possible, args) if self.copies else args
        payloads, call = dict(zip(ids, given, strict=True)), EnvCall(ids, op)
        self._calls = [*(other for other in self._calls if not other.done()), call]
        for block in dict.fromkeys(map(self._block_of.__getitem__, ids)):
            block.post(partial(block.call, call, {i: payloads[i] for i in block.ids if i in payloads}))
        self._flush()
        if self.lost:
            self._answer_lost(self.lost)
        return call

    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        begin = time.perf_counter()
        try:
            self._note_ends()
            if done is not None and not (self.looks and not has_gil() and self._looking.until(done)):
                self._sleep(done, deadline)
        finally:
            self._done = None
        return time.perf_counter() - begin

    def wake(self) -> None:
        """Wake the caller of `wait` if the wait is over."""
        if not has_gil():
            fence()  # publishes the answer before `_done` is read; `_sleep` has the matching fence
        done = self._done
        if done is not None and done():
            self._wakeups.put(None)

    def warn(self, envs: int, text: str) -> None:
        """Record a warning of a thread with `envs` envs. The next `take` shows it."""
        self._warnings.append(text + advice(len(self.env_fns), self.num_workers * envs))

    def note_end(self, block: Block, error: BaseException) -> None:
        self._ended.append((block, error))
        self._wakeups.put(None)

    def _sleep(self, done: Callable[[], bool], deadline: float | None) -> None:
        check_at = self._watchdog.start()
        while True:
            # Set both attributes before calling `done`, so that any later answer ends the sleep below.
            self._wakeups = SimpleQueue()
            self._done = done
            if not has_gil():
                fence()
            self._note_ends()
            if self._closing:  # by another thread or a signal handler
                raise ClosedError(CLOSED_MEANWHILE)
            now = time.monotonic()
            if done() or (deadline is not None and now >= deadline):
                break
            if now >= check_at:
                check_at = self._watchdog.check(self._unanswered())
                continue
            with suppress(Empty):
                until = check_at if deadline is None else min(check_at, deadline)
                self._wakeups.get(timeout=min(max(0.0, until - now), LONGEST_SLEEP))
        if self.eager and self._watchdog.is_due():  # answers of other envs may end each wait before a check
            self._watchdog.check(self._unanswered())

    def _unanswered(self) -> dict[Block, list[int]]:
        if not hasattr(self, "arena"):
            return {}
        called = {i for call in self._calls for i in call.ids if i not in call.found}
        missing = {block: [i for i in block.ids if i in called or self._answers.busy(i)] for block in self.blocks}
        return {block: ids for block, ids in missing.items() if ids}

    def take(self, ids: Sequence[int] | None) -> Taken:
        if not IN_ORDER:  # read the rows after the status bytes
            fence()
        if self._warnings:
            self._warnings.show()
        return self._answers.take(ids)

    def _lose(self, block: Block, reason: Reason) -> None:
        block.abandon()
        for i in block.ids:
            self.lost[i] = error = reason(i)
            error.env_id, error.env_ids = i, tuple(block.ids)
            error.bystander |= block.is_bystander
        self._answer_lost(block.ids)

    def _answer_lost(self, ids: Iterable[int]) -> None:
        for i in ids:
            error = self.lost[i]
            if hasattr(self, "arena"):
                self._answers.fail(i, error)
            for call in self._calls:
                if i in call.ids:
                    call.found.setdefault(i, died_failure(i, call.op, error))

    def _end(self, block: Block, reason: str) -> None:
        self._lose(block, lambda i: WorkerDiedError(f"env {i} is lost: {reason}; {how_to_reset(i, RESTARTS)}."))

    def _note_ends(self) -> None:
        while self._ended:
            block, error = self._ended.popleft()
            if block.alive:
                self._end(block, f"its {block.title} has ended with {describe(error)}")
                if isinstance(block, BlockThread):
                    block.reports = block.reports or died_failure(block.start, "__init__", self.lost[block.start])

    def _end_threads(self, blocks: Sequence[Block], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for block in blocks:
            block.abandon()
        threads = [block.thread for block in blocks if isinstance(block, BlockThread)]
        if self._loop is not None:
            self._loop.end()
            threads.append(self._loop.thread)
        for thread in threads:
            if thread.ident is not None:  # None if an interrupt prevented the start
                thread.join(max(0.0, deadline - time.monotonic()))
