"""EpisodeRecorder: takes the rows of rounds as they come, and gives a writer the episodes that have ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from collector.batch.rollout_buffer import RolloutBuffer
from collector.episodes.episode import EpisodeBatch, EpisodeCutter
from collector.interruptor import sigint_deferred
from collector.store.packed import pack
from collector.store.safe_folder import DatasetError
from collector.store.writer import StoreWriter
from vecenv import nest
from vecenv.extending import Layout, ObjectLeaf, add_note, batch_actions, common_layout

_ROUNDS = 256
_BYTES = 2**24
"""The buffer holds so many rounds, or so many bytes of them, whichever is less."""


def row_layout(observation_spaces: Sequence[Any], action_spaces: Sequence[Any]) -> Layout:
    """The arrays of one form that observations and actions are. Raises `DatasetError` where they are none."""
    layout = common_layout(observation_spaces, action_spaces)
    objects = [leaf.path for leaf in nest.leaves(layout.obs) if isinstance(leaf, ObjectLeaf)]
    if objects or layout.action is None:
        raise DatasetError(
            f"only arrays of numbers can be stored: {[*objects, 'action'][0]} is no array with the same shape and "
            "dtype in all envs"
        )
    return layout


class EpisodeRecorder:
    """Records the episodes of `n` envs, whose rows have the `layout`, until `finish`.

    Rounds go into a rollout buffer, and marks say in which rows other episodes begin. Rows that are not recorded belong
    to an episode whose first step is missing: the `EpisodeCutter` discards those. A shard is committed when its
    episodes have `shard_bytes`, or when the first of them is `shard_seconds` old.
    """

    def __init__(self, n: int, writer: StoreWriter, layout: Layout, shard_bytes: int, shard_seconds: float) -> None:
        self.n, self._writer, self._actions = n, writer, layout.action
        self._shard_bytes, self._shard_seconds = shard_bytes, shard_seconds
        self.sent = nest.map(lambda leaf: np.zeros((n, *leaf.shape), leaf.dtype), layout.action)
        """The latest action of each env."""
        row = nest.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype).nbytes, (layout.obs, layout.action))
        self._buffer = RolloutBuffer(n, max(2, min(_ROUNDS, _BYTES // (n * (sum(nest.leaves(row)) + 34)))))
        self._finished, self._pid = False, os.getpid()
        self._cutter, self._all = EpisodeCutter(), np.arange(n)
        self._count, self._together = np.zeros(n, np.int64), True
        """Rows of each env in the buffer, and whether all envs took part in each round."""
        self._room = self._buffer.steps
        """The buffer has room for so many rounds, or for more."""
        self._free = 1
        """The id of the next episode that begins."""
        self._marks = np.zeros((3, (self._buffer.steps + 1) * n), np.int64)
        """For each row in which another episode begins: its id, its steps before (more than there were, where it is not
        recorded), and the seed of its reset. Zeros in all other rows."""
        self._ended: list[np.ndarray] = []
        """The rows in which episodes have ended, in this order."""
        self._ended_at = 0.0
        """When the first episode in the buffer ended; 0.0: none has."""
        self.discard()

    def actions(self, action: Any, ids: Sequence[int]) -> Any:
        """The actions of these envs as they are stored: a tree of arrays. Raises as a vector env of vecenv does for
        them, and `DatasetError` for those that the dtypes of the action space cannot hold.
        """
        rows = batch_actions(action, ids, self._actions)
        if rows.__class__ is list:
            raise DatasetError(f"these actions are no elements of the action space, and cannot be stored: {action!r}")
        return rows

    def _check_open(self) -> None:
        if self._finished:
            raise DatasetError(
                f"{self._writer.folder} is not recorded any more, since the vector env was closed: wrap it in "
                "RecordEpisodes(..., resume=True) to go on"
            )

    def begin(self, ids: np.ndarray | None, obs: Any, seeds: Sequence[int | None] | None = None) -> None:
        """Episodes of these envs (None: all) begin with these rows of observations. Those in progress are abandoned.

        `obs`: None where they are the last ones that `step` got.
        """
        self._check_open()
        envs = self._all if ids is None else ids
        if obs is not None:
            self._buffer.write("obs", self._count[envs] * self.n + envs, obs)
        self._mark(envs, 0, -1 if seeds is None else [-1 if seed is None else seed for seed in seeds])

    def discard(self, ids: Any = slice(None)) -> None:
        """The episodes in progress of these envs are not recorded, nor their next steps, until others begin."""
        self._mark(self._all[ids], 1, -1)

    def _mark(self, envs: np.ndarray, step: int, seed: Any) -> None:
        """The next rows of these envs belong to other episodes than those before."""
        episode, steps, seeds = self._marks
        at = self._count[envs] * self.n + envs
        episode[at], steps[at], seeds[at] = np.arange(self._free, self._free + len(envs)), step, seed
        self._free += len(envs)

    def step(
        self,
        ids: np.ndarray | None,
        action: Any,
        obs: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        last_obs: Callable[[int], Any] | None = None,
    ) -> np.ndarray:
        """Rows of steps of these envs (None: all), and the observations after them; returns which ended an episode.

        `last_obs`: a function from a row to the last observation of the episode that ends there, where `obs` has the
        first of the next.
        """
        self._check_open()
        which: Any = slice(None) if ids is None else ids
        if not self._room:
            self._room = self._buffer.steps - int(self._count.max())
            if not self._room:
                self.cut()
        self._room -= 1
        self._together &= ids is None
        envs, n, buffer = self._all[which], self.n, self._buffer
        first = int(self._count[0]) * n
        at: Any = slice(first, first + n) if self._together else self._count[which] * n + envs
        buffer.write("action", at, action)
        flags = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        buffer.write_step(at, np.asarray(nest.as_array(reward), np.float64), *flags)
        buffer.write("obs", slice(first + n, first + 2 * n) if self._together else at + n, obs)
        self._count[which] += 1
        ended: np.ndarray = (flags[0] | flags[1]).nonzero()[0]
        if ended.size:
            find = last_obs
            rows = np.arange(first, first + n)[ended] if self._together else at[ended]
            last = nest.take(obs, ended) if find is None else nest.merge(np.stack, [find(i) for i in ended.tolist()])
            buffer.end_episodes(rows, last)
            self._ended.append(rows)  # after Ctrl-C before it, `cut` leaves them out
            self.discard(envs[ended])
            self._ended_at = self._ended_at or time.monotonic()
        if self._ended_at and time.monotonic() - self._ended_at > self._shard_seconds:
            self.cut()
        return ended

    def cut(self) -> None:
        """Give the writer the episodes that have ended, and commit them where that is due.

        Raises `DatasetError` for one that it refuses (a reward that is NaN), which is left out, and for a full disk.
        """
        with sigint_deferred():  # Ctrl-C would leave buffer and cutter in different states, and end the writer
            whole = self._take() if self._count.any() else None
            try:
                if whole:
                    self._give(whole)
            finally:
                if (
                    self._writer.waiting_bytes >= self._shard_bytes
                    or self._writer.waiting_seconds > self._shard_seconds
                ):
                    self._writer.commit()

    def _take(self) -> EpisodeBatch | None:
        """Cut the episodes out of the buffer, and empty it."""
        latest = self._buffer.read("obs", self._count * self.n + self._all)
        numbers = self._numbers(int(self._count.max()))
        whole = self._cutter.cut(self._buffer.finish(self._count, lambda _: tuple(numbers[:, :, :-1]), 0))
        self._buffer.rewind()
        self._marks[:] = 0
        self._marks[:, : self.n] = numbers[:, self._all, self._count]
        self._buffer.write("obs", slice(0, self.n), latest)
        time, env = np.divmod(np.concatenate([np.zeros(0, np.int64), *self._ended]), self.n)
        places = {episode: place for place, episode in enumerate(numbers[0, env, time].tolist())}
        known = [which for which, episode in enumerate(whole.episode.tolist()) if episode in places]
        order = sorted(known, key=lambda which: places[int(whole.episode[which])])
        self._count[:], self._together, self._room = 0, True, self._buffer.steps
        self._ended, self._ended_at = [], 0.0
        if not order:
            return None
        if order != [*range(len(whole))]:  # the envs took part in different rounds, or Ctrl-C came
            whole = pack([whole[which] for which in order])
        return replace(whole, episode=np.full(len(whole), -1))

    def _numbers(self, rounds: int) -> np.ndarray:
        """Episode, steps before, and seed of each row, and of the next one: `(3, n, rounds + 1)`."""
        marks, time = self._marks.reshape(3, -1, self.n)[:, : rounds + 1], np.arange(rounds + 1)[:, None]
        since = np.maximum.accumulate(np.where(marks[0] > 0, time, 0))
        numbers = np.take_along_axis(marks, since[None], 1)
        numbers[1] += time - since
        return numbers.swapaxes(1, 2)

    def _give(self, whole: EpisodeBatch) -> None:
        """Give the writer these episodes; where it refuses one, all others, before that is raised."""
        try:
            self._writer.add(whole)
        except DatasetError:
            for each in whole:
                with suppress(DatasetError):
                    self._writer.add(each)
            raise

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
