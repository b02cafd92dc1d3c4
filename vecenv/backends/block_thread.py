"""`BlockThread`: thread of `ThreadBackend` that hosts some of the envs (a block)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from threading import RLock, Thread
from typing import Any, Protocol

from vecenv.backends.backend import Answers, EnvCall
from vecenv.backends.free_threading import has_gil, stack_of_thread
from vecenv.backends.host.env_access import copy_data
from vecenv.backends.host.env_host import EnvHost, EnvReport
from vecenv.backends.host.failure import Failure
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.ipc.waiting import SpinWait, fence
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.shared_memory import A_CALL, BUSY_NS, DOING, LINE, NOTHING
from vecenv.backends.pool.worker_handle import Watched
from vecenv.backends.worker.round_server import BlockRounds
from vecenv.layout import Layout
from vecenv.portability import IN_ORDER

LOOKS = 200


class Owner(Protocol):
    """Part of `ThreadBackend` that its threads use."""

    env_fns: Sequence[Callable[[], Any]]
    eager: bool
    copies: bool
    looks: bool

    def wake(self) -> None:
        """Wake the caller of `ThreadBackend.wait` if the wait is over."""

    def warn(self, envs: int, text: str) -> None:
        """Record a warning of a thread with `envs` envs. The next `take` shows it."""

    def note_end(self, block: BlockThread, error: BaseException) -> None:
        """Record that the thread of `block` has ended with `error`."""


class BlockThread(Watched):
    """Thread that calls the functions in the queue `work`, until it finds `None` there.

    After `abandon`, the thread uses no further env. When the running env returns, the thread closes all envs (unless
    `closes_envs` is False) and ends.
    """

    def __init__(self, index: int, ids: range, backend: Owner) -> None:
        super().__init__(index, ids)
        self.alive = True
        self.reports: list[EnvReport] | Failure | None = None
        self.problems: list[str] = []
        self.closes_envs = True
        self.line = [NOTHING] * LINE
        self.work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._backend = backend
        self._lock = RLock()
        """Held while an answer is delivered, so that `abandon` waits for the delivery."""
        self._host = EnvHost(backend.env_fns[ids.start : ids.stop], ids.start, local=True)
        self._host.progress = self.line
        warn = partial(self.deliver, backend.warn, len(ids))
        self._rounds = BlockRounds(self._host, len(ids), backend.eager, self.line, warn)
        self.thread = Thread(target=self._run, name=f"vecenv-block-{index}", daemon=True)

    @property
    def envs(self) -> list[Any]:
        return self._host.envs

    @property
    def title(self) -> str:
        return f"thread {self.thread.name}"

    @property
    def ending(self) -> str:
        return (
            f"threads cannot be killed, so {self.thread.name} (envs {list(self.ids)}) was abandoned and continues "
            "until that env returns"
        )

    @property
    def busy_seconds(self) -> float:
        line = self.line
        try:  # without the lock, because an interrupt could leave it locked
            return line[BUSY_NS] / 1e9
        except IndexError:  # `abandon` has just emptied this list, and replaced it by a copy
            return self.line[BUSY_NS] / 1e9

    @property
    def has_ended(self) -> bool:
        return not self.alive or (self.thread.ident is not None and not self.thread.is_alive())

    def stack(self) -> str:
        if not self.thread.is_alive():
            return "(the thread has ended)"
        return stack_of_thread(self.thread.ident or 0)

    def bind(self, layout: Layout, rows: Arena, answers: Answers) -> None:
        """Use `rows`, this block's part of the batch's arena, for actions, seeds and delivered results.

        The envs write into a separate arena, so that an abandoned thread cannot change the batch.
        """
        own = Arena.build(layout, len(self.ids))
        own.seed = rows.seed
        self._rows, self._answers = rows, answers
        self._outputs = list(zip(rows.outputs(), own.outputs(), strict=True))
        self._finals = list(zip(rows.finals(), own.finals(), strict=True))
        self.work.put(partial(self._host.bind, layout, own))

    def abandon(self) -> None:
        with self._lock:
            self.alive = False
            numbers: list[int] = self._host.progress
            if self.line is numbers:
                self.line = numbers.copy()
            # From now on, the host's write to this list before each use of an env raises IndexError.
            numbers.clear()
        self.work.put(None)

    def _run(self) -> None:
        try:
            self.deliver(setattr, self, "reports", self._host.construct())
            looking = SpinWait(LOOKS)
            while True:
                if self._backend.looks and not has_gil():
                    looking.until(self._has_work)
                if (work := self.work.get()) is None:
                    break
                work()
        # The host catches errors of envs, so this is an error of vecenv, or the IndexError after `abandon`.
        except BaseException as error:
            self._backend.note_end(self, error)
        finally:
            if self.closes_envs:
                self.problems = self._host.close()

    def _has_work(self) -> bool:
        return not self.work.empty()

    def deliver(self, callback: Callable[..., None], *args: Any) -> None:
        """Call `callback(*args)`, unless the block is abandoned."""
        with self._lock:
            if self.alive:
                callback(*args)
        self._backend.wake()

    def round(self, asked: bytes, payloads: Mapping[int, Any]) -> None:
        def payload(j: int, op: int) -> Any:
            return payloads[self.start + j]

        answer = partial(self.deliver, self._write)
        self._rounds.timed(self._rounds.run_block, asked, self._rows.action, payload, answer)

    def _write(self, places: Sequence[int], extras: dict[int, Extra]) -> None:
        rows: Any = ... if places is self._rounds.everyone else places
        for to, own in self._outputs:
            to[rows] = own[rows]
        for j, extra in extras.items():
            self._answers.extras[self.start + j] = extra
            for to, own in () if extra.final is None else self._finals:
                to[j] = own[j]
        if not IN_ORDER:
            fence()
        self._rows.status[rows] = opcodes.DONE

    def call(self, call: EnvCall, args: Mapping[int, tuple[Any, ...]]) -> None:
        self.line[DOING] = A_CALL
        values = {i: self._host.call(i - self.start, call.op, args[i]) for i in args}
        if self._backend.copies:
            values = {i: copy_data(value) for i, value in values.items()}
        self.line[DOING] = NOTHING
        self.deliver(call.found.update, values)
