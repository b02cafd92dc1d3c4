"""Everything that travels between a process backend and its workers: rounds, pickled arguments, calls."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.backends.backend import Call, Codec
from vecenv.backends.host.failure import Failure, died_failure, read_value
from vecenv.backends.ipc.serialization import dumps, dumps_by_value
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
    def take_rows(self, worker: WorkerHandle, payload: bytes) -> bytes | memoryview:
        """Take the rows of an ANSWERS frame into the arena; returns the pickled extras."""

    def notify(self, worker: WorkerHandle) -> None:  # noqa: B027
        """Called when a frame was posted to a worker that serves rounds."""


class PickleCodec(Codec):
    """Pickles what does not fit the arena, or raises TypeError. `forked`: workers inherited the script."""

    def __init__(self, forked: bool) -> None:
        self._forked = forked

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        # What is one object for several envs is pickled once, and a worker gets it once: each env unpickles its own.
        blobs: dict[int, bytes] = {}
        for i, payload in payloads.items():
            if id(payload) not in blobs:
                try:
                    blobs[id(payload)] = self._pickled(payload)
                except Exception as error:
                    text = f"the action or argument for env {i} cannot be sent to its worker: {error}"
                    raise TypeError(text) from error
        return {i: blobs[id(payload)] for i, payload in payloads.items()}

    def _pickled(self, payload: Any) -> bytes:
        blob = dumps(payload)
        if b"__main__" in blob and not self._forked:
            return dumps_by_value(payload)  # by value: workers do not run the user's script
        return blob


class Request:
    """One worker's part of a call; done when the worker has replied or ended."""

    def __init__(self, worker: WorkerHandle) -> None:
        self.worker = worker
        self.reply: bytes | None = None
        self.lost: dict[int, BaseException] | None = None
        """If the worker ended instead of replying: the error of each of its envs."""

    def done(self) -> bool:
        return self.reply is not None or self.lost is not None

    def values(self, op: str) -> dict[int, Any | Failure]:
        """Return the values of the envs of the worker."""
        if self.reply is None:
            return {i: died_failure(i, op, error) for i, error in (self.lost or {}).items()}
        first = self.worker.start
        return {first + j: read_value(blob, first + j, op) for j, blob in pickle.loads(self.reply).items()}


class ProcessCall(Call):
    def __init__(self, ids: Sequence[int], op: str, requests: list[Request]) -> None:
        self._ids, self._op, self._requests = ids, op, requests

    def done(self) -> bool:
        return all(request.done() for request in self._requests)

    def values(self) -> list[Any]:
        values: dict[int, Any] = {}
        for request in self._requests:
            values |= request.values(self._op)
        return [values[i] for i in self._ids]
