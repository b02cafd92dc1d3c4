"""`EventLoop`: thread with the event loop of all coroutine envs. `CoroutineBlock`: task of this loop, which serves one.

engine -- send, call --> ThreadBackend -- post, flush --> EventLoop: a queue per task --> CoroutineBlock: one env
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from traceback import StackSummary
from typing import TYPE_CHECKING, Any

from vecenv.backends.backend import EnvCall
from vecenv.backends.block import Block
from vecenv.backends.free_threading import stack_of_thread
from vecenv.backends.host.env_access import copy_data
from vecenv.backends.host.env_host import EnvHost
from vecenv.backends.host.operation import Operation, await_operation
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.memory.shared_memory import A_CALL, A_ROUND, BUSY_NS, DOING, NOTHING
from vecenv.backends.pool.worker_handle import STACK_TIMEOUT

if TYPE_CHECKING:
    from vecenv.backends.thread import ThreadBackend

Job = tuple[int, Operation, Callable[[Any], None]]
"""Number for `line[DOING]`, operation that the task runs, and function that gets its result."""


class EventLoop:
    """Thread that runs a task per coroutine env until `end` is called and all tasks have ended."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        """Exception that has ended the loop, for example SystemExit of a task that an env has started."""
        self.tasks: dict[asyncio.Task[None], CoroutineBlock] = {}
        self._over = asyncio.Event()
        self._posts: deque[tuple[Callable[..., Any], Any]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_silent = False
        """True if the loop has not answered the last `ask` yet."""
        self.thread = Thread(target=self._run, name="vecenv-event-loop", daemon=True)
        self.thread.start()

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Let the loop call `function(*args)` after the next `flush`."""
        self._posts.append((function, args))

    def flush(self) -> None:
        """Wake the loop once for all functions that were posted."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._call_posts)

    def end(self) -> None:
        """End the thread after all tasks have ended."""
        self.post(self._over.set)
        self.flush()

    def ask(self, function: Callable[[], str]) -> str | None:
        """Return `function()`, called by the loop, or `None` if a task blocks the loop."""
        answers: SimpleQueue[str] = SimpleQueue()
        self.post(lambda: answers.put(function()))
        self.flush()
        with suppress(Empty):
            return answers.get(timeout=0 if self._is_silent else STACK_TIMEOUT)
        self._is_silent = True
        return None

    def running(self) -> CoroutineBlock | None:
        """Return the block whose task runs now, without an await. Any thread may call this."""
        task = None if self._loop is None else asyncio.current_task(self._loop)
        return None if task is None else self.tasks.get(task)

    def problem(self) -> str | None:
        """Describe why the thread runs on, or return `None` if the thread has ended."""
        if not self.thread.is_alive():
            return None
        left = sorted(self.tasks.values(), key=lambda block: block.start)
        if not left:
            return f"{self.thread.name} did not end in time. It is at\n{stack_of_thread(self.thread.ident or 0)}"
        ids = [block.start for block in left]
        return (
            f"the tasks of envs {ids} did not close in time and continue in {self.thread.name}, although they were "
            f"cancelled. Env {ids[0]} is at\n{left[0].stack()}"
        )

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            try:
                runner.run(self._main())
            except BaseException as error:  # recorded before the runner cancels the tasks
                self.error = error

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._call_posts()
        await self._over.wait()
        while self.tasks:
            await asyncio.wait(self.tasks)

    def _call_posts(self) -> None:
        self._is_silent = False
        while self._posts:
            function, args = self._posts.popleft()
            function(*args)

    def serve(self, block: CoroutineBlock) -> None:
        """Start the task of a block. Called by the loop."""
        task = asyncio.get_running_loop().create_task(block.serve(), name=f"env {block.start}")
        block.task = task
        self.tasks[task] = block
        task.add_done_callback(self.tasks.pop)


class CoroutineBlock(Block):
    """Coroutine env that a task of `loop` serves. `abandon` cancels the running operation."""

    task: asyncio.Task[None]
    _waiter: asyncio.Future[None] | None = None
    """Future that the task awaits while it has no work."""
    _is_busy = _has_ended = False

    def __init__(self, index: int, ids: range, backend: ThreadBackend, host: EnvHost, loop: EventLoop) -> None:
        super().__init__(index, ids, backend, host)
        self._loop = loop
        self._work: deque[Callable[[], Job | None] | None] = deque()
        loop.post(loop.serve, self)

    def post(self, work: Callable[[], Job | None] | None) -> None:
        self._loop.post(self._add, work)

    def _add(self, work: Callable[[], Job | None] | None) -> None:
        self._work.append(work)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def has_ended(self) -> bool:
        return not self.alive or self._has_ended

    @property
    def title(self) -> str:
        return f"task of env {self.start}"

    @property
    def ending(self) -> str:
        return "its task was cancelled"

    def stack(self) -> str:
        if (stack := self._loop.ask(self._own_stack)) is not None:
            return stack
        running = self._loop.running()
        self.is_bystander = running is not None and running is not self
        cause = "the event loop is blocked" if running is None else f"env {running.start} blocks the event loop"
        return f"({cause}, in which all coroutine envs wait)\n{stack_of_thread(self._loop.thread.ident or 0)}"

    def _own_stack(self) -> str:
        """Return where the env waits, as a stack. `Task.get_stack` returns only the outermost frame, which is ours."""
        frames = []
        waiting: Any = self.task.get_coro()
        while waiting is not None:
            frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
            if frame is not None and not frame.f_globals["__name__"].startswith("vecenv.backends."):
                frames.append((frame, frame.f_lineno))
            waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
        return "".join(StackSummary.extract(iter(frames)).format()) or "(the task has ended)"

    def abandon(self) -> None:
        super().abandon()
        self._loop.post(self._cancel)
        self._loop.flush()

    def _cancel(self) -> None:
        if self._is_busy:
            self.task.cancel()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                if not self._work:
                    self._waiter = loop.create_future()
                    await self._waiter
                    self._waiter = None
                if (work := self._work.popleft()) is None:
                    break
                if (job := work()) is not None:
                    self._is_busy = True
                    await self._run(*job)
                    self._is_busy = False
        # The host catches errors of envs, so this is an error of vecenv, or the IndexError after `abandon`.
        except BaseException as error:
            self._backend.note_end(self, self._loop.error or error)
        finally:
            self._is_busy, self._has_ended = False, True
            if self.closes_envs:
                self.problems = await await_operation(self._host.closing())

    async def _run(self, doing: int, operation: Operation, answer: Callable[[Any], None]) -> None:
        begin = time.perf_counter_ns()
        self.line[DOING] = doing
        result = await await_operation(operation)
        if self._loop.error is not None:  # the end of the loop has cancelled the operation
            raise self._loop.error
        self.line[DOING] = NOTHING
        self.line[BUSY_NS] += time.perf_counter_ns() - begin
        answer(result)

    def round(self, asked: bytes, payloads: Mapping[int, Any]) -> Job:
        def payload(j: int, op: int) -> Any:
            return payloads[self.start]

        return A_ROUND, self._host.operation(0, asked[0], self._rows.action, payload), self._answer_round

    def _answer_round(self, extra: Extra | None) -> None:
        self.deliver(self.write, self.everyone, {} if extra is None else {0: extra})

    def call(self, call: EnvCall, args: Mapping[int, tuple[Any, ...]]) -> Job:
        def answer(value: Any) -> None:
            self.deliver(call.found.update, {self.start: copy_data(value) if self._backend.copies else value})

        return A_CALL, self._host.calling(0, call.op, args[self.start]), answer
