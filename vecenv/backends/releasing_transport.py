"""A transport that releases the caller's OpenMP pool before rounds. It takes another's place while that may help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.layout import Layout
from vecenv.backends.pool.openmp_release import OpenMPRelease
from vecenv.backends.pool.worker_handle import WorkerHandle
from vecenv.backends.transport import Transport


class ReleasingTransport(Transport):
    """Does what `transport` does, and calls `release` before rounds and around waits."""

    def __init__(self, transport: Transport, release: OpenMPRelease) -> None:
        self._transport, self._release = transport, release

    def worker_args(self, worker: WorkerHandle) -> Any:
        return self._transport.worker_args(worker)

    def bind(self, layout: Layout, n: int) -> Arena:
        return self._transport.bind(layout, n)

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        self._release.before_round()
        self._transport.send(ids, ops, payloads)

    def spin(self, done: Callable[[], bool], last_wait: float) -> bool:
        self._release.wait_begins()
        return self._transport.spin(done, last_wait)

    def sleeping(self, done: Callable[[], bool]) -> Callable[[], bool]:
        return self._transport.sleeping(done)

    def awake(self) -> None:
        self._release.wait_ends()
        self._transport.awake()

    def take_rows(self, worker: WorkerHandle, payload: bytes) -> bytes | memoryview:
        return self._transport.take_rows(worker, payload)
