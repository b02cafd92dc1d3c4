"""Structs for the JSON in dataset.json and manifest.jsonl. Readers check the values against these structs.

Lines of manifest.jsonl::

    {"line": "layout", "obs": {"image": "|u1 84 84", "mission": "text"}, "action": "<i8", "reward": "<f8"}
    {"line": "shard", "shard": "shards/000000", "files": {"obs.npy": [23456, "<sha256>"], ...}, "compressed": false,
     "steps": 5000, "episodes": [0, 1, 3, ...], "lengths": [...], "returns": [...], "failed": {"retried": 1},
     "text_bytes": {"obs.1": 81234}}
    {"line": "note", "failed": {"skipped": 1}, "state": ...}
    {"line": "end", "episodes": 400}

- "layout": dtype and row shape of each array, or "text". A list stands for a Tuple space.
- "note": "failed" and "state" without a shard.
- "end": the last line of a complete data set. Readers ignore episodes with numbers of `episodes` or more.
- "failed" (failures since the previous line, by kind) and "state" (JSON for the next writer) are optional.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

try:
    import msgspec
    from msgspec import Meta
except ImportError as error:
    raise ImportError("data sets need msgspec: pip install vecenv[data]", name="msgspec") from error

MAX_EXACT_INT = 2**53
"""Limit below which integers must be, because JSON readers may use float64."""
LARGEST_SIZE = 2**48
"""Each size in a shape is below this limit, so that a size in bytes fits into int64."""
STORED_DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
TEXT_DTYPE = "text"
Count = Annotated[int, Meta(ge=0, lt=MAX_EXACT_INT)]
Size = Annotated[int, Meta(ge=0, lt=LARGEST_SIZE)]
Shape = Annotated[list[Size], Meta(max_length=32)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class ManifestLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="line"):
    pass


class LayoutLine(ManifestLine, tag="layout"):
    obs: Any
    action: Any
    reward: Annotated[str, Meta(pattern=r"^<f8( [0-9]{1,9})*\Z")]
    info: dict[str, str] = {}


class Note(ManifestLine, tag="note"):
    failed: dict[str, Count] = {}
    state: Any = None


class ShardLine(Note, tag="shard", kw_only=True):
    shard: Annotated[str, Meta(pattern=r"^shards/[0-9]{6,12}\Z")]
    files: dict[str, tuple[Count, Sha256]]
    """Bytes and hash of each file, by name."""
    compressed: bool
    steps: Count
    episodes: Annotated[list[Count], Meta(min_length=1)]
    lengths: list[Annotated[int, Meta(ge=1, lt=MAX_EXACT_INT)]]
    returns: list[float]
    text_bytes: dict[str, Count] = {}
    """Bytes of all texts before compression, by array."""

    @property
    def nbytes(self) -> int:
        return sum(size for size, _ in self.files.values())

    def without_episodes(self) -> ShardLine:
        return msgspec.structs.replace(self, episodes=[], lengths=[], returns=[])


class End(ManifestLine, tag="end"):
    episodes: Count


Line = LayoutLine | ShardLine | Note | End


class SpaceForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Type and arguments of a gymnasium space. The type "other" has only `text`, the repr.

    The type "Text" has `n`, the minimum and maximum length, and `text`, the characters. A space of texts that is not
    gymnasium's Text has neither.
    """

    type: Literal["Box", "Discrete", "MultiDiscrete", "MultiBinary", "Text", "Dict", "Tuple", "other"]
    dtype: Literal[("", *STORED_DTYPES)] = ""  # type: ignore[valid-type]
    shape: Shape = []
    low: Any = None
    """Bound of a Box: a number, or a list in C order. Infinity is "inf" or "-inf"."""
    high: Any = None
    n: int | Shape = 0
    nvec: list[Any] = []
    start: int | list[Any] = 0
    spaces: dict[str, SpaceForm] | list[SpaceForm] = []
    text: str = ""


class Head(msgspec.Struct):
    """Entries of dataset.json that a reader checks."""

    format: Literal["vecenv dataset"]
    version: Literal[3]
    job: dict[str, Any] | None = None
    versions: dict[str, Any] = {}
    observation_space: SpaceForm | None = None
    action_space: SpaceForm | None = None


as_json = msgspec.to_builtins
convert = msgspec.convert
"""Convert JSON values to a struct. Raises ValueError and RecursionError."""


def parse(data: bytes, kind: Any = Any) -> Any:
    """Decode JSON in UTF-8, and check the value against the type `kind`. Raises ValueError.

    >>> parse(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def dump(value: Any) -> bytes:
    """Return a line of JSON without line end. Raises ValueError for NaN and infinity, TypeError for unsupported types.

    >>> dump({"a": (1, 2.5)})
    b'{"a": [1, 2.5]}'
    """
    return json.dumps(as_json(value), allow_nan=False).encode("ascii")


def dump_line(line: Line) -> bytes:
    """Return `dump(line)`. Also raises ValueError if readers would refuse the line."""
    data = dump(line)
    parse(data, Line)
    return data
