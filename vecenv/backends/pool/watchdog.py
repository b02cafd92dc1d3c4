"""`Watchdog`: detects envs that hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vecenv.backends.host.failure import one_of
from vecenv.backends.memory.shared_memory import DOING, PROGRESS
from vecenv.backends.pool.worker_handle import Reason, Watched, hung, silent, suspects_of
from vecenv.errors import warn_caller

WARN_AFTER = 60.0
"""Seconds until a warning shows the stack of a hanging env, if `step_timeout` is not set."""


class Watchdog:
    """Detector of workers that owe an answer but make no progress for `limit` seconds (`step_timeout`).

    - Seconds without progress add up over waits for results, because waits may be short.
    - Checks happen only during waits for results, every tenth of the limit. So a hang may be noticed two tenths late.
    - A check adds at most half the limit, because the program may have been stopped since the last check.
    """

    def __init__(self, limit: float | None, kill: Callable[[Any, Reason], None]) -> None:
        self._kill = None if limit is None else kill
        self._limit = WARN_AFTER if limit is None else limit
        self._interval = self._limit / 10
        self._next = 0.0
        self._seen: dict[Watched, tuple[Any, float, float]] = {}
        """Per worker: progress, seconds without progress, and time of the last check."""

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def discard(self, worker: Watched) -> None:
        self._seen.pop(worker, None)

    def start(self) -> float:
        return max(self._next, time.monotonic() + self._interval / 2)

    def check(self, unanswered: Mapping[Any, Sequence[int]]) -> float:
        """Kill workers that hang, or only warn if `step_timeout` is None. Return the time of the next check.

        `unanswered`: ids of the envs whose answer is missing, by worker.
        """
        now = time.monotonic()
        before, self._seen = self._seen, {}
        for worker, ids in unanswered.items():
            numbers = worker.line[PROGRESS], worker.line[DOING]
            seen, spent, at = before.get(worker, (None, 0.0, 0.0))
            reported = spent // self._limit
            spent = spent + min(now - at, self._limit / 2) if seen == numbers else 0.0
            if spent // self._limit > reported and worker.alive and self._is_over(worker, spent, ids):
                self._hung(worker, suspects_of(worker, ids), spent)
            now = time.monotonic()
            self._seen[worker] = numbers, spent, now
        self._next = now + self._interval
        return self._next

    def _is_over(self, worker: Watched, spent: float, ids: Sequence[int]) -> bool:
        """Return True if `spent` seconds without progress mean that the worker hangs.

        A worker that does not report progress applies the limit to each env itself (`HangGuard`). So the parent waits
        for the sum of these limits, plus one limit, unless the worker's node is silent.
        """
        return worker.reports_progress or spent >= self._limit * (len(ids) + 1) or worker.is_silent()

    def _hung(self, worker: Watched, suspects: Sequence[int], spent: float) -> None:
        if self._kill is not None and worker.is_silent():
            self._kill(worker, silent(worker.title, worker.ending, self._limit))
            return
        stack = worker.stack()
        if self._kill is None:
            # Python drops a warning with the text of an earlier warning.
            warn_caller(
                f"{one_of(suspects)} ({worker.title}) has been busy for {spent:.0f} s; step_timeout=seconds ends envs "
                f"that are busy for longer; it is at\n{stack}"
            )
        else:
            self._kill(worker, hung(worker.ending, suspects, self._limit, stack))
