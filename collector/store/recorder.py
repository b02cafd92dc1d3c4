"""`EpisodeRecorder`: records the steps of a vector env, and passes finished episodes to a `StoreWriter`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from collector.batch.forms import NO_IDS
from collector.batch.step_extras import EPISODE_SEED
from collector.batch.step_log import StepLog
from collector.episodes.cutter import EpisodeCutter
from collector.episodes.env_episodes import Episodes
from collector.episodes.episode import EpisodeBatch
from collector.store.safe_folder import DatasetError
from collector.store.texts import TEXT, is_texts
from collector.store.writer import StoreWriter
from vecenv import nest
from vecenv.actions import batch_actions
from vecenv.ctrl_c import sigint_deferred
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


UNKNOWN = np.iinfo(np.int64).min // 2
"""Number of earlier steps if no `begin` has recorded the start of the episode."""


class EpisodeRecorder:
    """Recorder of the episodes of `n` envs, until `finish`.

    A log holds the steps since the last `cut`. `cut` passes finished episodes to the writer, and keeps up to `memory`
    bytes of unfinished episodes.
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
        self._frames = n * max(2, min(ROUNDS, _BYTES // (n * row)))
        self._finished, self._pid = False, os.getpid()
        self._episodes = Episodes(n)
        self._log = StepLog(self._episodes, has_seeds=True)
        self._cutter = EpisodeCutter([f"info.{key}" for key in info_keys])
        self._log.begin(self._frames, reuse=True)
        self._episodes.taken[:] = UNKNOWN
        self._abandoned: list[np.ndarray] = []
        """Ids of episodes that were abandoned since the last `cut`."""
        self._ended: list[np.ndarray] = []
        """Ids of episodes that ended since the last `cut`, in the order of their ends."""
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
        envs, episodes = self._log.all_ids if ids is None else ids, self._episodes
        if obs is not None:
            self._log.observe(envs, fit_rows(obs, self.layout.obs))
        self.discard(envs)
        episodes.taken[envs], episodes.seeds[envs] = 0, seeds

    def discard(self, ids: Any = slice(None)) -> None:
        """Abandon the unfinished episodes of these envs. Their steps are not stored until the next `begin`."""
        self._abandoned.append(self._episodes.ids[ids].copy())
        self._end(ids)

    def _end(self, ids: Any) -> None:
        self._episodes.ids[ids] += self.n
        self._episodes.taken[ids] = UNKNOWN

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
        log, obs, envs = self._log, fit_rows(obs, self.layout.obs), self._log.all_ids if ids is None else ids
        if time.monotonic() >= self._due or log.is_full:
            self.cut()
            self._check_memory()
        log.act(envs, {"action": action, "info": info} if info else {"action": action})
        flags = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        log.receive(envs, obs, np.asarray(reward, np.float64), *flags)
        if ids is None:
            self._episodes.taken += 1
        else:
            self._episodes.taken[ids] += 1
        ended: np.ndarray = (flags[0] | flags[1]).nonzero()[0]
        return ended

    def _check_memory(self) -> None:
        if (kept := self._cutter.unfinished_nbytes) > self._memory:
            env = int(self._episodes.taken.argmax())
            raise DatasetError(
                f"the unfinished episode of env {env} has {self._episodes.taken[env]} steps and no end, and all "
                f"unfinished episodes have {kept:,} bytes; RecordEpisodes stores whole episodes, and keeps "
                f"{self._memory:,} bytes until they end: limit their steps (gymnasium.wrappers.TimeLimit), or pass a "
                "larger memory="
            )

    def end(self, ended: np.ndarray, envs: np.ndarray, last_obs: Any) -> None:
        """End the episodes in the rows `ended` of the last step. `last_obs` is not copied, so it must not change."""
        self._log.end(ended, fit_rows(last_obs, self.layout.obs), None)
        self._ended.append(self._episodes.ids[envs])
        self._end(envs)
        self._due = min(self._due, time.monotonic() + self._shard_seconds)

    def cut(self) -> None:
        """Pass finished episodes to the writer, and commit if due.

        Raises `DatasetError` if the disk is full, or, after storing the other episodes, if a return is not finite.
        """
        with sigint_deferred():  # Ctrl-C would leave rows and counts inconsistent
            whole = () if self._log.is_empty else self._extract_finished()
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
        batch = self._log.batch()
        extras = {f"info.{key}": rows for key, rows in batch.extras.get("info", {}).items()}
        extras[EPISODE_SEED] = batch.extras[EPISODE_SEED]
        abandoned, ended = (np.concatenate([NO_IDS, *ids]) for ids in (self._abandoned, self._ended))
        self._abandoned, self._ended = [], []
        whole = self._cutter.cut(replace(batch, extras=extras, broken_ids=abandoned), ended)
        self._log.begin(self._frames, reuse=True)
        info = {key: whole.info[f"info.{key}"] for key in self.info_keys}
        return replace(whole, info=info, episode=np.full(len(whole), -1))

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
