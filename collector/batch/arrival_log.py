"""`ArrivalLog`: rows of steps in the order of their arrival."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from collector.batch.forms import arrived_columns, copy_of, resized
from collector.batch.rollout import FlatRollout
from collector.batch.step_log import StepLog
from vecenv import nest

if TYPE_CHECKING:
    from collector.episodes.env_episodes import Episodes

FIELDS = {"obs", "action", "reward", "terminated", "truncated", "traj_ids", "step_count", "policy_version", "env_ids"}
FIELDS |= {"next_row"}


class ArrivalLog(StepLog):
    """Log of envs that do not wait for each other. Each observation that arrives opens a new row.

    Only observations may be tensors, because the steps of several batches share the columns.

    A batch copies the first `frames` steps, ordered by env. Later steps, and steps in flight, stay in the log::

        row      0     1     2     3     4     5     6
        env      0     1     0     1     1     0     1
        state    step  step  last  step  open  open  open     # last: observation after an episode
    """

    def __init__(self, episodes: Episodes) -> None:
        super().__init__(episodes)
        self._row, self._used, self._size = self.all_ids.copy(), self.env_num, 4 * self.env_num
        self._open = None  # rows of envs are not together
        self._outputs = set[str]()
        self._steps: list[np.ndarray] = []
        """Rows of complete steps."""
        self.wanted = self.frames = 0
        """Number of steps in a batch, and number of complete steps, without failed steps."""

    def begin(self, frames: int, version: int = -1, reuse: bool = False, extras: Collection[str] = ()) -> None:
        self.wanted, self.version = frames, version
        for name in self.columns.keys() - FIELDS - self._outputs - {*extras}:  # of the step hook of an earlier batch
            del self.columns[name]

    @property
    def is_empty(self) -> bool:
        return not self.frames

    def convert_obs(self, convert: Callable[[Any], Any]) -> None:
        if "obs" in self.columns:
            used = convert(nest.take(self.columns["obs"], slice(self._used)))
            self.columns["obs"] = nest.map(lambda rows: resized(rows, self._size), used)

    def obs(self, ids: np.ndarray | None, copy: bool = False) -> Any:
        column, rows = self.columns["obs"], self._rows(ids)
        if column.__class__ is np.ndarray or (np.diff(rows) != 1).any():
            return super().obs(ids, copy)
        together = nest.take(column, slice(int(rows[0]), int(rows[-1]) + 1))  # an index would have to be uploaded
        return nest.map(copy_of, together) if copy else together

    def observe(self, ids: np.ndarray, obs: Any) -> None:
        self._write("obs", self._open_rows(ids), obs)

    def act(self, ids: np.ndarray, outputs: dict[str, Any]) -> None:
        super().act(ids, nest.map(nest.as_array, outputs))
        self._outputs |= outputs.keys()
        for name, value in (("env_ids", ids), ("policy_version", np.full(len(ids), self.version))):
            self._write(name, self._row[ids], value)

    def receive(self, ids: np.ndarray, obs: Any, reward: Any, *flags: Any) -> None:
        super().receive(ids, obs, nest.as_array(reward), *flags)

    def end(self, ended: np.ndarray, last_obs: Any, failed: np.ndarray | None) -> None:
        if failed is not None:
            self.failed.append(self._received[ended[failed]])  # type: ignore[index]  # the rows are an array
            self.frames -= int(failed.sum())

    def batch(self, all_steps: bool = True) -> FlatRollout:
        """Return copies of the first `wanted` steps, or of `all_steps`. Failed steps do not count."""
        rows = np.concatenate(self._steps)
        failed = np.isin(rows, np.concatenate([rows[:0], *self.failed]))
        beyond = np.flatnonzero(~failed)[len(rows) if all_steps else self.wanted :]
        count = int(beyond[0]) if len(beyond) else len(rows)
        batch, used = FlatRollout(**arrived_columns(self.columns, rows[:count], failed[:count])), self._used
        self._retain(rows[count:], failed[count:])
        if self._size > 8 * used:  # an earlier batch was much larger
            self._resize(2 * used)
        return batch

    def clear(self) -> None:
        """Discard all complete steps."""
        self._retain(np.zeros(0, np.int64), np.zeros(0, np.bool_))

    def _retain(self, steps: np.ndarray, failed: np.ndarray) -> None:
        """Move these steps and the open rows to the begin of the memory."""
        following = self.columns["next_row"][steps] if len(steps) else steps
        kept = np.unique(np.concatenate([self._row, steps, following]))
        for rows in nest.leaves(self.columns):
            rows[: len(kept)] = rows[kept]
        steps, self._row, self._used = np.searchsorted(kept, steps), np.searchsorted(kept, self._row), len(kept)
        if len(steps):
            self.columns["next_row"][steps] = np.searchsorted(kept, following)
        self._steps, self.failed, self.frames = [steps], [steps[failed]], int((~failed).sum())

    @property
    def _capacity(self) -> int:
        return self._size

    def _rows(self, ids: np.ndarray | None) -> np.ndarray:
        return self._row if ids is None else self._row[ids]

    def _advance(self, ids: np.ndarray, resets: np.ndarray | None) -> slice:
        before = self._row[ids]
        opened = self._open_rows(ids)
        stepped = slice(None) if resets is None else ~resets
        self._write("next_row", before[stepped], self._row[ids][stepped])
        self._steps.append(before[stepped])
        self.frames += len(before[stepped])
        return opened

    def _open_rows(self, ids: np.ndarray) -> slice:
        first, used = self._used, self._used + len(ids)
        if used > self._size:
            self._resize(2 * used)
        self._row[ids], self._used = np.arange(first, used), used
        return slice(first, used)

    def _resize(self, size: int) -> None:
        self.columns, self._size = nest.map(lambda rows: resized(rows[: self._used], size), self.columns), size
