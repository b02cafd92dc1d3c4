"""InfoReader: reads the info rows that workers have written, by the forms that they have sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv.backends.memory.info_rows import InfoColumns, InfoForm


class InfoReader:
    """Reads `rows` (n, INFO_BYTES); `worker_of` (n,) is the worker of each env, which numbers its forms itself.

    Forms that are equal are one object, so that the infos of all workers are usually read together.
    """

    def __init__(self, rows: np.ndarray, worker_of: np.ndarray) -> None:
        self._rows, self._worker_of = rows, worker_of.tolist()
        self._all = list(range(len(rows)))
        self._forms: dict[Any, InfoForm] = {}
        self._sent: dict[tuple[int, int], InfoForm] = {}
        """By the worker that has sent it, and its number there."""
        self._form_of_all: dict[bytes, InfoForm] = {}
        """The form of the infos of all envs, by the numbers that their rows have then."""

    def learn(self, worker: int, number: int, keys: tuple[str, ...], kinds: tuple[Any, ...]) -> None:
        """Note a form that a worker has sent."""
        self._sent[worker, number] = self._forms.setdefault((keys, kinds), InfoForm(keys, kinds))

    def forget(self, worker: int) -> None:
        """The worker has ended: the next one in its place has other forms."""
        self._sent = {key: form for key, form in self._sent.items() if key[0] != worker}
        self._form_of_all = {}

    def read(self, ids: Sequence[int] | None) -> list[InfoColumns] | None:
        """The infos of these envs (None: all), grouped by their form; None if the form of one has not arrived."""
        numbers = self._rows[:, 0].tobytes()
        if ids is None and (form := self._form_of_all.get(numbers)) is not None:
            return [InfoColumns(form, self._all, form.read(self._rows))]
        groups: dict[InfoForm, list[int]] = {}
        for i in self._all if ids is None else ids:
            sent = self._sent.get((self._worker_of[i], numbers[i]))
            if sent is None:
                return None
            groups.setdefault(sent, []).append(i)
        if ids is None and len(groups) == 1:
            self._form_of_all[numbers] = next(iter(groups))
        return [InfoColumns(form, group, form.read(self._rows[group])) for form, group in groups.items()]
