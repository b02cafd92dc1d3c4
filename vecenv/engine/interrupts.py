"""Interrupts: which envs need a reset after an exception such as KeyboardInterrupt has ended a call early.

Their results are discarded and they accept only a reset. The reset waits until they have finished the interrupted
operation, and restarts the worker of an env that does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from vecenv.backends.base import Backend
from vecenv.engine.recovery import Recovery
from vecenv.engine.status import EnvStatus
from vecenv.errors import VectorEnvError

INTERRUPTS = (KeyboardInterrupt, SystemExit)
"""What signal handlers raise in the middle of a call, mainly KeyboardInterrupt on Ctrl-C."""
DRAIN_TIMEOUT = 5.0
"""Seconds that a reset waits for the envs of an interrupted call before it starts their workers again."""


class Interrupts:
    """Abandons the envs of interrupted calls, and makes them usable again."""

    def __init__(self, backend: Backend, status: EnvStatus, recovery: Recovery) -> None:
        self._backend, self._status, self._recovery = backend, status, recovery

    def abandon(self, error: BaseException, asked: Sequence[int]) -> None:
        """Mark what is in flight as discarded; its envs, and those `asked`, need a reset."""
        in_flight = set(self._status.waiting_ids)
        self._status.abandoned |= in_flight
        for i in sorted(in_flight.union(asked)):
            self._recovery.errors[i] = VectorEnvError(
                f"env {i} was in a call that {type(error).__name__} interrupted, and its result was discarded; "
                f"reset({i}) makes it usable again"
            )
        self._backend.wait(None, None)  # ends the workers with a message that was cut off

    def drain(self, ids: np.ndarray | None) -> None:
        """Before a reset of these envs (None: all): discard the results of interrupted calls."""
        status, backend = self._status, self._backend
        chosen = status.abandoned.intersection(status.all_ids if ids is None else ids.tolist())
        backend.wait(lambda: all(map(status.has_answered, chosen)), time.monotonic() + DRAIN_TIMEOUT)
        for i in sorted(chosen):
            if not status.has_answered(i):
                same_worker = set(backend.restart(i)).difference(chosen, status.waiting_ids)
                self._recovery.note_replaced(i, same_worker)
        backend.take(sorted(chosen))
        status.abandoned -= chosen
