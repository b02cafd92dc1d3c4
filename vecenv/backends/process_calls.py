"""ProcessCall: an operation in progress in the workers of a pool."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from vecenv.backends.base import Call
from vecenv.backends.host.failure import Failure, died_failure, read_value
from vecenv.backends.pool.worker_handle import WorkerHandle


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
        """What the envs of the worker returned."""
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
