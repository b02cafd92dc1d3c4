"""Watchdog: notices an env that does not return, finds its stack, and ends its worker if `step_timeout` is set."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vecenv.backends.memory.shared_memory import DOING, ELSEWHERE, NOTHING, PROGRESS
from vecenv.backends.pool.worker_handle import Hung
from vecenv.errors import warn_caller

WARN_AFTER = 60.0
"""Without `step_timeout`: seconds after which a warning shows the stack of an env that hangs."""
STACK_TIMEOUT = 0.3
"""Seconds to wait for a worker to write its stack."""


class Watched(Protocol):
    """A worker: a process or a thread."""

    index: int
    start: int
    ids: range

    @property
    def alive(self) -> bool:
        """True if the worker is still to be watched."""

    @property
    def title(self) -> str:
        """The worker's name in warnings."""

    @property
    def ending(self) -> str:
        """The measure taken because an env hung, as part of an error text."""


class Lines(Protocol):
    """The progress numbers of all workers."""

    def line(self, worker: int, /) -> Any:
        """The numbers of one worker (see `Control`)."""


Unanswered = Mapping[Any, Sequence[int]]
"""The workers (`Watched`) that have not answered in full, each with the ids of the envs whose answers are missing."""


@dataclass
class _Seen:
    """Activity of a worker at the last check, and its duration."""

    progress: int
    doing: int
    spent: float
    at: float = 0.0


class Watchdog:
    """Adds up, for each worker, how long it has made no progress while an answer is missing. `limit`: `step_timeout`.

    The sum goes on from one wait to the next, because waits may be short, and the time between them counts too. It is
    looked at once in a tenth of the limit, within waits and after each: so a hang is noticed at most two tenths late
    while the caller waits, else by its next call. Of the time between two looks at most half the limit counts, because
    this program and its workers may have been stopped meanwhile. `stack(worker)` returns the stack of a worker,
    `kill(worker, reason)` ends it.
    """

    def __init__(
        self,
        control: Lines,
        stack: Callable[[Any], str],
        limit: float | None,
        kill: Callable[[Any, Hung], None],
    ) -> None:
        self._control = control
        self._stack = stack
        self._kill = None if limit is None else kill
        self._limit = WARN_AFTER if limit is None else limit
        self._interval = self._limit / 10
        self._next = 0.0
        self._seen: dict[int, _Seen] = {}

    def is_due(self) -> bool:
        """True if it is time for the next check."""
        return time.monotonic() >= self._next

    def discard(self, worker: Watched) -> None:
        """Discard what was seen of a worker that has been replaced."""
        self._seen.pop(worker.index, None)

    def start(self) -> float:
        """To be called when a wait begins; returns the time of the next check (of time.monotonic)."""
        return max(self._next, time.monotonic() + self._interval / 2)

    def check(self, unanswered: Unanswered) -> float:
        """Check the workers whose answers are missing, and end those that hang; returns the time of the next check."""
        now = time.monotonic()
        before, self._seen = self._seen, {}
        for worker, ids in unanswered.items():
            line = self._control.line(worker.index)
            seen = before.get(worker.index)
            if seen is None or (seen.progress, seen.doing) != (line[PROGRESS], line[DOING]):
                seen = _Seen(line[PROGRESS], line[DOING], 0.0)
            else:
                seen.spent += min(now - seen.at, self._limit / 2)
                if seen.spent >= self._limit and worker.alive:
                    self._hung(worker, ids, seen)
                    seen.spent = 0.0
            seen.at = now = time.monotonic()
            self._seen[worker.index] = seen
        self._next = now + self._interval
        return self._next

    def _hung(self, worker: Watched, ids: Sequence[int], seen: _Seen) -> None:
        env_id = worker.start + seen.progress % len(worker.ids)
        if seen.doing in (NOTHING, ELSEWHERE):  # the progress number is that of the env that it used last
            env_id = next(iter(ids), env_id)
        stack = self._stack(worker)
        if self._kill is None:
            warn_caller(f"env {env_id} ({worker.title}) has been busy for {self._limit:.0f} s; it is at\n{stack}")
        else:
            self._kill(worker, Hung(worker.ending, env_id, self._limit, stack))


def stack_of_process(stacks: int, pid: int) -> str:
    """The Python stack of a worker, which it writes to `stacks` by itself even while it is stuck in native code."""
    before = os.fstat(stacks).st_size
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return "(the worker has ended)"
    deadline = time.monotonic() + STACK_TIMEOUT
    size = before
    while time.monotonic() < deadline:
        # No event reports that a file has grown, so it is polled: briefly, and only once an env hangs.
        time.sleep(0.01)
        grown = os.fstat(stacks).st_size
        if grown == size > before:
            break
        size = grown
    text = os.pread(stacks, size - before, before).decode(errors="replace")
    return text or "(the worker did not write its stack; is it stopped?)"
