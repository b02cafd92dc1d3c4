"""Transport: how the rounds of a pool's workers, and their answers, travel."""

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
    """The parent's side of how rounds travel to the workers of a pool and back; `server` is the worker's side."""

    server: type[RoundServer]

    def open(self, pool: WorkerPool, n: int) -> None:
        """The workers of `n` envs are about to be started."""
        self._pool = pool

    def worker_args(self, worker: WorkerHandle) -> Any:
        """What the server is started with besides `WorkerArgs`."""
        return None

    @abstractmethod
    def bind(self, layout: Layout, n: int) -> Arena:
        """The parent's arena."""

    @abstractmethod
    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        """As `Backend.send`."""

    @abstractmethod
    def spin(self, done: Callable[[], bool], last_wait: float) -> bool:
        """Look for answers for a moment, without sleeping; returns `done()`. `last_wait`: seconds of the last wait."""

    def sleeping(self, done: Callable[[], bool]) -> Callable[[], bool]:
        """The caller is about to sleep until `done()`: the test to use meanwhile."""
        return done

    def awake(self) -> None:  # noqa: B027  most transports have nothing to do
        """The caller has woken up."""

    @abstractmethod
    def take_rows(self, worker: WorkerHandle, payload: bytes) -> bytes | memoryview:
        """Take the rows of an ANSWERS frame into the arena; returns the pickled extras."""

    def notify(self, worker: WorkerHandle) -> None:  # noqa: B027
        """A frame was posted to a worker that serves."""
