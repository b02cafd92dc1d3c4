"""Transport: the way in which the rounds of a process backend, and their answers, travel."""

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
    def take_rows(self, worker: WorkerHandle, payload: bytes | bytearray) -> bytes | bytearray | memoryview:
        """Take the rows of an ANSWERS frame into the arena; returns the pickled extras."""

    def announce(self, worker: WorkerHandle) -> None:  # noqa: B027
        """Called before a frame is posted to a worker that serves rounds."""

    def notify(self, worker: WorkerHandle) -> None:  # noqa: B027
        """Called when a frame was posted to a worker that serves rounds."""

    def resynchronise(self) -> None:  # noqa: B027
        """Called after an interrupt, when no worker has a round or an answer under way."""
