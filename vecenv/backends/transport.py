"""`Transport`: carries the rounds of a process backend, and their answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vecenv.backends.memory.arena import Arena, Layout
from vecenv.backends.pool.worker_handle import WorkerHandle
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.backends.worker.round_server import RoundServer


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
        """Called when the envs of a worker exist, also after a restart."""

    @abstractmethod
    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        """Do the same as `Backend.send`."""

    @abstractmethod
    def spin(self, done: Callable[[], bool], last_wait: float) -> bool:
        """Look for answers without sleeping, and return `done()`. `last_wait`: seconds of the last wait."""

    def sleeping(self, done: Callable[[], bool]) -> Callable[[], bool]:
        """Prepare to sleep, and return the condition to test while sleeping."""
        return done

    def awake(self) -> None:  # noqa: B027  most transports need no action
        """Called when the parent stops sleeping."""

    @abstractmethod
    def take_rows(self, worker: WorkerHandle, payload: bytes | bytearray) -> bytes | bytearray | memoryview:
        """Copy the rows of an ANSWERS frame into the arena, and return the pickled extras."""

    def announce(self, worker: WorkerHandle) -> None:  # noqa: B027
        """Called before posting a frame to a serving worker."""

    def notify(self, worker: WorkerHandle) -> None:  # noqa: B027
        """Called after posting a frame to a serving worker."""

    def resynchronise(self) -> None:  # noqa: B027
        """Called after an interrupt, when no round or answer is in flight."""
