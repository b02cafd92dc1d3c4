"""Watchdog: notices an env that does not return, says where it is, and ends its worker if `step_timeout` says so."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vecenv.backends.control import PROGRESS
from vecenv.errors import WorkerTimeoutError

if TYPE_CHECKING:
    from vecenv.backends.worker_process import WorkerProcess
    from vecenv.backends.workers import Workers

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


class Watchdog:
    """Remembers, for each worker, when it last got on. `limit` is `step_timeout`."""

    def __init__(self, backend: Workers, limit: float | None) -> None:
        self._backend = backend
        self._kills = limit is not None
        self._limit = SILENCE if limit is None else limit
        self._interval = self._limit / 10
        self._seen: dict[int, tuple[int, float]] = {}

    def start(self) -> float:
        """A wait begins: forget what was seen in earlier ones; returns when to look (time.monotonic)."""
        self._seen.clear()
        return time.monotonic() + self._interval

    def look(self, busy: Sequence[WorkerProcess]) -> float:
        """Check the workers that owe an answer, and end those that hang; returns when to look again."""
        now = time.monotonic()
        for worker in busy:
            progress = self._backend.control.line(worker.index)[PROGRESS]
            # What is seen for the first time may have begun when the wait did.
            seen, since = self._seen.get(worker.index, (progress, now - self._interval))
            if progress != seen:
                since = now
            elif now - since >= self._limit and worker.alive:
                self._hung(worker, progress)
                since = time.monotonic()
            self._seen[worker.index] = progress, since
        return now + self._interval

    def _hung(self, worker: WorkerProcess, progress: int) -> None:
        env_id = worker.start + progress % len(worker.ids)
        stack = self._stack(worker)
        if not self._kills:
            warnings.warn(
                f"env {env_id} (worker pid {worker.pid}) has been busy for {self._limit:.0f} s; it is at\n{stack}",
                RuntimeWarning,
                stacklevel=6,
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
