"""InfoReader: reads the info rows that workers have written, by the forms that they have sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv.backends.memory.info_rows import InfoColumns, InfoForm

UNKNOWN = -1


class InfoReader:
    """Reads `rows` (n, INFO_BYTES); `worker_of` (n,) is the worker of each env, which numbers its forms itself.

    Forms that are equal are one, so that the infos of all workers are usually read together.
    """

    def __init__(self, rows: np.ndarray, worker_of: np.ndarray) -> None:
        self._rows, self._worker_of = rows, worker_of
        self._all = list(range(len(rows)))
        self._forms: list[InfoForm] = []
        self._indices: dict[Any, int] = {}
        self._of_worker = np.full((int(worker_of.max()) + 1, 256), UNKNOWN)
        """Where in `_forms` the forms of each worker are, by the worker's own numbers."""

    def learn(self, worker: int, number: int, keys: tuple[str, ...], kinds: tuple[Any, ...]) -> None:
        """Note a form that a worker has sent."""
        if (keys, kinds) not in self._indices:
            self._forms.append(InfoForm(keys, kinds))
            self._indices[keys, kinds] = len(self._forms) - 1
        self._of_worker[worker, number] = self._indices[keys, kinds]

    def forget(self, worker: int) -> None:
        """The worker has ended: the next one in its place has other forms."""
        self._of_worker[worker] = UNKNOWN

    def read(self, ids: Sequence[int] | None) -> list[InfoColumns] | None:
        """The infos of these envs (None: all), grouped by their form; None if the form of one has not arrived."""
        if ids is not None and not ids:
            return []
        rows = slice(None) if ids is None else ids
        indices = self._of_worker[self._worker_of[rows], self._rows[rows, 0]]
        first = int(indices[0])
        if (indices == first).all():
            return None if first == UNKNOWN else [self._columns(first, ids)]
        if (indices == UNKNOWN).any():
            return None
        env_ids = np.arange(len(self._rows)) if ids is None else np.array(ids)
        found, places = np.unique(indices, return_index=True)
        return [self._columns(int(found[k]), env_ids[indices == found[k]].tolist()) for k in np.argsort(places)]

    def _columns(self, index: int, ids: Sequence[int] | None) -> InfoColumns:
        form, rows = self._forms[index], self._rows if ids is None else self._rows[ids]
        return InfoColumns(form, self._all if ids is None else ids, form.read(rows))
