"""Requests: what a worker is asked besides rounds, until it has answered or ended."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

from vecenv.backends.host.failure import Failure, died_failure, read_value


class Request:
    """Sent to the worker that hosts the envs from `first_id` on."""

    def __init__(self, first_id: int) -> None:
        self._first_id = first_id
        self.reply: bytes | None = None
        self.lost: dict[int, BaseException] | None = None
        """Where the worker ended instead of replying: the reason, for each of its envs."""
        self.extras_of: set[int] = set()
        """Envs whose extras could not be read: the reply brings them once more."""

    @property
    def is_settled(self) -> bool:
        return self.reply is not None or self.lost is not None

    def values(self, op: str) -> dict[int, Any | Failure]:
        """What the envs of the worker answered to `op`."""
        if self.reply is None:
            return {i: died_failure(i, op, error) for i, error in (self.lost or {}).items()}
        first = self._first_id
        return {first + j: read_value(blob, first + j, op) for j, blob in pickle.loads(self.reply).items()}


class Call(NamedTuple):
    """An operation that envs of several workers were asked for."""

    ids: Sequence[int]
    op: str
    requests: list[Request]
