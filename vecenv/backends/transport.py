"""`Transport`: carries operations (step, reset) from the parent to worker processes, and the results back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vecenv.backends.memory.arena import Arena
from vecenv.backends.pool.worker_handle import WorkerHandle
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.backends.worker.round_server import RoundServer
from vecenv.layout import Layout


class Transport(ABC):
    """Parent's side of a transport. `server` is the worker's side."""

    server: type[RoundServer]

    def open(self, pool: WorkerPool, n: int) -> None:
        self._pool = pool

    def worker_args(self, worker: WorkerHandle) -> Any:
        return None

    @abstractmethod
    def bind(self, layout: Layout, n: int) -> Arena:
        """Build the parent's arena for `n` envs."""

    def serves(self, worker: WorkerHandle) -> None:  # noqa: B027
        """Prepare for a worker that has just made its envs, or has received envs from another worker."""

    @abstractmethod
    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        """Send operations (see `Backend.send`)."""

    @abstractmethod
    def spin(self, done: Callable[[], bool], last_wait: float) -> bool:
        """Busy-wait, and return `done()`. May return False without a wait if `last_wait` (seconds) was long."""

    def sleeping(self) -> None:  # noqa: B027
        """Prepare the parent to sleep, before it checks for results once more."""

    def awake(self) -> None:  # noqa: B027
        """Undo `sleeping`."""

    @abstractmethod
    def take_rows(self, worker: WorkerHandle, payload: bytes | bytearray) -> bytes | bytearray | memoryview:
        """Copy rows from an ANSWERS message to the arena. Return the pickled results that do not fit rows."""

    def resynchronise(self) -> None:  # noqa: B027
        """Reset the transport after an interrupt, when no message is in flight."""
