"""Info rows: infos of numbers and small arrays as bytes in the arena, one after the other, without gaps.

    number of the form u8 | value | value | ...

A form is what infos that travel so have in common: their keys in order, and the type of each value. Whoever writes the
rows numbers the forms, and sends each of them once; all other infos travel pickled.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np

INFO_BYTES = 512
"""The bytes of a row: sixty numbers. An info that takes more travels pickled."""

Kind = Any
"""The type of a value: a type of numbers, or the dtype and shape of an array."""

FORMATS = {"b1": "?", "f2": "e", "f4": "f", "f8": "d"} | {
    f"{sign}{1 << power}": (letter.upper() if sign == "u" else letter)
    for sign in "iu"
    for power, letter in enumerate("bhiq")
}
PYTHON = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float64)}
SCALARS = PYTHON | {
    kind: np.dtype(kind)
    for kind in (
        *(np.bool_, np.float16, np.float32, np.float64),
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    )
}
"""The types of numbers, with the dtype that holds each exactly; an int that has more than 64 bits does not fit."""


class InfoForm:
    """How infos with these keys and kinds of values lie in a row.

    >>> form = InfoForm(("x", "at"), (float, ("<i8", (2,))))
    >>> row = bytearray(INFO_BYTES)
    >>> form.struct.pack_into(row, 0, 3, 0.5, np.array([7, 8]).tobytes())
    >>> InfoColumns(form, [4], form.read(np.frombuffer(row, np.uint8).reshape(1, -1)))[4]
    {'x': 0.5, 'at': array([7, 8])}
    """

    def __init__(self, keys: tuple[str, ...], kinds: tuple[Kind, ...]) -> None:
        self.keys, self.kinds = keys, kinds
        self.parts = [
            (SCALARS[kind], ()) if isinstance(kind, type) else (np.dtype(kind[0]), tuple(kind[1])) for kind in kinds
        ]
        """The dtype and shape of each value."""
        sizes = [dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for dtype, shape in self.parts]
        self.size = 1 + sum(sizes)
        """Bytes."""
        self.struct = struct.Struct(
            "=B"
            + "".join(
                FORMATS[dtype.str[1:]] if isinstance(kind, type) else f"{size}s"
                for kind, (dtype, _), size in zip(kinds, self.parts, sizes, strict=True)
            )
        )
        self.has_arrays = not all(isinstance(kind, type) for kind in kinds)
        self._names = [str(place) for place in range(len(kinds))]
        self._dtype = np.dtype(
            {
                "names": self._names,
                "formats": self.parts,
                "offsets": [1 + sum(sizes[:place]) for place in range(len(sizes))],
                "itemsize": self.size,
            }
        )

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """The values of `rows` (k, at least `size`): an array (k, *shape) for each key, apart from the memory."""
        structured = np.array(rows[:, : self.size], order="C").view(self._dtype)[:, 0]
        return [structured[name] for name in self._names]


class InfoColumns(Mapping[int, dict[str, Any]]):
    """The infos of the envs `ids` in one round, by env id, all of one form: made when they are asked for.

    `columns` are the values, an array (k, *shape) for each key of the form.
    """

    __slots__ = ("columns", "form", "ids")

    def __init__(self, form: InfoForm, ids: Sequence[int], columns: list[np.ndarray]) -> None:
        self.form, self.ids, self.columns = form, ids, columns

    def dicts(self, env_id: bool = False) -> list[dict[str, Any]]:
        """The infos as the envs returned them, in the order of `ids`: new dicts, with arrays of their own.

        `env_id` adds the env id under this key.
        """
        keys, values = self.form.keys, [*map(_values, self.form.kinds, self.columns)]
        if env_id:
            keys, values = (*keys, "env_id"), [*values, self.ids]
        return list(map(dict, map(zip, repeat(keys), zip(*values, strict=True))))  # without a Python loop over envs

    def of(self, ids: Sequence[int]) -> InfoColumns:
        """Those of these envs."""
        rows = [row for row, i in enumerate(self.ids) if i in ids]
        return InfoColumns(self.form, [self.ids[row] for row in rows], [column[rows] for column in self.columns])

    def items(self) -> Any:
        """(env id, info) of each."""
        return list(zip(self.ids, self.dicts(), strict=True))

    def __getitem__(self, env_id: int) -> dict[str, Any]:
        if env_id not in self.ids:
            raise KeyError(env_id)
        return self.of([env_id]).dicts()[0]

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


def _values(kind: Kind, column: np.ndarray) -> Sequence[Any]:
    """The values of a column as the envs returned them; arrays have memory of their own each."""
    if kind in PYTHON:
        values: list[Any] = column.tolist()
        return values
    return list(column) if isinstance(kind, type) else [column[row, ...].copy() for row in range(len(column))]
