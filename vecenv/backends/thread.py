"""ThreadBackend: blocks of envs in threads of this process, for envs that wait or release the interpreter lock.

    engine -- send, call --> work of a block --> BlockThread: an EnvHost that writes into an arena of the block's own
    engine <-- wait, take -- inbox <------------ how the caller's thread takes the answer in

A thread cannot be killed: a block that hangs is abandoned with its arena, and nothing that comes from it is taken in.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

import numpy as np

from vecenv.backends.base import Answers, Backend, Call, Taken, WorkerInfo
from vecenv.backends.host.env_host import EnvReport, check_distinct
from vecenv.backends.host.failure import Failure, describe, died_failure
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.ipc.control_block import BUSY_NS
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.layout import Layout
from vecenv.backends.pool.watchdog import Watchdog
from vecenv.backends.system_limits import usable_cpus
from vecenv.backends.worker.block_thread import BlockThread
from vecenv.backends.worker.blocking_envs import advice
from vecenv.caller_warnings import warn_caller
from vecenv.errors import ClosedError, ConcurrentCallError, VectorEnvError, WorkerDiedError, WorkerTimeoutError

LONGEST_SLEEP = 60.0
"""Seconds after which a wait looks again: the system takes no wait of a month."""


class _Rows:
    """Copies what the envs of a block return from its own arena into its rows of the caller's."""

    def __init__(self, rows: Arena, own: Arena, start: int, answers: Answers) -> None:
        self._outputs = list(zip(rows.outputs(), own.outputs(), strict=True))
        self._finals = list(zip(rows.finals(), own.finals(), strict=True))
        self._status, self._start, self._answers = rows.status, start, answers

    def take(self, places: list[int] | None, extras: dict[int, Extra]) -> None:
        """The envs at these places (None: all) have answered. Once more, after an interrupt, does no harm."""
        rows: Any = ... if places is None else places
        for to, own in self._outputs:
            to[rows] = own[rows]
        for j, extra in extras.items():
            self._answers.extras[self._start + j] = extra
            for to, own in () if extra.final is None else self._finals:
                to[j] = own[j]
        self._status[rows] = opcodes.DONE


class _ThreadCall(Call):
    """`found` are the values by env id, as far as they have been taken in."""

    def __init__(self, ids: Sequence[int], op: str) -> None:
        self.ids, self.op = ids, op
        self.found: dict[int, Any] = {}

    def done(self) -> bool:
        return len(self.found) == len(self.ids)

    def values(self) -> list[Any]:
        return [self.found[i] for i in self.ids]


