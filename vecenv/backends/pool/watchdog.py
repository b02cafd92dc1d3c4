"""Watchdog: notices an env that does not return, finds its stack, and ends its worker if `step_timeout` is set."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vecenv.backends.memory.shared_memory import DOING, ELSEWHERE, NOTHING, PROGRESS
from vecenv.backends.pool.worker_handle import Reason, Watched, hung, silent
from vecenv.errors import warn_caller

WARN_AFTER = 60.0
"""Without `step_timeout`: seconds after which a warning shows the stack of an env that hangs."""


class Watchdog:
    """Adds up, for each worker, how long it has made no progress while an answer is missing. `limit`: `step_timeout`.

    The sum goes on from one wait to the next, because waits may be short, and the time between them counts too. It is
    looked at once in a tenth of the limit, within waits and after each: so a hang is noticed at most two tenths late
    while the caller waits, else by its next call. Of the time between two looks at most half the limit counts, because
    this program and its workers may have been stopped meanwhile. `kill(worker, reason)` ends a worker.
    """

    def __init__(self, limit: float | None, kill: Callable[[Any, Reason], None]) -> None:
        self._kill = None if limit is None else kill
        self._limit = WARN_AFTER if limit is None else limit
        self._interval = self._limit / 10
        self._next = 0.0
        self._seen: dict[Watched, tuple[Any, float, float]] = {}
        """Of each worker at the last check: its numbers, for how long they have been these, and when that was."""

    def is_due(self) -> bool:
        """True if it is time for the next check."""
        return time.monotonic() >= self._next

    def discard(self, worker: Watched) -> None:
        """Discard what was seen of a worker that has been replaced."""
        self._seen.pop(worker, None)

    def start(self) -> float:
        """To be called when a wait begins; returns the time of the next check (of time.monotonic)."""
        return max(self._next, time.monotonic() + self._interval / 2)

    def check(self, unanswered: Mapping[Any, Sequence[int]]) -> float:
        """Check the workers whose answers are missing, and end those that hang; returns the time of the next check.

        `unanswered` are the workers that have not answered in full, with the envs whose answers are missing.
        """
        now = time.monotonic()
        before, self._seen = self._seen, {}
        for worker, ids in unanswered.items():
            numbers = worker.line[PROGRESS], worker.line[DOING]
            seen, spent, at = before.get(worker, (None, 0.0, 0.0))
            spent = spent + min(now - at, self._limit / 2) if seen == numbers else 0.0
            if spent >= self._limit and worker.alive and self._is_over(worker, spent, ids):
                self._hung(worker, ids, *numbers)
                spent = 0.0
            now = time.monotonic()
            self._seen[worker] = numbers, spent, now
        self._next = now + self._interval
        return self._next

    def _is_over(self, worker: Watched, spent: float, ids: Sequence[int]) -> bool:
        """Return whether a worker without progress hangs.

        A worker that reports no progress watches its envs by itself. It may take the limit for each env, and once more.
        """
        return worker.reports_progress or spent >= self._limit * (len(ids) + 1) or worker.is_silent()

    def _hung(self, worker: Watched, ids: Sequence[int], progress: int, doing: int) -> None:
        if self._kill is not None and worker.is_silent():
            self._kill(worker, silent(worker.title, worker.ending, self._limit))
            return
        env_id = worker.start + progress % len(worker.ids)
        if doing in (NOTHING, ELSEWHERE):  # the progress number is that of the env that it used last
            env_id = next(iter(ids), env_id)
        stack = worker.stack()
        if self._kill is None:
            warn_caller(f"env {env_id} ({worker.title}) has been busy for {self._limit:.0f} s; it is at\n{stack}")
        else:
            self._kill(worker, hung(worker.ending, env_id, self._limit, stack))
