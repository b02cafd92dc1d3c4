"""`EpisodeRecorder`: keep the rows of each round, and pass finished episodes to a writer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from collector.basics.interruptor import sigint_deferred
from collector.batch.conversions import join
from collector.batch.rollout_buffer import RolloutBuffer
from collector.episodes.episode import EPISODE_COLUMNS, EpisodeBatch
from collector.episodes.unfinished_episodes import Runs, UnfinishedEpisodes
from collector.store.safe_folder import DatasetError
from collector.store.writer import StoreWriter
from vecenv import nest
from vecenv.extending import Layout, add_note, batch_actions, cast_exactly
from vecenv.nest import as_array

ROUNDS = 1024
_BYTES = 2**24
"""The buffer holds so many rounds, or so many bytes of them, whichever is less."""


def fit_rows(rows: Any, layout: Any) -> Any:
    """Return observations `(k, ...)` as arrays of the shapes and dtypes of their space, whose tree of leaves is
    `layout`.

    Raises `DatasetError` if that would change a value, apart from rounding to a float type.
    """
    if isinstance(layout, dict):
        if not isinstance(rows, Mapping) or rows.keys() != layout.keys():
            raise _misfit("observations", rows, f"a dict with the keys {[*layout]}")
        return {key: fit_rows(rows[key], child) for key, child in layout.items()}
    if isinstance(layout, tuple):
        if not isinstance(rows, tuple) or len(rows) != len(layout):
            raise _misfit("observations", rows, f"a tuple of {len(layout)}")
        return tuple(map(fit_rows, rows, layout))
    array = rows if rows.__class__ is np.ndarray or isinstance(rows, (dict, tuple)) else as_array(rows)
    if array.__class__ is not np.ndarray:
        raise _misfit(layout.path, rows, f"{layout.dtype} in the shape {layout.shape}")
    if array.dtype == layout.dtype and array.shape[1:] == layout.shape:
        return array
    if array.shape[1:] + layout.shape == (1,):  # as in the vector envs, () and (1,) are one
        array = array.reshape(len(array), *layout.shape)
    cast = cast_exactly(array, layout.dtype) if array.shape[1:] == layout.shape else None
    if cast is None:
        raise _misfit(layout.path, array, f"{layout.dtype} in the shape {layout.shape}")
    return cast


def _misfit(path: str, rows: Any, expected: str) -> DatasetError:
    found = type(rows).__name__
    if isinstance(rows, np.ndarray):
        found = f"{rows.dtype} in the shape {rows.shape[1:]}"
        if rows.dtype.kind in "biuf" and rows.size:
            found += f" with values in [{rows.min()}, {rows.max()}]"
    return DatasetError(
        f"the vector env returned {path} as {found}; its observation space says {expected}, and storing them so would "
        "change them: correct the space or the env"
    )


class EpisodeRecorder:
    """Records the episodes of `n` envs, whose rows have the `layout`, until `finish`.

    The k-th row of an env since the last cut is in round k of a rollout buffer. For each env it is known in which round
    its episode began, so an episode that ends is a run of rows; `cut` copies these runs to the writer. A shard is
    committed when its episodes have `shard_bytes`, or when the first of them is `shard_seconds` old. Of episodes in
    progress `memory` bytes are kept between two cuts.
    """

    def __init__(
        self, n: int, writer: StoreWriter, layout: Layout, shard_bytes: int, shard_seconds: float, memory: int
    ) -> None:
        self.n, self._writer, self._layout, self._memory = n, writer, layout, memory
        self._shard_bytes, self._shard_seconds = shard_bytes, shard_seconds
        self.sent = nest.map(lambda leaf: np.zeros((n, *leaf.shape), leaf.dtype), layout.action)
        """The latest action of each env."""
        row = nest.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype).nbytes, (layout.obs, layout.action))
        self._buffer = RolloutBuffer(n, max(2, min(ROUNDS, _BYTES // (n * (sum(nest.leaves(row)) + 10)))))
        self._finished, self._pid = False, os.getpid()
        self._unfinished = UnfinishedEpisodes()
        self._all = np.arange(n)
        self._count = np.zeros(n, np.int64)
        """Number of rounds of each env in the buffer."""
        self._is_recorded = np.zeros(n, np.bool_)
        """True if the episode in progress of an env is recorded. The next three arrays are for these envs."""
        self._first = np.zeros(n, np.int64)
        """The first round of that episode in the buffer."""
        self._before = np.zeros(n, np.int64)
        """Steps of that episode before the last cut."""
        self._seeds = np.full(n, -1)
        """The seed of that episode."""
        self._together = True
        """True if all envs took part in each round."""
        self._ended: list[tuple[Runs, Any]] = []
        """The last steps of episodes that ended, and their last observations."""
        self._due = float("inf")
        """The time at which the episodes that have ended are committed; infinite: there are none."""

    def actions(self, action: Any, ids: Sequence[int]) -> Any:
        """The actions of these envs as they are stored: a tree of arrays. Raises as a vector env of vecenv does for
        them, and `DatasetError` for those that the dtypes of the action space cannot hold.
        """
        rows = batch_actions(action, ids, self._layout.action)
        if rows.__class__ is list:
            raise DatasetError(f"these actions are no elements of the action space, and cannot be stored: {action!r}")
        return rows

    def _check_open(self) -> None:
        if self._finished:
            raise DatasetError(
                f"{self._writer.folder} is not recorded any more, since the vector env was closed: wrap it in "
                "RecordEpisodes(..., resume=True) to go on"
            )

    def begin(self, ids: np.ndarray | None, obs: Any, seeds: Iterable[int | None] | None = None) -> None:
        """Begin episodes of these envs (None: all) with these rows of observations; those in progress are abandoned.

        `obs`: None where they are the last ones that `step` got.
        """
        self._check_open()
        envs = self._all if ids is None else ids
        if obs is not None:
            self._buffer.write("obs", self._count[envs] * self.n + envs, fit_rows(obs, self._layout.obs))
        self._seeds[envs] = -1 if seeds is None else [-1 if seed is None else seed for seed in seeds]
        self._first[envs], self._before[envs], self._is_recorded[envs] = self._count[envs], 0, True

    def discard(self, ids: Any = slice(None)) -> None:
        """Abandon the episodes in progress of these envs: their next steps are not recorded until others begin."""
        self._is_recorded[ids] = False

    def step(
        self, ids: np.ndarray | None, action: Any, obs: Any, reward: Any, terminated: Any, truncated: Any
    ) -> np.ndarray:
        """Record a step of each of these envs (None: all), with the observations after it; return the rows that ended
        an episode, for `end`.
        """
        self._check_open()
        n, buffer, obs = self.n, self._buffer, fit_rows(obs, self._layout.obs)
        if time.monotonic() >= self._due or (self._count[0] if self._together else self._count.max()) == buffer.steps:
            self.cut()
            self._check_memory()
        self._together &= ids is None
        envs = self._all if ids is None else ids
        if self._together:
            first = int(self._count[0]) * n
            at: Any = slice(first, first + n)
            after: Any = slice(first + n, first + 2 * n)
        else:
            at = self._count[envs] * n + envs
            after = at + n
        flags = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        buffer.write("action", at, action)
        buffer.write_step(at, after, obs, np.asarray(reward, np.float64), *flags)
        if ids is None:
            self._count += 1
        else:
            self._count[ids] += 1
        ended: np.ndarray = (flags[0] | flags[1]).nonzero()[0]
        return ended

    def _check_memory(self) -> None:
        """Raise `DatasetError` after a cut where the episodes in progress are larger than the memory for them."""
        if (kept := self._unfinished.nbytes) > self._memory:
            steps = np.where(self._is_recorded, self._before, 0)
            env = int(steps.argmax())
            raise DatasetError(
                f"the episode in progress of env {env} has {steps[env]} steps and no end, and all of those in "
                f"progress have {kept:,} bytes; RecordEpisodes stores whole episodes, and keeps {self._memory:,} bytes "
                "until they end: limit their steps (gymnasium.wrappers.TimeLimit), or pass a larger memory="
            )

    def end(self, envs: np.ndarray, last_obs: Any) -> None:
        """End the episodes of these envs with their last steps; `last_obs` are rows in memory of their own."""
        rows, known = fit_rows(last_obs, self._layout.obs), self._is_recorded[envs]
        self._ended.append((self._runs(envs[known], True), nest.take(rows, known)))
        self._is_recorded[envs] = False
        self._due = min(self._due, time.monotonic() + self._shard_seconds)

    def cut(self) -> None:
        """Give the writer the episodes that have ended, and commit them where that is due.

        Raises `DatasetError` for one that it refuses (a reward that is NaN), which is left out, and for a full disk.
        """
        with sigint_deferred():  # Ctrl-C would leave rows and counts in different states, and end the writer
            whole = self._take() if self._count.any() else ()
            try:
                if len(whole):
                    self._writer.add(whole)
            except DatasetError:
                for each in whole:
                    with suppress(DatasetError):
                        self._writer.add(each)
                raise
            finally:
                if self._writer.waiting_bytes >= self._shard_bytes or time.monotonic() >= self._due:
                    self._due = float("inf")
                    self._writer.commit()

    def _runs(self, envs: np.ndarray, ends: bool) -> Runs:
        """The steps in the buffer of the episodes in progress of these envs, which end or go on."""
        first, unknown = self._first[envs], np.full(len(envs), -1)
        rows, steps = first * self.n + envs, self._count[envs] - first
        return Runs(envs, rows, steps, self._before[envs], np.full(len(envs), ends), unknown, self._seeds[envs])

    def _take(self) -> EpisodeBatch:
        """Copy the episodes that have ended out of the buffer, keep those in progress, and empty the buffer."""
        playing = self._is_recorded
        going = self._runs(np.flatnonzero(playing & (self._first < self._count)), False)
        runs = Runs(*map(np.concatenate, zip(*(runs for runs, _ in self._ended), going, strict=True)))
        columns = {name: self._buffer.read(name, slice(None)) for name in EPISODE_COLUMNS}
        last = join([nest.take(columns["obs"], slice(0, 0)), *(obs for _, obs in self._ended)])
        whole = EpisodeBatch(**self._unfinished.join(columns, runs, last, playing, self.n))
        latest = self._buffer.read("obs", self._count * self.n + self._all)
        self._buffer.rewind()
        self._buffer.write("obs", slice(0, self.n), latest)
        self._before[playing] += (self._count - self._first)[playing]
        self._first[:], self._count[:], self._together, self._ended = 0, 0, True, []
        return whole

    def finish(self, complete: bool) -> None:
        """Commit what has ended, and give the folder back; once more, or in a forked process, does nothing."""
        if self._finished or os.getpid() != self._pid:
            return
        self._finished = True
        with sigint_deferred(), self._writer:  # which is closed, whatever happens
            try:
                self.cut()
            finally:
                self._writer.commit()
            if complete:
                self._writer.end()

    def finish_after(self, error: BaseException) -> None:
        """`finish` without an end; what cannot be committed then is a note at the exception that ended the loop."""
        try:
            self.finish(complete=False)
        except DatasetError as refused:
            add_note(error, f"episodes that RecordEpisodes had not committed yet are lost: {refused}")
