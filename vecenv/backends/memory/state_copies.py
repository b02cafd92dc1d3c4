"""Copies of shared states for Ray workers on other nodes, which cannot use the driver's shared memory.

A worker's copy has two slots: the sum of the worker's own changes, and the sum of all other changes. The worker sends
the first with its answers, and the driver sends the second with its calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from vecenv.backends.memory.shared_state import OTHERS, SharedState
from vecenv.backends.memory.state_rows import Row

Changes = list[tuple[int, Row]]
"""Changed rows with the indices of their states."""
LARGE_STATE = 2**16
"""Bytes. Larger rows travel once per `INTERVAL` (seconds), and after a load."""
INTERVAL = 1.0


class _Sender:
    def __init__(self, states: Sequence[SharedState]) -> None:
        self._states = states
        self._sent = [np.zeros(state.rows.size) for state in states]
        self._due = 0.0

    def _changed(self, row_of: Callable[[int], Row], all_of_them: bool = False) -> Changes:
        """Return the rows that have changed since they were sent."""
        is_due = all_of_them or time.monotonic() >= self._due
        if is_due:
            self._due = time.monotonic() + INTERVAL
        changed: Changes = []
        for k, (state, sent) in enumerate(zip(self._states, self._sent, strict=True)):
            if is_due or sent.nbytes <= LARGE_STATE or state.generation != sent[0]:
                row = row_of(k)
                if not np.array_equal(row, sent):
                    self._sent[k] = row
                    changed.append((k, row))
        return changed


class StateCopies(_Sender):
    """A worker's copies."""

    def replace(self, news: Iterable[tuple[int, Row]]) -> None:
        for k, row in news:
            self._states[k].write(OTHERS, row)

    def changes(self, all_of_them: bool = False) -> Changes:
        """Return the worker's sums. `all_of_them`: also of large states before `INTERVAL` is over."""
        return self._changed(lambda k: self._states[k].own(), all_of_them)


class StateMerger(_Sender):
    """The driver's states, and the last sums of one worker."""

    def __init__(self, states: Sequence[SharedState]) -> None:
        super().__init__(states)
        self._received = self._sent.copy()

    def news(self) -> Changes:
        """Return the sums of all changes but the worker's."""
        return self._changed(lambda k: self._states[k].sum_without(self._received[k]))

    def merge(self, changes: Iterable[tuple[int, Row]]) -> None:
        """Put the worker's sums into the slot of the driver, in place of the last ones."""
        for k, row in changes:
            self._states[k].add(row, self._received[k])
            self._received[k] = row
