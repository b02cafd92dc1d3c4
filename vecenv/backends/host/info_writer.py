"""InfoWriter: writes infos of numbers and small arrays into info rows; it learns their forms as they come."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from vecenv.backends.memory.info_rows import INFO_BYTES, SCALARS, InfoForm

MOST_FORMS = 8
"""How many forms the infos of a block may have that travel in rows: of steps, of resets, of some of its envs."""
MOST_KNOWN = 64
"""How many signatures are remembered; after that nothing is learned any more."""
NUMBERS = "biufc"
TEXT = frozenset({str})


class InfoWriter:
    """Writes into the info rows `rows` (k, INFO_BYTES) of a block; the parent has yet to get `forms[sent:]`."""

    def __init__(self, rows: np.ndarray) -> None:
        self._memory = rows.reshape(-1).data
        self._known: dict[Any, tuple[int, InfoForm] | None] = {}
        self.forms: list[InfoForm] = []
        """By their number."""
        self.sent = 0
        """How many of them the parent has got."""

    @property
    def size(self) -> int:
        """The bytes of a row that are used."""
        return max((form.size for form in self.forms), default=0)

    def write(self, j: int, info: Mapping[Any, Any]) -> bool:
        """Write the info of env j into its row; returns False if it has to travel pickled."""
        if not TEXT.issuperset(map(type, info)):
            return False
        values = info.values()
        kinds = tuple(map(type, values))
        signature: Any = tuple(info), kinds
        if np.ndarray in kinds:
            signature = *signature, *[(v.dtype, v.shape) for v in values if v.__class__ is np.ndarray]
        try:
            known = self._known[signature]
        except KeyError:
            known = self._learn(signature, info)
        if known is None:
            return False
        number, form = known
        if form.has_arrays:
            values = [v.tobytes() if v.__class__ is np.ndarray else v for v in values]  # type: ignore[assignment]
        try:
            form.struct.pack_into(self._memory, j * INFO_BYTES, number, *values)
        except struct.error:  # an int of more than 64 bits
            return False
        return True

    def _learn(self, signature: Any, info: Mapping[str, Any]) -> tuple[int, InfoForm] | None:
        if len(self._known) == MOST_KNOWN:
            return None
        known = None
        kinds = tuple(map(_kind, info.values()))
        if len(self.forms) < MOST_FORMS and None not in kinds:
            form = InfoForm(tuple(info), kinds)
            if form.size <= INFO_BYTES:
                known = len(self.forms), form
                self.forms.append(form)
        self._known[signature] = known
        return known


def _kind(value: Any) -> Any:
    """The kind of a value (see `InfoForm`), None for one that is no number and no array of numbers."""
    if value.__class__ is not np.ndarray:
        return value.__class__ if value.__class__ in SCALARS else None
    return (value.dtype.str, value.shape) if value.dtype.kind in NUMBERS else None
