"""Threads that make, use and close the envs of a block each, and the pool that starts, replaces and ends them."""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter_ns
from typing import Any

from vecenv.backends.host.env_access import plain_copy
from vecenv.backends.host.env_host import EnvHost, EnvReport, check_distinct
from vecenv.backends.host.failure import Failure, describe, died_failure
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena, Layout
from vecenv.backends.memory.shared_memory import A_CALL, A_ROUND, BUSY_NS, DOING, LINE, NOTHING
from vecenv.backends.system_limits import blocks_of
from vecenv.backends.worker.blocking_envs import BlockingMeter
from vecenv.errors import ClosedError, WorkerDiedError, WorkerTimeoutError

Deliver = Callable[..., None]
"""`deliver(block, callback, *args)`: the caller's thread calls `callback(*args)`, unless the block is abandoned."""
TakeRows = Callable[["list[int] | None", dict[int, Extra]], None]
"""Called with the places in the block of the envs that have answered (None: all), and their extras."""


class BlockThread:
    """The envs `ids`, in a thread of their own; `index` is the place of the block among all.

    The thread calls what is put into `work`, one after the other; None ends it. An abandoned thread uses no
    further env: when the env that it is using returns, it closes all of them and ends. With `eager` the result of each
    env is delivered as soon as it is there, else those of the block together.
    """

    def __init__(
        self,
        index: int,
        ids: range,
        env_fns: Sequence[Callable[[], Any]],
        eager: bool,
        deliver: Deliver,
        on_death: Callable[[BlockThread, BaseException], None],
    ) -> None:
        self.index, self.ids, self.start = index, ids, ids.start
        self.reports: list[EnvReport] | Failure | None = None
        """The reports of the envs or the failure of a constructor; None until the caller's thread has them."""
        self.problems: list[str] = []
        """Problems in closing the envs."""
        self.alive = True
        """True if its answers are used: it was not abandoned."""
        self.line = [NOTHING] * LINE
        """The numbers that the watchdog reads (see `Control`). Each use of an env writes one first."""
        self.work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._deliver, self._on_death = partial(deliver, self), on_death
        self._one_by_one = eager and len(ids) > 1
        self._meter = BlockingMeter(len(ids))
        self._host = EnvHost(env_fns[ids.start : ids.stop], ids.start, local=True)
        self._host.progress = self.line
        self.thread = Thread(target=self._run, name=f"vecenv-block-{index}", daemon=True)

    @property
    def envs(self) -> list[Any]:
        """The envs themselves."""
        return self._host.envs

    @property
    def title(self) -> str:
        """The thread's name in warnings."""
        return f"thread {self.thread.name}"

    @property
    def ending(self) -> str:
        """The measure taken because an env hung, as part of an error text."""
        return (
            f"threads cannot be killed, so {self.thread.name} (envs {list(self.ids)}) was abandoned and goes on until "
            "that env returns"
        )

    def abandon(self) -> None:
        """Have the thread end; answers that the caller's thread has not received are discarded."""
        self.alive = False
        self.work.put(None)
        numbers, self.line = self.line, self.line.copy()
        numbers.clear()  # the host writes there before it uses an env: an IndexError comes before the next env is used

    def bind(self, layout: Layout, own: Arena, action: Any, take_rows: TakeRows, warn: Callable[[str], None]) -> None:
        """Have the host write into `own`, and read actions from `action`."""
        self._action, self._take_rows, self._warn = action, take_rows, warn
        self.work.put(partial(self._host.bind, layout, own))

    def _run(self) -> None:
        last = None
        try:
            self._deliver(setattr, self, "reports", self._host.construct())
            while (work := self.work.get()) is not None:
                if work is not last:  # put twice by a `send` that was interrupted
                    work()
                    last = work
        except BaseException as error:  # no error of an env, which would be an answer; discarded once abandoned
            self._deliver(self._on_death, self, error)
        finally:
            self.problems = self._host.close()

    def round(self, asked: bytes, payloads: Mapping[int, Any]) -> None:
        """Run the operations `asked`, an opcode for each env of the block, with payloads by env id."""
        places = None if opcodes.all_busy(asked) else [j for j, op in enumerate(asked) if op]

        def payload(j: int, op: int) -> Any:
            return payloads[self.start + j]

        if not self._one_by_one:
            self._deliver(self._take_rows, places, self._measured(self._host.run, asked, self._action, payload))
            return
        for j in range(len(asked)) if places is None else places:
            extra = self._measured(self._host.run_one, j, asked[j], self._action, payload)
            self._deliver(self._take_rows, [j], {} if extra is None else {j: extra})

    def _measured(self, run: Callable[..., Any], *args: Any) -> Any:
        begin, line = perf_counter_ns(), self.line
        line[DOING] = A_ROUND
        if self._meter.measuring:
            self._meter.start()
            result = run(*args)
            if (warning := self._meter.stop()) is not None:
                self._deliver(self._warn, warning)
        else:
            result = run(*args)
        line[DOING] = NOTHING
        line[BUSY_NS] += perf_counter_ns() - begin
        return result

    def call(self, op: str, args: Mapping[int, tuple[Any, ...]], callback: Callable[[dict[int, Any]], None]) -> None:
        """Run one of `ENV_CALLS`, with arguments by env id; `callback` receives the values, or Failures, by env id."""
        self.line[DOING] = A_CALL
        values = {i: plain_copy(self._host.call(i - self.start, op, args[i])) for i in args}
        self.line[DOING] = NOTHING
        self._deliver(callback, values)


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
