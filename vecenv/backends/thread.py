"""ThreadBackend: blocks of envs in threads of this process, for envs that wait or release the interpreter lock.

    engine -- send, call --> work queue of a block --> BlockThread: its EnvHost writes into an arena of its own
    engine <-- wait, take -- ThreadPool <------------- callbacks, which the caller's thread runs

A thread cannot be killed, so a block that hangs is abandoned with its arena, and nothing it delivers later is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from vecenv.backends.backend import Answers, Backend, Call, Taken, WorkerInfo
from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import died_failure
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena, Layout
from vecenv.backends.memory.shared_memory import BUSY_NS
from vecenv.backends.pool.thread_pool import BlockThread, ThreadPool, stack_of_thread
from vecenv.backends.pool.watchdog import Watchdog
from vecenv.backends.system_limits import default_num_workers
from vecenv.backends.worker.blocking_envs import advice
from vecenv.errors import ConcurrentCallError, VectorEnvError, WorkerDiedError, WorkerWarnings


class _ThreadCall(Call):
    """`found` holds the values that have arrived, by env id."""

    def __init__(self, ids: Sequence[int], op: str) -> None:
        self.ids, self.op = ids, op
        self.found: dict[int, Any] = {}

    def done(self) -> bool:
        return len(self.found) == len(self.ids)

    def values(self) -> list[Any]:
        return [self.found[i] for i in self.ids]


class ThreadBackend(Backend):
    """Runs rounds in the threads of a pool. The caller's thread alone writes the arena and the status bytes."""

    autoresets = True

    def __init__(self, start_timeout: float, step_timeout: float | None = None) -> None:
        super().__init__()
        self._pool = ThreadPool(start_timeout)
        self._pool.on_death = self._on_death
        self._watchdog = Watchdog(
            self._pool, stack_of_thread, step_timeout, lambda block, hung: self._lose(block, hung.error)
        )
        self._answers: Answers | None = None
        self._calls: list[_ThreadCall] = []
        self._warnings = WorkerWarnings()
        self.sleeps = False
        """True if a call waits for envs."""

    @property
    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(block.ids, None, block.line[BUSY_NS] / 1e9) for block in self._pool.blocks]

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        n = len(env_fns)
        self._eager = eager
        self.num_workers = num_workers or default_num_workers(n, eager)
        return self._pool.start(env_fns, self.num_workers, eager)

    def bind(self, layout: Layout) -> Arena:
        self._layout, self.arena = layout, Arena.build(layout, len(self._pool.block_of))
        self._answers = Answers(self.arena)
        for block in self._pool.blocks:
            self._bind(block)
        return self.arena

    def _bind(self, block: BlockThread) -> None:
        assert self._answers is not None
        rows, own = self.arena.block(block.start, block.ids.stop), Arena.build(self._layout, len(block.ids))
        own.seed = rows.seed
        take_rows = BlockRows(rows, own, block.start, self._answers).take
        block.bind(self._layout, own, rows.action, take_rows, lambda text: self._on_warning(block, text))

    def _on_warning(self, block: BlockThread, text: str) -> None:
        self._warnings.append(text + advice(len(self._pool.block_of), self.num_workers * len(block.ids)))

    # Rounds and calls.

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        rows: Any = ... if ids is None else ids
        asked = np.zeros(len(self._pool.block_of), dtype=np.uint8)
        asked[rows] = ops
        raw = asked.tobytes()
        work = [(b, partial(b.round, raw[b.start : b.ids.stop], payloads)) for b in self._pool.blocks_of(ids)]
        self.arena.status[rows] = ops
        self._pool.put(work)
        if self.lost:
            self._answer_lost()

    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> Call:
        call = _ThreadCall(ids, op)
        payloads = self.codec.encode(ids, 0, None, dict(zip(ids, args, strict=True)))
        self._calls = [*(other for other in self._calls if not other.done()), call]
        for block in self._pool.blocks_of(ids):
            mine = {i: payloads[i] for i in block.ids if i in payloads}
            block.work.put(partial(block.call, op, mine, call.found.update))
        if self.lost:
            self._answer_lost()
        return call

    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        begin = perf_counter()
        if self.sleeps:
            if done is None:
                return 0.0  # the call that waits runs the callbacks
            raise ConcurrentCallError("another call waits for this vector env; make the calls one after the other")
        try:
            self.sleeps = True
            self._pool.run_callbacks()
            if done is not None:
                self._wait(done, deadline)
        finally:
            self.sleeps = False
        return perf_counter() - begin

    def _wait(self, done: Callable[[], bool], deadline: float | None) -> None:
        check_at = self._watchdog.start()
        while not done() and (deadline is None or time.monotonic() < deadline):
            if time.monotonic() >= check_at:
                check_at = self._watchdog.check(self._unanswered())
            else:
                self._pool.sleep(check_at if deadline is None else min(check_at, deadline))
        if self._eager and self._watchdog.is_due():  # answers of other envs end waits before a check
            self._watchdog.check(self._unanswered())

    def _unanswered(self) -> dict[BlockThread, Sequence[int]]:
        """The blocks that have not answered in full, with the envs whose answers are missing."""
        assert self._answers is not None
        unanswered: dict[BlockThread, Sequence[int]] = {}
        called = {i for call in self._calls for i in call.ids if i not in call.found}
        for block in self._pool.blocks:
            if missing := [i for i in block.ids if i in called or self._answers.busy(i)]:
                unanswered[block] = missing
        return unanswered

    def take(self, ids: Sequence[int] | None) -> Taken:
        assert self._answers is not None
        if self._warnings:
            self._warnings.show()
        return self._answers.take(ids)

    # Losses.

    def _lose(self, block: BlockThread, error_of: Callable[[int], VectorEnvError]) -> None:
        """Abandon a block: its envs are lost, and their pending operations fail with the error."""
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
                if i in call.ids:
                    call.found.setdefault(i, died_failure(i, call.op, error))

    def _on_death(self, block: BlockThread, reason: str) -> None:
        self._lose(block, lambda i: WorkerDiedError(f"env {i} is lost: {reason}; reset({i}) starts it again."))

    def restart(self, env_id: int) -> Sequence[int]:
        old = self._pool.block_of[env_id]
        if old.alive:  # it did not return from an interrupted call
            self._on_death(old, f"its {old.title} was abandoned because env {env_id} did not return")
        new = self._pool.restart(old)
        self._bind(new)
        self._watchdog.discard(new)
        for i in new.ids:  # answers from before the loss can still be taken
            self.lost.pop(i, None)
        return new.ids

    def close(self, timeout: float) -> list[str]:
        problems = self._pool.close(timeout)
        # The memory is freed with the last view of it that the caller holds, not with this object.
        self.__dict__.pop("arena", None)
        self._answers = None
        return problems


class BlockRows:
    """Copies results from `own`, the arena of a block, into `rows`, the block's part of the caller's arena."""

    def __init__(self, rows: Arena, own: Arena, start: int, answers: Answers) -> None:
        self._outputs = list(zip(rows.outputs(), own.outputs(), strict=True))
        self._finals = list(zip(rows.finals(), own.finals(), strict=True))
        self._status, self._start, self._answers = rows.status, start, answers

    def take(self, places: list[int] | None, extras: dict[int, Extra]) -> None:
        """Copy the rows of the envs at these places (None: all). Repeating it, after an interrupt, does no harm."""
        rows: Any = ... if places is None else places
        for to, own in self._outputs:
            to[rows] = own[rows]
        for j, extra in extras.items():
            self._answers.extras[self._start + j] = extra
            for to, own in () if extra.final is None else self._finals:
                to[j] = own[j]
        self._status[rows] = opcodes.DONE