class ThreadBackend(Backend):
    """Runs rounds in the threads of blocks. The caller's thread alone writes the arena and the status bytes."""

    autoresets = True

    def __init__(self, start_timeout: float, step_timeout: float | None = None) -> None:
        super().__init__()
        self._start_timeout = start_timeout
        self._watchdog = Watchdog(self, _stack, step_timeout, lambda block, hung: self._lose(block, hung.error))
        self._blocks: list[BlockThread] = []
        self._answers: Answers | None = None
        self._unsent: deque[tuple[BlockThread, Callable[[], None]]] = deque()
        self._inbox: deque[tuple[BlockThread, Callable[..., None], tuple[Any, ...]]] = deque()
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._calls: list[_ThreadCall] = []
        self._warnings: list[str] = []
        self._warned = self._drowsy = self._closing = False
        self.sleeps = False
        """Whether a call waits for envs."""

    @property
    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(block.ids, None, block.line[BUSY_NS] / 1e9) for block in self._blocks]

    def line(self, worker: int) -> Any:
        """The numbers that the watchdog reads."""
        return self._blocks[worker].line

    # Start and end of blocks.

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        n = len(env_fns)
        self._env_fns, self._eager = env_fns, eager
        self.num_workers = num_workers or (n if eager else min(n, usable_cpus()))
        bounds = np.linspace(0, n, self.num_workers + 1).round().astype(int).tolist()
        for k in range(self.num_workers):
            self._blocks.append(self._block(k, range(bounds[k], bounds[k + 1])))
            self._blocks[k].thread.start()
        self._block_of = [block for block in self._blocks for _ in block.ids]
        self._await_reports(self._blocks)
        check_distinct([env for block in self._blocks for env in block.envs])
        return [report for block in self._blocks for report in block.reports]  # type: ignore[union-attr]

    def _block(self, index: int, ids: range) -> BlockThread:
        return BlockThread(index, ids, self._env_fns, self._eager, self._deliver, self._on_death)

    def _await_reports(self, blocks: Sequence[BlockThread]) -> None:
        """Wait until all have reported; raises for the first constructor that failed or is late."""
        deadline = time.monotonic() + self._start_timeout
        while late := [block for block in blocks if block.reports is None]:
            if time.monotonic() >= deadline:
                for block in late:
                    block.abandon()
                ids = [i for block in late for i in block.ids]
                raise WorkerTimeoutError(f"envs {ids} were not constructed within start_timeout={self._start_timeout} s")
            self._sleep(deadline)
            for block in blocks:
                if isinstance(block.reports, Failure):
                    raise block.reports.exception()
                if not block.alive:
                    raise self.lost[block.start]

    def bind(self, layout: Layout) -> Arena:
        self._layout = layout
        self.arena = Arena.build(layout, len(self._block_of))
        self._answers = Answers(self.arena)
        for block in self._blocks:
            self._bind(block)
        return self.arena

    def _bind(self, block: BlockThread) -> None:
        assert self._answers is not None
        rows, own = self.arena.block(block.start, block.ids.stop), Arena.build(self._layout, len(block.ids))
        take_rows = _Rows(rows, own, block.start, self._answers).take
        block.bind(self._layout, own, rows.action, take_rows, self._warnings.append)

    def _lose(self, block: BlockThread, error_of: Callable[[int], VectorEnvError]) -> None:
        """The envs of a block are lost, and what they were asked for is answered by that."""
        block.abandon()
        for i in block.ids:
            error = self.lost[i] = error_of(i)
            error.env_id, error.env_ids = i, tuple(block.ids)
        self._answer_lost()

    def _answer_lost(self) -> None:
        for i, error in self.lost.items():
            if self._answers is not None and self._answers.busy(i):
                self._answers.put(i, Extra(failure=died_failure(i, "step", error)))
            for call in self._calls:
                if i in call.ids and i not in call.found:
                    call.found[i] = died_failure(i, call.op, error)

    def _on_death(self, block: BlockThread, error: BaseException) -> None:
        text = f"{block.title} ended by {describe(error)}"
        self._lose(block, lambda i: WorkerDiedError(f"env {i} is lost because its {text}; reset({i}) starts it again."))

    def restart(self, env_id: int) -> Sequence[int]:
        old = self._block_of[env_id]
        if old.alive:  # stuck
            reason = f"its block was abandoned because env {env_id} did not return"
            self._lose(old, lambda i: WorkerDiedError(f"env {i} is lost: {reason}; reset({i}) starts it again."))
        new = self._block(old.index, old.ids)
        try:
            new.thread.start()
            self._await_reports([new])
        except BaseException:
            new.abandon()
            raise
        self._bind(new)
        self._blocks[new.index] = new
        self._block_of[old.start : old.ids.stop] = [new] * len(new.ids)
        self._watchdog.forget(new)
        for i in new.ids:  # what they had answered before stays to be taken
            self.lost.pop(i, None)
        return new.ids

    # Rounds and calls.

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        rows: Any = ... if ids is None else ids
        asked = np.zeros(len(self._block_of), dtype=np.uint8)
        asked[rows] = ops
        raw = asked.tobytes()
        works = [
            (block, partial(block.round, raw[block.start : block.ids.stop], payloads)) for block in self._used(ids)
        ]
        self.arena.status[rows] = ops
        self._unsent.extend(works)
        self._put_unsent()
        if self.lost:
            self._answer_lost()

    def _used(self, ids: Any) -> Sequence[BlockThread]:
        """The blocks of these envs."""
        return self._blocks if ids is None else list(dict.fromkeys(self._block_of[i] for i in ids))

    def _put_unsent(self) -> None:
        """Hand out work; what an interrupt leaves here goes out in the next wait."""
        while self._unsent:
            block, work = self._unsent[0]
            block.work.put(work)
            self._unsent.popleft()

    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> Call:
        call = _ThreadCall(ids, op)
        payloads = self.codec.encode(ids, 0, None, dict(zip(ids, args, strict=True)))
        self._calls = [*(other for other in self._calls if not other.done()), call]
        for block in self._used(ids):
            mine = {i: payloads[i] for i in block.ids if i in payloads}
            block.work.put(partial(block.call, op, mine, call.found.update))
        if self.lost:
            self._answer_lost()
        return call

    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        begin = perf_counter()
        if self.sleeps:
            if done is None:
                return 0.0  # the other call takes in what there is
            raise ConcurrentCallError("another call waits for this vector env: one at a time may use it")
        try:
            self.sleeps = True
            self._put_unsent()
            self._take_in()
            if done is not None:
                self._wait(done, deadline)
        finally:
            self.sleeps = False
        return perf_counter() - begin

    def _wait(self, done: Callable[[], bool], deadline: float | None) -> None:
        look = self._watchdog.start()
        while not done() and (deadline is None or time.monotonic() < deadline):
            if time.monotonic() >= look:
                look = self._watchdog.look(self._owing())
            else:
                self._sleep(look if deadline is None else min(look, deadline))
        if self._eager and self._watchdog.is_due():  # other envs get on, so no wait is long enough to look
            self._watchdog.look(self._owing())

    def _sleep(self, until: float) -> None:
        """Take in what arrives until then (of time.monotonic), as soon as something does."""
        self._drowsy = True
        if not self._inbox and not self._closing:
            with suppress(Empty):
                self._wakeups.get(timeout=min(max(0.0, until - time.monotonic()), LONGEST_SLEEP))
        self._drowsy = False
        self._take_in()

    def _deliver(self, block: BlockThread, take_in: Callable[..., None], *args: Any) -> None:
        """In the thread of a block: hand something to the caller's thread, and wake it if it sleeps."""
        self._inbox.append((block, take_in, args))
        if self._drowsy:
            self._drowsy = False
            self._wakeups.put(None)

    def _take_in(self) -> None:
        """Take in what has arrived. Each stays in the inbox until it is done with, whatever interrupts."""
        while self._inbox:
            block, take_in, args = self._inbox[0]
            if block.alive:
                take_in(*args)
            self._inbox.popleft()
        if self._closing:  # by another thread, or by the handler of a signal
            raise ClosedError("the vector env was closed while this call waited for its envs")

    def _owing(self) -> dict[BlockThread, Sequence[int]]:
        """The blocks that owe an answer, with the envs whose answers are missing."""
        assert self._answers is not None
        owing: dict[BlockThread, Sequence[int]] = {}
        for block in self._blocks:
            called = [i for call in self._calls for i in call.ids if i in block.ids and i not in call.found]
            if missing := called or [i for i in block.ids if self._answers.busy(i)]:
                owing[block] = missing
        return owing

    def take(self, ids: Sequence[int] | None) -> Taken:
        assert self._answers is not None
        if self._warnings:
            text = self._warnings[0] + advice(len(self._block_of), self.num_workers * len(self._blocks[0].ids))
            self._warnings.clear()
            if not self._warned:
                self._warned = True  # shown here, where a warning that is turned into an exception does no harm
                warn_caller(text)
        return self._answers.take(ids)

    def close(self, timeout: float) -> list[str]:
        deadline = time.monotonic() + timeout
        blocks, self._blocks, self._closing = [b for b in self._blocks if b.alive], [], True
        self._wakeups.put(None)
        problems = []
        for block in blocks:
            block.abandon()
        for block in blocks:
            if block.thread.ident is not None:
                block.thread.join(max(0.0, deadline - time.monotonic()))
            if block.thread.is_alive():
                problems.append(
                    f"the thread of envs {list(block.ids)} ({block.thread.name}) did not close in time and goes on: "
                    f"threads cannot be killed. It is at\n{_stack(block)}"
                )
            problems += block.problems
        # The memory goes with the last view of it that the caller holds, not with this object.
        for name in ("arena", "_answers"):
            self.__dict__.pop(name, None)
        return problems


def _stack(block: BlockThread) -> str:
    """The Python stack of the thread of a block."""
    frame = sys._current_frames().get(block.thread.ident or 0)
    return "(the thread has ended)" if frame is None else "".join(traceback.format_stack(frame))
