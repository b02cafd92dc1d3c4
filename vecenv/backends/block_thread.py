"""`BlockThread`: thread of `ThreadBackend` that runs some of the envs (a block)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from vecenv.backends.backend import EnvCall
from vecenv.backends.block import Block
from vecenv.backends.free_threading import has_gil, stack_of_thread
from vecenv.backends.host.env_access import copy_data
from vecenv.backends.host.env_host import EnvHost, EnvReport
from vecenv.backends.host.failure import Failure
from vecenv.backends.host.operation import run_in_new_loop, run_operation
from vecenv.backends.ipc.waiting import SpinWait
from vecenv.backends.memory.shared_memory import A_CALL, DOING, NOTHING
from vecenv.backends.worker.round_server import BlockRounds

if TYPE_CHECKING:
    from vecenv.backends.thread import ThreadBackend

LOOKS = 200


class BlockThread(Block):
    """Thread that makes the envs, then calls the functions in the queue `_work`, until it finds `None` there."""

    def __init__(self, index: int, ids: range, backend: ThreadBackend) -> None:
        host = EnvHost(backend.env_fns[ids.start : ids.stop], ids.start, local=True, coroutines=True)
        super().__init__(index, ids, backend, host)
        self.reports: list[EnvReport] | Failure | None = None
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.post = self._work.put
        warn = partial(self.deliver, backend.warn, len(ids))
        self._rounds = BlockRounds(self._host, len(ids), backend.eager, self.line, warn)
        self.everyone = self._rounds.everyone
        self.thread = Thread(target=self._run, name=f"vecenv-block-{index}", daemon=True)

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
    def has_ended(self) -> bool:
        return not self.alive or (self.thread.ident is not None and not self.thread.is_alive())

    def stack(self) -> str:
        if not self.thread.is_alive():
            return "(the thread has ended)"
        return stack_of_thread(self.thread.ident or 0)

    @property
    def coroutines(self) -> list[bool]:
        """True for each coroutine env."""
        return self._host.coroutines

    def split(self) -> list[EnvHost]:
        """Return a host per env, and end the thread."""
        hosts = self._host.split()
        self.post(None)
        return hosts

    def _run(self) -> None:
        try:
            self.deliver(setattr, self, "reports", self._host.construct())
            looking = SpinWait(LOOKS)
            while True:
                if self._backend.looks and not has_gil():
                    looking.until(self._has_work)
                if (work := self._work.get()) is None:
                    break
                work()
        # The host catches errors of envs, so this is an error of vecenv, or the IndexError after `abandon`.
        except BaseException as error:
            self._backend.note_end(self, error)
        finally:
            if self.closes_envs:
                closes = run_in_new_loop if any(self.coroutines) else run_operation
                self.problems = closes(self._host.closing())

    def _has_work(self) -> bool:
        return not self._work.empty()

    def round(self, asked: bytes, payloads: Mapping[int, Any]) -> None:
        def payload(j: int, op: int) -> Any:
            return payloads[self.start + j]

        answer = partial(self.deliver, self.write)
        self._rounds.timed(self._rounds.run_block, asked, self._rows.action, payload, answer)

    def call(self, call: EnvCall, args: Mapping[int, tuple[Any, ...]]) -> None:
        self.line[DOING] = A_CALL
        values = {i: self._host.call(i - self.start, call.op, args[i]) for i in args}
        if self._backend.copies:
            values = {i: copy_data(value) for i, value in values.items()}
        self.line[DOING] = NOTHING
        self.deliver(call.found.update, values)
