"""`EpisodeRecorder`: records the steps of a vector env, and passes finished episodes to a `StoreWriter`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from collector.basics.interruptor import sigint_deferred
from collector.batch.conversions import join
from collector.batch.rollout_buffer import RolloutBuffer
from collector.episodes.episode import EPISODE_COLUMNS, EpisodeBatch
from collector.episodes.unfinished_episodes import Runs, UnfinishedEpisodes
from collector.store.safe_folder import DatasetError
from collector.store.texts import TEXT, is_texts
from collector.store.writer import StoreWriter
from vecenv import nest
from vecenv.actions import batch_actions
from vecenv.errors import add_note
from vecenv.layout import Layout
from vecenv.nest import as_array, cast_exactly

ROUNDS = 1024
_BYTES = 2**24
"""Limits of the buffer: steps per env, and bytes. The smaller limit applies."""
_TEXT_BYTES = 1024
"""Bytes that the buffer reserves for a text, whose length is unknown."""


def fit_rows(rows: Any, layout: Any) -> Any:
    """Return observations `(k, ...)` in the shapes and dtypes of `layout`, a tree of leaves.

    Raises `DatasetError` for a wrong shape, or if a value would change, except by rounding to a float type.
    """
    if isinstance(layout, dict):
        if not isinstance(rows, Mapping) or rows.keys() != layout.keys():
            raise _misfit("observations", rows, f"a dict with the keys {[*layout]}")
        return {key: fit_rows(rows[key], child) for key, child in layout.items()}
    if isinstance(layout, tuple):
        if not isinstance(rows, tuple) or len(rows) != len(layout):
            raise _misfit("observations", rows, f"a tuple of {len(layout)}")
        return tuple(map(fit_rows, rows, layout))
    if layout.dtype == TEXT:
        return _fit_texts(rows, layout)
    array = rows if rows.__class__ is np.ndarray or isinstance(rows, (dict, tuple)) else as_array(rows)
    if array.__class__ is not np.ndarray:
        raise _misfit(layout.path, rows, f"{layout.dtype} in the shape {layout.shape}")
    if array.dtype == layout.dtype and array.shape[1:] == layout.shape:
        return array
    if array.shape[1:] + layout.shape == (1,):  # (k,) fits (k, 1), and the reverse
        array = array.reshape(len(array), *layout.shape)
    fits = array.shape[1:] == layout.shape
    cast = cast_exactly(array, layout.dtype) if fits else None
    if cast is None:
        why = ", and casting would change the values" if fits else ""
        raise _misfit(layout.path, array, f"{layout.dtype} in the shape {layout.shape}{why}")
    return cast


def _fit_texts(rows: Any, leaf: Any) -> np.ndarray:
    """Return texts as an object array `(k,)`. `rows`: an array, list or tuple of texts, as vector envs return them."""
    if not isinstance(rows, (np.ndarray, list, tuple)) or not is_texts(rows):
        raise _misfit(leaf.path, rows, "a text per env")
    return rows if isinstance(rows, np.ndarray) and rows.dtype == TEXT else nest.object_array(list(rows))


def _misfit(path: str, rows: Any, expected: str) -> DatasetError:
    found = f"a {type(rows).__name__}"
    if isinstance(rows, Mapping):
        found += f" with the keys {[*rows]}"
    elif isinstance(rows, tuple):
        found += f" of {len(rows)}"
    elif isinstance(rows, np.ndarray):
        found = f"{rows.dtype} in the shape {rows.shape[1:]}"
        if rows.dtype.kind in "biuf" and rows.size:
            found += f" with values in [{rows.min()}, {rows.max()}]"
    return DatasetError(
        f"the vector env returned {path} as {found}; its observation space says {expected}: correct the space or the "
        "env"
    )


def _row_bytes(leaf: Any) -> int:
    return _TEXT_BYTES if leaf.dtype == TEXT else np.zeros(leaf.shape, leaf.dtype).nbytes


class EpisodeRecorder:
    """Recorder of the episodes of `n` envs, until `finish`.

    A buffer holds the steps since the last `cut`: row k has the k-th step of each env. `cut` passes finished episodes
    to the writer, and keeps up to `memory` bytes of unfinished episodes.
    """

    def __init__(
        self,
        n: int,
        writer: StoreWriter,
        layout: Layout,
        shard_bytes: int,
        shard_seconds: float,
        memory: int,
        info_keys: tuple[str, ...] = (),
    ) -> None:
        self.n, self._writer, self.layout, self._memory = n, writer, layout, memory
        self.info_keys = info_keys
        self._shard_bytes, self._shard_seconds = shard_bytes, shard_seconds
        self.sent = nest.map(lambda leaf: np.zeros((n, *leaf.shape), leaf.dtype), layout.action)
        """Last action sent to each env, in the stored dtypes."""
        row = 10 + sum(map(_row_bytes, nest.leaves((layout.obs, layout.action)))) + _TEXT_BYTES * len(info_keys)
        self._buffer = RolloutBuffer(n, max(2, min(ROUNDS, _BYTES // (n * row))))
        self._finished, self._pid = False, os.getpid()
        self._unfinished = UnfinishedEpisodes()
        self._all = np.arange(n)
        self._count = np.zeros(n, np.int64)
        self._is_recorded = np.zeros(n, np.bool_)
        """bool `(n,)`: True if the env's current episode is recorded."""
        self._begun = np.full((3, n), -1)
        self._first, self._before, self._seeds = self._begun
        """Each int64 `(n,)`: row in which the env's episode began, its steps before the last `cut`, its seed or -1."""
        self._all_stepped = True
        """True if each step since the last `cut` included all envs."""
        self._ended: list[tuple[np.ndarray, np.ndarray, np.ndarray, Any]] = []
        """Per call of `end`: envs, columns of `_begun`, `_count` and last observations."""
        self._due = float("inf")
        """`time.monotonic()` at which the next commit is due."""

    def actions(self, action: Any, ids: Sequence[int]) -> Any:
        """Return actions in the stored dtypes. Raises the errors of vecenv's `step`, or `DatasetError`."""
        rows = batch_actions(action, ids, self.layout.action)
        if rows.__class__ is list:
            raise DatasetError(
                f"these actions are not elements of the action space, so they cannot be stored: {action!r}"
            )
        return rows

    def _check_open(self) -> None:
        if self._finished:
            raise DatasetError(
                f"{self._writer.folder} is no longer recorded, because the vector env was closed: wrap it in "
                "RecordEpisodes(..., resume=True) to continue"
            )

    def begin(self, ids: np.ndarray | None, obs: Any, seeds: Any = -1) -> None:
        """Begin episodes of these envs (None: all), and abandon their unfinished episodes.

        `obs`: first observations, or None if the last `step` has recorded them. `seeds`: -1 without a seed.
        """
        self._check_open()
        envs = self._all if ids is None else ids
        if obs is not None:
            self._buffer.write("obs", self._count[envs] * self.n + envs, fit_rows(obs, self.layout.obs))
        self._first[envs], self._before[envs], self._seeds[envs] = self._count[envs], 0, seeds
        self._is_recorded[envs] = True

    def discard(self, ids: Any = slice(None)) -> None:
        self._is_recorded[ids] = False

    def step(
        self,
        ids: np.ndarray | None,
        action: Any,
        obs: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: dict[str, np.ndarray],
    ) -> np.ndarray:
        """Record a step of these envs (None: all). Return the indices of the rows that end episodes.

        `info`: result of `info_objects` for `info_keys`.
        """
        self._check_open()
        n, buffer, obs = self.n, self._buffer, fit_rows(obs, self.layout.obs)
        if (
            time.monotonic() >= self._due
            or (self._count[0] if self._all_stepped else self._count.max()) == buffer.steps
        ):
            self.cut()
            self._check_memory()
        self._all_stepped &= ids is None
        envs = self._all if ids is None else ids
        if self._all_stepped:
            first = int(self._count[0]) * n
            at: Any = slice(first, first + n)
            after: Any = slice(first + n, first + 2 * n)
        else:
            at = self._count[envs] * n + envs
            after = at + n
        flags = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        buffer.write("action", at, action)
        if info:
            buffer.write("info", at, info)
        buffer.write_step(at, after, obs, np.asarray(reward, np.float64), *flags)
        if ids is None:
            self._count += 1
        else:
            self._count[ids] += 1
        ended: np.ndarray = (flags[0] | flags[1]).nonzero()[0]
        return ended

    def _check_memory(self) -> None:
        if (kept := self._unfinished.nbytes) > self._memory:
            steps = np.where(self._is_recorded, self._before, 0)
            env = int(steps.argmax())
            raise DatasetError(
                f"the unfinished episode of env {env} has {steps[env]} steps and no end, and all unfinished "
                f"episodes have {kept:,} bytes; RecordEpisodes stores whole episodes, and keeps {self._memory:,} bytes "
                "until they end: limit their steps (gymnasium.wrappers.TimeLimit), or pass a larger memory="
            )

    def end(self, envs: np.ndarray, last_obs: Any) -> None:
        """End the episodes of these envs. `last_obs` is not copied, so it must not change later."""
        rows, known = fit_rows(last_obs, self.layout.obs), self._is_recorded[envs]
        if np.count_nonzero(known) < len(envs):
            envs, rows = envs[known], nest.take(rows, known)
        self._ended.append((envs, self._begun.take(envs, 1), self._count[envs], rows))
        self._is_recorded[envs] = False
        self._due = min(self._due, time.monotonic() + self._shard_seconds)

    def cut(self) -> None:
        """Pass finished episodes to the writer, and commit if due.

        Raises `DatasetError` if the disk is full, or, after storing the other episodes, if a return is not finite.
        """
        with sigint_deferred():  # Ctrl-C would leave rows and counts inconsistent
            whole = self._extract_finished() if self._count.any() else ()
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

    def _extract_finished(self) -> EpisodeBatch:
        playing = self._is_recorded
        going = np.flatnonzero(playing & (self._first < self._count))
        episodes = [*self._ended, (going, self._begun[:, going], self._count[going], None)]
        envs, begun, count, _ = zip(*episodes, strict=True)
        env, (first, before, seed) = np.concatenate(envs), np.concatenate(begun, axis=1)
        unknown, ends = np.full(len(env), -1), np.arange(len(env)) < len(env) - len(going)
        runs = Runs(env, first * self.n + env, np.concatenate(count) - first, before, ends, unknown, seed)
        names = EPISODE_COLUMNS + (("info",) if self.info_keys else ())
        columns = {name: self._buffer.read(name, slice(None)) for name in names}
        last = join([nest.take(columns["obs"], slice(0, 0)), *(obs for *_, obs in self._ended)])
        whole = EpisodeBatch(**self._unfinished.join(columns, runs, last, playing, self.n))
        latest = self._buffer.read("obs", self._count * self.n + self._all)
        self._buffer.rewind()
        self._buffer.write("obs", slice(0, self.n), latest)
        self._before[playing] += (self._count - self._first)[playing]
        self._first[:], self._count[:], self._all_stepped, self._ended = 0, 0, True, []
        return whole

    def finish(self, complete: bool) -> None:
        """Commit, mark the data set as complete if `complete`, and unlock the folder.

        A second call, or a call in a forked process, has no effect.
        """
        if self._finished or os.getpid() != self._pid:
            return
        self._finished = True
        with sigint_deferred(), self._writer:
            try:
                self.cut()
            finally:
                self._writer.commit()
            if complete:
                self._writer.end()

    def finish_after(self, error: BaseException) -> None:
        """Commit after an exception. An error of the commit becomes a note of `error`."""
        try:
            self.finish(complete=False)
        except DatasetError as refused:
            add_note(error, f"episodes that RecordEpisodes had not committed yet are lost: {refused}")
