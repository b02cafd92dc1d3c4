"""Supervisor: what `on_error` allows, and how often."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

WINDOW = 60.0


class Supervisor:
    """Keeps the budget of restarts: `max_restarts` failures an env within a minute are absorbed, the next one is raised."""

    def __init__(self, on_error: Any, max_restarts: Any, n: int) -> None:
        if on_error not in ("raise", "restart"):
            raise ValueError(f'on_error must be "raise" or "restart", got {on_error!r}')
        if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 1:
            raise ValueError(f"max_restarts must be a positive integer, got {max_restarts!r}")
        self.active = on_error == "restart"
        self.restarts = 0
        self.absorbed = 0
        self._times: list[deque[float]] = [deque(maxlen=max_restarts) for _ in range(n)]

    def may_restart(self, env_id: int) -> bool:
        """Whether one more failure of the env is absorbed; counts it if so."""
        if not self.active:
            return False
        times, now = self._times[env_id], time.monotonic()
        if len(times) == times.maxlen and now - times[0] < WINDOW:
            return False
        times.append(now)
        self.absorbed += 1
        return True
