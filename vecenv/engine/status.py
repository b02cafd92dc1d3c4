"""Status of each env: in flight, ready, or waiting for a reset after an interrupt."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np

from vecenv.backends.backend import Backend, Taken
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.engine.mark import RECOVERY_TIMEOUT, SIGNAL, Mark
from vecenv.engine.recovery import Recovery
from vecenv.errors import ConcurrentCallError


class EnvStatus:
    """Reads the status bytes of the envs of an engine; refuses envs that are still stepping, that failed or, with
    `strict`, that need a reset.
    """

    def __init__(self, backend: Backend, recovery: Recovery, mark: Mark, is_async: bool, strict: bool) -> None:
        self._backend, self._recovery, self._mark = backend, recovery, mark
        self._array = backend.arena.status
        self.bytes: Any = self._array.data
        self.is_async, self.strict = is_async, strict
        n = self._n = len(self._array)
        self._unreset = np.ones(n, dtype=np.bool_)
        self.all_ids = list(range(n))
        self.all_idle = bytes([opcodes.IDLE]) * n
        self._all_done = bytes([opcodes.DONE]) * n
        self.order: list[np.ndarray | None] = []
        """The ids of each round in flight, as they were asked for (None: all)."""
        self.all_answered = self.enough(n)

    @property
    def in_flight(self) -> int:
        """Number of envs with an operation whose result is not taken yet."""
        return 0 if self.was_interrupted else self._n - self.bytes.tobytes().count(opcodes.IDLE)

    @property
    def waiting_ids(self) -> list[int]:
        """The ids of the envs in flight."""
        return [] if self.was_interrupted else self._busy_ids()

    def _busy_ids(self) -> list[int]:
        raw = self.bytes.tobytes()
        return [] if raw == self.all_idle else [i for i in self.all_ids if raw[i] != opcodes.IDLE]

    @property
    def was_interrupted(self) -> bool:
        """True if an interrupt has ended the last call: the next one discards what is in flight."""
        return bool(self._mark.is_set) and not self._mark.is_in_use(sys._getframe(1))

    @property
    def interrupted_ids(self) -> list[int]:
        """The envs that need a reset because an interrupt has ended the last call."""
        return sorted({*self._mark.ids, *self._busy_ids()})

    def recover(self, caller: FrameType) -> None:
        """After an interrupted call: discard what is in flight, and clear the mark. Its envs need a reset then.

        `caller` is the frame that called the method which found the mark set. An interrupt in here leaves it set.
        """
        mark = self._mark
        if not mark.is_set:  # another thread's call has ended meanwhile
            return
        if mark.is_in_use(caller):
            busy = self._busy_ids()
            raise ConcurrentCallError(
                "another call waits for this vector env, and "
                + (f"env {busy[0]} is still stepping" if busy else "has not ended")
                + "; make the calls one after the other"
            )
        mark.ids = self.interrupted_ids
        self._backend.resynchronise(time.monotonic() + RECOVERY_TIMEOUT)
        self._recovery.note_interrupted(mark.ids, mark.cause)
        self.order = []
        mark.is_set, mark.cause = False, SIGNAL

    def enough(self, need: int) -> Callable[[], bool]:
        """A test whether `need` envs have answered, fast enough to poll in a loop."""
        status, all_done = self.bytes, self._all_done

        def enough() -> bool:
            raw = status.tobytes()
            return raw == all_done or len(raw.translate(None, opcodes.NOT_DONE)) >= need

        return enough

    def answered(self, asked: Sequence[int]) -> Callable[[], bool]:
        """A test whether these envs have answered."""
        if len(self._busy_ids()) == len(asked):
            return self.enough(len(asked))
        status = self.bytes
        return lambda: all(status[i] >= opcodes.DONE for i in asked)

    def finished_ids(self) -> np.ndarray:
        """The envs to return now: in the order in which they were sent when all are back, else in ascending order."""
        order, self.order = self.order, []
        if not self.is_async:
            parts = [np.arange(self._n) if part is None else part for part in order]
            if sum(map(len, parts)) == len(self._busy_ids()):
                return np.concatenate(parts)
        return np.flatnonzero(self._array >= opcodes.DONE)

    @property
    def failed_ids(self) -> list[int]:
        """The envs that failed and accept nothing but a reset."""
        if self.was_interrupted:
            return sorted({*self._recovery.errors, *self.interrupted_ids})
        waiting = self.waiting_ids
        return [i for i in sorted(self._recovery.errors) if i not in waiting]

    @property
    def ready_ids(self) -> list[int]:
        """The envs that can be stepped."""
        busy, failed = self._busy_ids(), self.failed_ids
        return [i for i in self.all_ids if i not in busy and i not in failed]

    def check_idle(self, ids: np.ndarray | None) -> None:
        """RuntimeError, with the env named, if one of these envs (None: any) is still stepping."""
        if self.bytes.tobytes() == self.all_idle:
            return
        busy = np.flatnonzero(self._array[... if ids is None else ids] != opcodes.IDLE)
        if not len(busy) or self.was_interrupted:
            return
        first = int(busy[0] if ids is None else ids[busy[0]])
        raise RuntimeError(
            f"Cannot interact with environment {first} which is stepping now: env {first} is still stepping; "
            "wait for it with step(None)"
            + (", or pass only the ids that were returned: step(action, id)" if self.is_async else "")
        )

    def check_steps(self, ids: np.ndarray | None, resets: np.ndarray | None) -> None:
        """RuntimeError for envs that are stepping, or that need a reset and are not among `resets`."""
        self.check_idle(ids)
        recovery = self._recovery
        recovery.note_lost()
        wrong = (self._unreset if ids is None else self._unreset[ids]) & self.strict
        if recovery.errors and not recovery.absorbs:
            wrong |= np.isin(np.arange(len(wrong)) if ids is None else ids, list(recovery.errors))
        if resets is not None:
            wrong &= ~resets
        for row in wrong.nonzero()[0].tolist():
            i = row if ids is None else int(ids[row])
            if not recovery.absorbs:
                recovery.check(i)
            raise RuntimeError(
                f"env {i} has not been reset, or its episode is over; call reset({i}) first (strict=True)"
            )

    def note_ends(self, ids: np.ndarray | None, taken: Taken, arena: Arena) -> None:
        """`strict`: note which envs need a reset, as their episode ended and the same round has not reset them."""
        rows: Any = ... if ids is None else ids
        self._unreset[rows] = arena.terminated[rows] | arena.truncated[rows]
        self._unreset[[i for i, extra in taken.extras.items() if extra.final is not None]] = False

    def note_begun(self, i: int, needs_reset: bool = False) -> None:
        """Note that env i was reset, or put into a state, without a round; or that it needs a reset."""
        self._unreset[i] = needs_reset
