"""EnvStatus: what each env is doing, read from the status bytes, which are the only record of what is in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenv.backends.ipc import opcodes

Order = Sequence["np.ndarray | None"]
"""The ids of rounds in flight, as they were asked for (None: all)."""


class EnvStatus:
    """Reads the status bytes of the envs of an engine; writes only which envs are abandoned.

    An env is abandoned when a call that waited for it was interrupted: its answer will be discarded.
    """

    def __init__(self, status: np.ndarray, is_async: bool) -> None:
        self._array = status
        self.bytes: Any = status.data
        self.is_async = is_async
        n = self._n = len(status)
        self.all_ids = list(range(n))
        self.all_idle = bytes([opcodes.IDLE]) * n
        self._all_done = bytes([opcodes.DONE]) * n
        self.abandoned: set[int] = set()
        self.all_answered = self.enough(n)

    @property
    def in_flight(self) -> int:
        """How many envs have an operation whose result is not taken yet."""
        return self._n - self.bytes.tobytes().count(opcodes.IDLE) - len(self.abandoned)

    @property
    def waiting_ids(self) -> list[int]:
        """The ids of the envs in flight."""
        if self.bytes.tobytes() == self.all_idle:
            return []
        return [i for i in self.all_ids if self.bytes[i] != opcodes.IDLE and i not in self.abandoned]

    @property
    def idle_ids(self) -> list[int]:
        """The envs with no operation in flight."""
        return [i for i in self.all_ids if self.bytes[i] == opcodes.IDLE]

    def has_answered(self, i: int) -> bool:
        """Whether the result of env i can be taken."""
        return bool(self.bytes[i] >= opcodes.DONE)

    def enough(self, need: int) -> Callable[[], bool]:
        """A test whether `need` envs have answered, fast enough to poll in a loop."""
        status, all_done = self.bytes, self._all_done
        if self.abandoned:
            ids = [i for i in self.all_ids if i not in self.abandoned]
            return lambda: sum(status[i] >= opcodes.DONE for i in ids) >= need

        def enough() -> bool:
            raw = status.tobytes()
            return raw == all_done or len(raw.translate(None, opcodes.NOT_DONE)) >= need

        return enough

    def answered(self, asked: Sequence[int]) -> Callable[[], bool]:
        """A test whether these envs have answered."""
        if self.in_flight == len(asked):
            return self.enough(len(asked))
        status = self.bytes
        return lambda: all(status[i] >= opcodes.DONE for i in asked)

    def finished_ids(self, order: Order) -> np.ndarray:
        """The envs to return now: in the order in which they were sent when all are back, else in ascending order."""
        if not self.is_async:
            parts = [np.arange(self._n) if part is None else part for part in order]
            if sum(map(len, parts)) == self.in_flight:
                return np.concatenate(parts)
        answered = self._array >= opcodes.DONE
        answered[list(self.abandoned)] = False
        return np.flatnonzero(answered)

    def first_busy(self, ids: np.ndarray | None) -> int | None:
        """The first of these envs (None: of all) that is not idle."""
        if self.bytes.tobytes() == self.all_idle:
            return None
        busy = self._array[... if ids is None else ids] != opcodes.IDLE
        if not busy.any():
            return None
        return int(np.flatnonzero(busy)[0] if ids is None else ids[busy][0])
