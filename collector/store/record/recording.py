"""Recording: a data set that is being recorded of a vector env, from the first observations to the end."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from collector.interruptor import sigint_deferred
from collector.store.errors import DatasetError
from collector.store.record.recorder import EpisodeRecorder
from collector.store.writer import StoreWriter
from vecenv import nest
from vecenv.backends.host.failure import add_note
from vecenv.backends.memory.layout import Layout, ObjectLeaf, common_layout
from vecenv.engine.actions import batch_actions


def layout_of(observation_spaces: Sequence[Any], action_spaces: Sequence[Any]) -> Layout:
    """The arrays of one form that observations and actions are. Raises `DatasetError` where they are none."""
    layout = common_layout(observation_spaces, action_spaces)
    objects = [leaf.path for leaf in nest.leaves(layout.obs) if isinstance(leaf, ObjectLeaf)]
    if objects or layout.action is None:
        raise DatasetError(
            f"only arrays of numbers can be stored: {[*objects, 'action'][0]} is no array with the same shape and "
            "dtype in all envs"
        )
    return layout


class Recording:
    """The part that the wrappers of `RecordEpisodes` share: the writer, and a recorder once there are observations.

    `action_layout`: tree of the leaves of an action. `limits`: `shard_bytes` and `shard_seconds`.
    """

    def __init__(self, writer: StoreWriter, n: int, action_layout: Any, limits: tuple[int, float]) -> None:
        self.n = n
        self.sent = nest.map(lambda leaf: np.zeros((n, *leaf.shape), leaf.dtype), action_layout)
        """The latest action of each env."""
        self._writer, self._layout, self._limits = writer, action_layout, limits
        self._recorder: EpisodeRecorder | None = None
        self._finished, self._pid = False, os.getpid()

    def finish_with(self, owner: Any) -> None:
        """Commit what has ended when `owner` is dropped, or the program ends, without `finish`."""
        weakref.finalize(owner, self.finish, complete=False)

    def recorder(self, obs: Any) -> EpisodeRecorder:
        """The recorder for rows like these. Raises `DatasetError` after the end."""
        if self._recorder is None:
            if self._finished:
                raise DatasetError(
                    f"{self._writer.folder} is not recorded any more, since the vector env was closed: wrap it in "
                    "RecordEpisodes(..., resume=True) to go on"
                )
            self._recorder = EpisodeRecorder(self.n, self._writer, obs, self.sent, *self._limits)
        return self._recorder

    def actions(self, action: Any, ids: Sequence[int]) -> Any:
        """The actions of these envs as they are stored: a tree of arrays. Raises what a vector env of vecenv raises for
        them, and `DatasetError` for those that the dtypes of the action space cannot hold.
        """
        rows = batch_actions(action, ids, self._layout)
        if rows.__class__ is list:
            raise DatasetError(f"these actions are no elements of the action space, and cannot be stored: {action!r}")
        return rows

    def discard(self, ids: Any = slice(None)) -> None:
        """Give up the episodes in progress of these envs."""
        if self._recorder is not None:
            self._recorder.discard(ids)

    def finish(self, complete: bool) -> None:
        """Commit what has ended, and give the folder back; once more, or in a forked process, does nothing."""
        if self._finished or os.getpid() != self._pid:
            return
        self._finished = True
        recorder, self._recorder = self._recorder, None
        with sigint_deferred(), self._writer:  # which is closed, whatever happens
            try:
                if recorder is not None:
                    recorder.cut()
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
