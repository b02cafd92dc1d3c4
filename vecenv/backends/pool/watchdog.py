"""Watchdog: notices an env that does not return, says where it is, and ends its worker if `step_timeout` says so."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vecenv.backends.ipc.control_block import DOING, NOTHING, PROGRESS
from vecenv.caller_warnings import warn_caller
from vecenv.errors import WorkerTimeoutError

if TYPE_CHECKING:
    from vecenv.backends.pool.worker_handle import WorkerProcess
    from vecenv.backends.pool.worker_pool import Workers

SILENCE = 60.0
"""Without `step_timeout`: seconds after which a warning says where an env hangs."""
STACK_PATIENCE = 0.3
"""Seconds to wait for a worker to write its stack."""


@dataclass
class Hung:
    """Why a worker was killed: one of its envs did not return."""

    env_id: int
    pid: int
    env_ids: tuple[int, ...]
    limit: float
    stack: str

    def told_to(self, env_id: int) -> WorkerTimeoutError:
        """The error for one of the envs of the worker."""
        who = f"env {env_id}" if env_id == self.env_id else f"env {env_id} is lost because env {self.env_id}"
        text = (
            f"{who} has been busy for more than step_timeout={self.limit} s; the worker (pid {self.pid}, "
            f"envs {list(self.env_ids)}) was killed, reset({env_id}) starts it again. "
        )
        error = WorkerTimeoutError(f"{text}Env {self.env_id} was at\n{self.stack}")
        error.env_id, error.env_ids, error.pid = env_id, self.env_ids, self.pid
        error.bystander = env_id != self.env_id
        return error


@dataclass
class _Seen:
    """What a worker was doing when it was looked at, and for how long."""

    progress: int
    doing: int
    spent: float
    at: float = 0.0


class Watchdog:
    """Adds up, for each worker, how long it has not got on while an answer was owed. `limit` is `step_timeout`.

    Waits may be short, one after another: what was seen in one counts in the next.
    """

    def __init__(self, backend: Workers, limit: float | None) -> None:
        self._backend = backend
        self._kills = limit is not None
        self._limit = SILENCE if limit is None else limit
        self._interval = self._limit / 10
        self._next = 0.0
        self._seen: dict[int, _Seen] = {}

    def is_due(self) -> bool:
        """Whether it is time to look."""
        return time.monotonic() >= self._next

    def forget(self, worker: WorkerProcess) -> None:
        """What comes now in place of the worker has done nothing yet."""
        self._seen.pop(worker.index, None)

    def start(self) -> float:
        """A wait begins; returns when to look (time.monotonic)."""
        return max(self._next, time.monotonic() + self._interval / 2)

    def look(self, busy: Sequence[WorkerProcess]) -> float:
        """Check the workers that owe an answer, and end those that hang; returns when to look again."""
        now = time.monotonic()
        before, self._seen = self._seen, {}
        for worker in busy:
            line = self._backend.control.line(worker.index)
            seen = before.get(worker.index)
            if seen is None or (seen.progress, seen.doing) != (line[PROGRESS], line[DOING]):
                seen = _Seen(line[PROGRESS], line[DOING], 0.0)
            else:
                # While nobody looked it may have owed nothing, have waited for us, or have been stopped as we were.
                seen.spent += min(now - seen.at, 2 * self._interval)
                if seen.spent >= self._limit and worker.alive:
                    self._hung(worker, seen)
                    seen.spent = 0.0
            seen.at = now = time.monotonic()
            self._seen[worker.index] = seen
        self._next = now + self._interval
        return self._next

    def _hung(self, worker: WorkerProcess, seen: _Seen) -> None:
        env_id = worker.start + seen.progress % len(worker.ids)
        if seen.doing == NOTHING:  # it has not begun: what it used last was another one, perhaps
            env_id = next(iter(self._backend._pending(worker)), env_id)
        stack = self._stack(worker)
        if not self._kills:
            warn_caller(
                f"env {env_id} (worker pid {worker.pid}) has been busy for {self._limit:.0f} s; it is at\n{stack}"
            )
            return
        self._backend.kill(worker, Hung(env_id, worker.pid, tuple(worker.ids), self._limit, stack))

    def _stack(self, worker: WorkerProcess) -> str:
        """The Python stack of the worker, which it writes by itself even while it is stuck in native code."""
        fd = self._backend.stacks
        before = os.fstat(fd).st_size
        try:
            os.kill(worker.pid, signal.SIGUSR1)
        except ProcessLookupError:
            return "(the worker has ended)"
        deadline = time.monotonic() + STACK_PATIENCE
        size = before
        while time.monotonic() < deadline:
            # The file tells nobody that it has grown: a short look now and then, for a moment, only once an env hangs.
            time.sleep(0.01)
            grown = os.fstat(fd).st_size
            if grown == size > before:
                break
            size = grown
        text = os.pread(fd, size - before, before).decode(errors="replace")
        return text or "(the worker did not answer: stopped?)"
