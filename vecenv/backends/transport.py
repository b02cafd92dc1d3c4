"""Transport: carries rounds to the workers of a pool, and their answers back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.layout import Layout
from vecenv.backends.pool.worker_handle import WorkerHandle
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.backends.worker.round_server import RoundServer


class Transport(ABC):
    """The parent's side of carrying rounds and answers; `server` is the worker's side."""

    server: type[RoundServer]

    def open(self, pool: WorkerPool, n: int) -> None:
        """Prepare for the workers of `n` envs, which are not started yet."""
        self._pool = pool

    def worker_args(self, worker: WorkerHandle) -> Any:
        """The arguments of the server besides `WorkerArgs`."""
        return None

    @abstractmethod
    def bind(self, layout: Layout, n: int) -> Arena:
        """Make the parent's arena for `n` envs."""

    def serves(self, worker: WorkerHandle) -> None:  # noqa: B027
        """Called when the envs of a worker have been made, at first and after a restart."""

    @abstractmethod
    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        """As `Backend.send`."""

    @abstractmethod
    def spin(self, done: Callable[[], bool], last_wait: float) -> bool:
        """Look for answers for a moment, without sleeping; returns `done()`. `last_wait`: seconds of the last wait."""

    def sleeping(self, done: Callable[[], bool]) -> Callable[[], bool]:
        """Called before the parent sleeps until `done()`; returns the test to use while it sleeps."""
        return done

    def awake(self) -> None:  # noqa: B027  most transports have nothing to do
        """Called when the parent sleeps no longer."""

    @abstractmethod
    def take_rows(self, worker: WorkerHandle, payload: bytes) -> bytes | memoryview:
        """Take the rows of an ANSWERS frame into the arena; returns the pickled extras."""

    def notify(self, worker: WorkerHandle) -> None:  # noqa: B027
        """Called when a frame was posted to a worker that serves rounds."""
