"""Status of each env: in flight, ready, or waiting for a reset after an interrupt."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenv.backends.backend import Backend, Taken
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.engine.recovery import Recovery
from vecenv.errors import VectorEnvError

Order = Sequence["np.ndarray | None"]
"""The ids of rounds in flight, as they were asked for (None: all)."""


INTERRUPTS = (KeyboardInterrupt, SystemExit)
"""Exceptions that signal handlers raise in the middle of a call, mainly KeyboardInterrupt on Ctrl-C."""
DRAIN_TIMEOUT = 5.0
"""Seconds that a reset waits for the envs of an interrupted call before it starts their workers again."""


class EnvStatus:
    """Reads the status bytes of the envs of an engine; refuses envs that are still stepping, that failed or, with
    `strict`, that need a reset.

    An env is abandoned when a call that waited for it was interrupted: its answer will be discarded.
    """

    def __init__(self, backend: Backend, recovery: Recovery, is_async: bool, strict: bool) -> None:
        self._backend, self._recovery = backend, recovery
        self._array = backend.arena.status
        self.bytes: Any = self._array.data
        self.is_async, self.strict = is_async, strict
        n = self._n = len(self._array)
        self._unreset = np.ones(n, dtype=np.bool_)
        self.all_ids = list(range(n))
        self.all_idle = bytes([opcodes.IDLE]) * n
        self._all_done = bytes([opcodes.DONE]) * n
        self.abandoned: set[int] = set()
        self.all_answered = self.enough(n)

    @property
    def in_flight(self) -> int:
        """Number of envs with an operation whose result is not taken yet."""
        return self._n - self.bytes.tobytes().count(opcodes.IDLE) - len(self.abandoned)

    @property
    def waiting_ids(self) -> list[int]:
        """The ids of the envs in flight."""
        if self.bytes.tobytes() == self.all_idle:
            return []
        return [i for i in self.all_ids if self.bytes[i] != opcodes.IDLE and i not in self.abandoned]

    def has_answered(self, i: int) -> bool:
        """True if the result of env i can be taken."""
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

    @property
    def failed_ids(self) -> list[int]:
        """The envs that failed and accept nothing but a reset."""
        waiting = self.waiting_ids
        return [i for i in sorted(self._recovery.errors) if i not in waiting]

    @property
    def ready_ids(self) -> list[int]:
        """The envs that can be stepped."""
        return [i for i in self.all_ids if self.bytes[i] == opcodes.IDLE and i not in self._recovery.errors]

    def check_idle(self, ids: np.ndarray | None) -> None:
        """RuntimeError, with the env named, if one of these envs (None: any) is still stepping."""
        if self.bytes.tobytes() == self.all_idle:
            return
        busy = np.flatnonzero(self._array[... if ids is None else ids] != opcodes.IDLE)
        if not len(busy):
            return
        first = int(busy[0] if ids is None else ids[busy[0]])
        if first in self.abandoned:
            self._recovery.check(first)
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

    def abandon(self, error: BaseException, asked: Sequence[int]) -> None:
        """Mark what is in flight as discarded; its envs, and those `asked`, need a reset."""
        in_flight = set(self.waiting_ids)
        self.abandoned |= in_flight
        needing = sorted(in_flight.union(asked))
        self._recovery.restore_rows(needing)
        for i in needing:
            self._recovery.errors[i] = VectorEnvError(
                f"env {i} was in a call that {type(error).__name__} interrupted, and its result was discarded; "
                f"reset({i}) makes it usable again"
            )
        self._backend.wait(None, None)  # ends the workers with a message that was cut off

    def drain(self, ids: np.ndarray | None) -> None:
        """Before a reset of these envs (None: all): discard the results of interrupted calls."""
        backend = self._backend
        chosen = self.abandoned.intersection(self.all_ids if ids is None else ids.tolist())
        backend.wait(lambda: all(map(self.has_answered, chosen)), time.monotonic() + DRAIN_TIMEOUT)
        for i in sorted(chosen):
            if not self.has_answered(i):
                same_worker = set(backend.restart(i)).difference(chosen, self.waiting_ids)
                self._recovery.note_replaced(i, same_worker)
        backend.take(sorted(chosen))
        self._recovery.restore_rows(sorted(chosen))
        self.abandoned -= chosen
