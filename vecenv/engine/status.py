"""`EnvStatus`: state of each env: in flight, ready, failed, or in need of a reset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import numpy as np

from vecenv.backends.backend import Backend, Taken
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.engine.mark import BROKEN, Mark
from vecenv.engine.recovery import Recovery
from vecenv.errors import not_reset


class EnvStatus:
    def __init__(self, backend: Backend, recovery: Recovery, mark: Mark, is_async: bool, strict: bool) -> None:
        self._backend, self._recovery, self._mark = backend, recovery, mark
        self._array = backend.arena.status
        self.bytes: Any = self._array.data
        self.is_async, self.strict = is_async, strict
        n = self._n = len(self._array)
        self._needs_reset = np.ones(n, dtype=np.bool_)
        self.all_ids = list(range(n))
        self.all_idle = bytes([opcodes.IDLE]) * n
        self._all_done = bytes([opcodes.DONE]) * n
        self.rounds_in_flight: list[np.ndarray | None] = []
        """Env ids (`None`: all) of each `send` whose results the caller has not received."""
        self.all_answered = self.enough(n)

    @property
    def in_flight(self) -> int:
        return 0 if self.was_interrupted else self._n - self.bytes.tobytes().count(opcodes.IDLE)

    @property
    def waiting_ids(self) -> list[int]:
        return [] if self.was_interrupted else self._busy_ids()

    def _busy_ids(self) -> list[int]:
        raw = self.bytes.tobytes()
        return [] if raw == self.all_idle else [i for i in self.all_ids if raw[i] != opcodes.IDLE]

    @property
    def was_interrupted(self) -> bool:
        return self._mark.owner == BROKEN

    def refuse(self) -> None:
        """Raise the error of a call during a call of a different thread, or after an interrupted call."""
        busy = self._busy_ids()
        self._mark.refuse(f"env {busy[0]} is still stepping" if busy else "has not ended")

    def unanswered_ids(self) -> list[int]:
        raw = self.bytes.tobytes()
        return [i for i in self.all_ids if opcodes.IDLE < raw[i] < opcodes.DONE]

    def enough(self, need: int) -> Callable[[], bool]:
        status, all_done = self.bytes, self._all_done

        def enough() -> bool:
            raw = status.tobytes()
            return raw == all_done or len(raw.translate(None, opcodes.NOT_DONE)) >= need

        return enough

    def answered(self, asked: Sequence[int]) -> Callable[[], bool]:
        if self._n - self.bytes.tobytes().count(opcodes.IDLE) == len(asked):
            return self.enough(len(asked))
        status = self.bytes
        return lambda: all(status[i] >= opcodes.DONE for i in asked)

    def finished_ids(self) -> np.ndarray:
        """Return the ids of envs that have answered, in the order of the `send` calls. In async mode, ids ascend."""
        order, self.rounds_in_flight = self.rounds_in_flight, []
        if not self.is_async:
            parts = [np.arange(self._n) if part is None else part for part in order]
            if sum(map(len, parts)) == len(self._busy_ids()):
                return np.concatenate(parts)
        return np.flatnonzero(self._array >= opcodes.DONE)

    @property
    def failed_ids(self) -> list[int]:
        if self.was_interrupted:
            return list(self.all_ids)
        waiting = self.waiting_ids
        return [i for i in sorted(self._recovery.errors) if i not in waiting]

    @property
    def ready_ids(self) -> list[int]:
        busy, failed = self._busy_ids(), self.failed_ids
        return [i for i in self.all_ids if i not in busy and i not in failed]

    def check_idle(self, ids: np.ndarray | None) -> None:
        if self.bytes.tobytes() == self.all_idle:
            return
        busy = np.flatnonzero(self._array[... if ids is None else ids] != opcodes.IDLE)
        if not len(busy) or self.was_interrupted:
            return
        if self._mark.owner not in (0, get_ident()):
            self.refuse()
        first = int(busy[0] if ids is None else ids[busy[0]])
        raise RuntimeError(
            f"Cannot interact with environment {first} which is stepping now: env {first} is still stepping; "
            "wait for it with step(None)"
            + (", or pass only the ids that were returned: step(action, id)" if self.is_async else "")
        )

    def check_steps(self, ids: np.ndarray | None, resets: np.ndarray | None) -> None:
        """Raise if an env is in flight, or if an env outside `resets` has failed or (with `strict`) needs a reset."""
        self.check_idle(ids)
        recovery = self._recovery
        recovery.record_lost()
        if not (self.strict or recovery.errors):
            return
        wrong = (self._needs_reset if ids is None else self._needs_reset[ids]) & self.strict
        if recovery.errors and not recovery.absorbs:
            wrong |= np.isin(np.arange(len(wrong)) if ids is None else ids, list(recovery.errors))
        if resets is not None:
            wrong &= ~resets
        for row in wrong.nonzero()[0].tolist():
            i = row if ids is None else int(ids[row])
            if not recovery.absorbs:
                recovery.check(i)
            raise not_reset(i)

    def record_ends(self, ids: np.ndarray | None, taken: Taken, arena: Arena) -> None:
        rows: Any = ... if ids is None else ids
        self._needs_reset[rows] = arena.terminated[rows] | arena.truncated[rows]
        self._needs_reset[[i for i, extra in taken.extras.items() if extra.final is not None]] = False

    def record_reset(self, i: int, needs_reset: bool = False) -> None:
        self._needs_reset[i] = needs_reset
