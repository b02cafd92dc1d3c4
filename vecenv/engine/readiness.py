"""Readiness: which envs may be stepped, reset or called now, and the errors for those that may not."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenv.backends.base import Taken
from vecenv.backends.memory.arena import Arena
from vecenv.engine.recovery import Recovery
from vecenv.engine.status import EnvStatus


class Readiness:
    """Refuses envs that are still stepping, that failed or, if `strict`, that need a reset."""

    def __init__(self, status: EnvStatus, recovery: Recovery, strict: bool) -> None:
        self._status, self._recovery = status, recovery
        self.strict = strict
        self._unreset = np.ones(len(status.all_ids), dtype=np.bool_)

    @property
    def failed_ids(self) -> list[int]:
        """The envs that failed and accept nothing but a reset."""
        waiting = self._status.waiting_ids
        return [i for i in sorted(self._recovery.errors) if i not in waiting]

    @property
    def ready_ids(self) -> list[int]:
        """The envs that can be stepped."""
        return [i for i in self._status.idle_ids if i not in self._recovery.errors]

    def check_idle(self, ids: np.ndarray | None) -> None:
        """RuntimeError, with the env named, if one of these envs (None: any) is still stepping."""
        first = self._status.first_busy(ids)
        if first is None:
            return
        if first in self._status.abandoned:
            self._recovery.check(first)
        raise RuntimeError(
            f"Cannot interact with environment {first} which is stepping now: env {first} is still stepping; "
            "wait for it with step(None)"
            + (", or pass only the ids that were returned: step(action, id)" if self._status.is_async else "")
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
        if taken.columns is not None:
            self._unreset[rows] = taken.columns[2] | taken.columns[3]
        else:
            self._unreset[rows] = arena.terminated[rows] | arena.truncated[rows]
        self._unreset[[i for i, extra in taken.extras.items() if extra.final is not None]] = False

    def note_begun(self, i: int, needs_reset: bool = False) -> None:
        """Note that env i was reset, or put into a state, without a round; or that it needs a reset."""
        self._unreset[i] = needs_reset
