"""Copies of shared states for Ray workers on other nodes, which cannot use the driver's shared memory.

The driver sends changed states with each call, and merges the changes that the worker returns.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.backends.memory.shared_state import SharedState

Arrays = dict[str, np.ndarray]
Change = tuple[Arrays, Arrays]
"""Arrays of a worker's copy without and with the unreported changes."""
LARGE_STATE = 2**16
"""Bytes. Larger states are checked for changes once per `INTERVAL` (seconds)."""
INTERVAL = 1.0
STATISTICS = ("mean", "var", "count")
"""Endings of the names of running statistics (`RunningMeanStd`)."""


class StateCopies:
    """Worker's copies of the driver's states, and the same arrays without unreported changes."""

    def __init__(self, states: Sequence[SharedState]) -> None:
        self._states = states
        self._before = [state.read() for state in states]
        self._due = 0.0

    def replace(self, news: Sequence[Arrays | None]) -> None:
        """Use the driver's states (`None` if unchanged), plus this worker's unreported changes."""
        for k, arrays in enumerate(news):
            if arrays is not None:
                with self._states[k].update() as own:
                    merged = merge_updates(arrays, self._before[k], own)
                    for name in own:
                        own[name][...] = merged[name]
                self._before[k] = arrays

    def changes(self, all_of_them: bool = False) -> list[Change | None]:
        """Return the changes since the last report. `all_of_them`: also of large states before `INTERVAL` is over."""
        is_due = all_of_them or time.monotonic() >= self._due
        if is_due:
            self._due = time.monotonic() + INTERVAL
        changes: list[Change | None] = []
        for k, state in enumerate(self._states):
            before, change = self._before[k], None
            if is_due or size_of(before) <= LARGE_STATE:
                now = state.read()
                if not equal(before, now):
                    change, self._before[k] = (before, now), now
            changes.append(change)
        return changes


class StateMerger:
    """Driver's states, and the values that one worker on another node last received."""

    def __init__(self, states: Sequence[SharedState]) -> None:
        self._states = states
        self._sent, self._loads = [state.read() for state in states], [state.loads for state in states]
        self._due = 0.0

    def news(self) -> list[Arrays | None]:
        """Return, per state, the arrays if changed since the worker received them, else `None`."""
        if is_due := time.monotonic() >= self._due:
            self._due = time.monotonic() + INTERVAL
        news: list[Arrays | None] = []
        for k, state in enumerate(self._states):
            new = None
            if is_due or size_of(self._sent[k]) <= LARGE_STATE or state.loads != self._loads[k]:
                self._loads[k], now = state.loads, state.read()
                if not equal(self._sent[k], now):
                    new = self._sent[k] = now
            news.append(new)
        return news

    def merge(self, changes: Sequence[Change | None]) -> None:
        for state, change in zip(self._states, changes, strict=True):
            if change is not None:
                with state.update() as arrays:
                    merged = merge_updates(arrays, *change)
                    for name in arrays:
                        arrays[name][...] = merged[name]


def merge_updates(
    now: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]
) -> Arrays:
    """Return the arrays `now` with the changes from `before` to `after`.

    Arrays "<name>_mean", "<name>_var" and "<name>_count" are statistics, and are merged exactly. Changes of other
    numbers are added. In arrays without numbers (bool), changed elements are copied.

    >>> now, before = {"steps": np.array(5)}, {"steps": np.array(2)}
    >>> merge_updates(now, before, {"steps": np.array(6)})
    {'steps': array(9)}
    """
    if equal(before, after):  # because merged statistics are rounded
        return dict(now)
    merged: Arrays = {}
    for name in now:
        if np.issubdtype(now[name].dtype, np.number):
            merged[name] = np.asarray(now[name] + (after[name] - before[name]))
        else:
            merged[name] = np.where(after[name] != before[name], after[name], now[name])
    for name in now:
        names = [f"{name.removesuffix('_mean')}_{ending}" for ending in STATISTICS]
        if name.endswith("_mean") and all(each in now for each in names):
            parts = [[arrays[each] for each in names] for arrays in (now, before, after)]
            if float(np.max(parts[1][2])) == 0.0 == float(np.max(parts[0][2])):
                merged |= dict(zip(names, map(np.array, parts[2]), strict=True))
            else:
                merged |= dict(zip(names, _merged_statistics(*parts), strict=True))
    return merged


def _merged_statistics(now: Any, before: Any, after: Any) -> Any:
    """Merge mean, variance and count, with sums relative to the mean of `now`, so that large means lose no digits."""
    centre, sums = now[0], []
    for mean, var, count in (now, before, after):
        shift = np.where(count > 0, mean - centre, 0.0)
        sums.append((count, count * shift, count * (var + shift**2)))
    count, first, second = (a + (c - b) for a, b, c in zip(*sums, strict=True))
    if not np.all(count > 0):
        return now
    shift = first / count
    return centre + shift, np.maximum(second / count - shift**2, 0.0), count


def equal(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


def size_of(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())
