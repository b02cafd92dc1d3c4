"""Counters of an engine, and how long its rounds take."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv.backends.base import WorkerInfo

KEPT_ROUNDS = 1024
"""The percentiles cover this many of the last rounds."""


class Statistics:
    """What an engine counts; it writes the attributes directly, to save function calls."""

    def __init__(self) -> None:
        self.rounds = self.resets = 0
        self.operations = 0
        """Steps and resets of envs."""
        self.call_seconds = self.wait_seconds = 0.0
        """Seconds in calls of the engine, and in those of `Backend.wait`."""
        self.round_seconds: deque[float] = deque(maxlen=KEPT_ROUNDS)

    def summary(self, workers: Sequence[WorkerInfo], restarts: int, absorbed: int) -> dict[str, Any]:
        """What `BaseVectorEnv.stats` returns."""
        busy = [worker.busy_seconds for worker in workers]
        slowest = int(np.argmax(busy)) if any(busy) else None
        p50, p99 = np.percentile(self.round_seconds, (50, 99)).tolist() if self.round_seconds else (None, None)
        return {
            "rounds": self.rounds,
            "steps": self.operations - self.resets,
            "resets": self.resets,
            "dispatch_s": self.call_seconds - self.wait_seconds,
            "wait_s": self.wait_seconds,
            "round_p50_s": p50,
            "round_p99_s": p99,
            "worker_busy_s": busy,
            "slowest_worker": slowest,
            "slowest_env_ids": [] if slowest is None else list(workers[slowest].ids),
            "restarts": restarts,
            "absorbed": absorbed,
        }
