"""Encoding of infos as bytes in the arena's info rows, so that workers need not pickle numbers and small arrays.

    number of the schema u8 | value | value | ...

A schema has the keys of an info in order, and the type of each value. Each worker numbers its schemas, and sends each
schema to the parent once. Infos that do not fit a row are pickled.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np

INFO_BYTES = 512
InfoKind = Any
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
"""Dtype of each number type in a row. All values fit exactly, except ints of more than 64 bits."""


class InfoSchema:
    """Layout of an info in a row. The kind of a value is a number type, or the dtype and shape of an array.

    >>> schema = InfoSchema(("x", "at"), (float, ("<i8", (2,))))
    >>> row = bytearray(INFO_BYTES)
    >>> schema.struct.pack_into(row, 0, 3, 0.5, np.array([7, 8]).tobytes())
    >>> InfoColumns(schema, [4], schema.read(np.frombuffer(row, np.uint8).reshape(1, -1)))[4]
    {'x': 0.5, 'at': array([7, 8])}
    """

    def __init__(self, keys: tuple[str, ...], kinds: tuple[InfoKind, ...]) -> None:
        self.keys, self.kinds = keys, kinds
        self.parts = [
            (SCALARS[kind], ()) if isinstance(kind, type) else (np.dtype(kind[0]), tuple(kind[1])) for kind in kinds
        ]
        sizes = [dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for dtype, shape in self.parts]
        self.size = 1 + sum(sizes)
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
        """Copy the values of `rows` (k, at least `size`) into an array (k, *shape) per key."""
        structured = np.array(rows[:, : self.size], order="C").view(self._dtype)[:, 0]
        return [structured[name] for name in self._names]


class InfoColumns(Mapping[int, dict[str, Any]]):
    """Infos with the same schema, by env id. Dicts are built when read. `columns` has an array (k, *shape) per key."""

    __slots__ = ("columns", "ids", "schema")

    def __init__(self, schema: InfoSchema, ids: Sequence[int], columns: list[np.ndarray]) -> None:
        self.schema, self.ids, self.columns = schema, ids, columns

    def dicts(self, env_id: bool = False) -> list[dict[str, Any]]:
        """Return the infos in the order of `ids`."""
        keys, values = self.schema.keys, [*map(_values, self.schema.kinds, self.columns)]
        if env_id:
            keys, values = (*keys, "env_id"), [*values, self.ids]
        return list(map(dict, map(zip, repeat(keys), zip(*values, strict=True))))

    def of(self, ids: Sequence[int]) -> InfoColumns:
        rows = [row for row, i in enumerate(self.ids) if i in ids]
        return InfoColumns(self.schema, [self.ids[row] for row in rows], [column[rows] for column in self.columns])

    def items(self) -> Any:
        return list(zip(self.ids, self.dicts(), strict=True))

    def __getitem__(self, env_id: int) -> dict[str, Any]:
        if env_id not in self.ids:
            raise KeyError(env_id)
        return self.of([env_id]).dicts()[0]

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


def _values(kind: InfoKind, column: np.ndarray) -> Sequence[Any]:
    if kind in PYTHON:
        values: list[Any] = column.tolist()
        return values
    return list(column) if isinstance(kind, type) else [column[row, ...].copy() for row in range(len(column))]


class InfoReader:
    """The parent's reader of all info rows (n, INFO_BYTES).

    `worker_of` (n,) is the index of each env's worker, because each worker numbers its schemas. Equal schemas become
    one object, so that their infos are read together.
    """

    def __init__(self, rows: np.ndarray, worker_of: np.ndarray) -> None:
        self._rows = rows
        self._all = list(range(len(rows)))
        self._schemas: dict[Any, InfoSchema] = {}
        self._sent: dict[tuple[int, int], InfoSchema] = {}
        self.assign(worker_of)

    def assign(self, worker_of: np.ndarray) -> None:
        self._worker_of = worker_of.tolist()
        self._schema_of_all: dict[bytes, InfoSchema] = {}

    def learn(self, worker: int, number: int, keys: tuple[str, ...], kinds: tuple[Any, ...]) -> None:
        self._sent[worker, number] = self._schemas.setdefault((keys, kinds), InfoSchema(keys, kinds))

    def forget(self, worker: int) -> None:
        self._sent = {key: schema for key, schema in self._sent.items() if key[0] != worker}
        self._schema_of_all = {}

    def read(self, ids: Sequence[int] | None) -> list[InfoColumns] | None:
        """Return the infos of these envs (`None` for all) by schema, or `None` if a schema has not arrived yet."""
        numbers = self._rows[:, 0].tobytes()
        if ids is None and (schema := self._schema_of_all.get(numbers)) is not None:
            return [InfoColumns(schema, self._all, schema.read(self._rows))]
        groups: dict[InfoSchema, list[int]] = {}
        for i in self._all if ids is None else ids:
            sent = self._sent.get((self._worker_of[i], numbers[i]))
            if sent is None:
                return None
            groups.setdefault(sent, []).append(i)
        if ids is None and len(groups) == 1:
            self._schema_of_all[numbers] = next(iter(groups))
        return [InfoColumns(schema, group, schema.read(self._rows[group])) for schema, group in groups.items()]


MOST_SCHEMAS = 8
MOST_KNOWN = 64
"""Maximum number of signatures (keys and types of an info). Infos with further signatures are pickled."""
NUMBERS = "biufc"
TEXT = frozenset({str})


class InfoWriter:
    """A worker's writer of the info rows (k, INFO_BYTES) of its envs. The worker has sent `schemas[:sent]`."""

    def __init__(self, rows: np.ndarray) -> None:
        self._memory = rows.reshape(-1).data
        self._known: dict[Any, tuple[int, InfoSchema] | None] = {}
        self.schemas: list[InfoSchema] = []
        self.sent = 0

    @property
    def size(self) -> int:
        return max((schema.size for schema in self.schemas), default=0)

    def write(self, j: int, info: Mapping[Any, Any]) -> bool:
        """Write an info into row j. Return False if the info must be pickled."""
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
        number, schema = known
        if schema.has_arrays:
            values = [v.tobytes() if v.__class__ is np.ndarray else v for v in values]  # type: ignore[assignment]
        try:
            schema.struct.pack_into(self._memory, j * INFO_BYTES, number, *values)
        except struct.error:  # an int of more than 64 bits
            return False
        return True

    def _learn(self, signature: Any, info: Mapping[str, Any]) -> tuple[int, InfoSchema] | None:
        if len(self._known) == MOST_KNOWN:
            return None
        known = None
        kinds = tuple(map(_kind, info.values()))
        if len(self.schemas) < MOST_SCHEMAS and None not in kinds:
            schema = InfoSchema(tuple(info), kinds)
            if schema.size <= INFO_BYTES:
                known = len(self.schemas), schema
                self.schemas.append(schema)
        self._known[signature] = known
        return known


def _kind(value: Any) -> Any:
    if value.__class__ is not np.ndarray:
        return value.__class__ if value.__class__ in SCALARS else None
    return (value.dtype.str, value.shape) if value.dtype.kind in NUMBERS else None
