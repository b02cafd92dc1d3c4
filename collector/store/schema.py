"""Structs for the JSON of a data set: head, spaces and manifest lines. Values are checked when read.

Lines of manifest.jsonl::

    {"line": "layout", "obs": {"image": "|u1 84 84", "speed": "<f4"}, "action": "<i8", "reward": "<f8"}
    {"line": "shard", "shard": "shards/000000", "files": {"obs.npy": [23456, "<sha256>"], ...}, "compressed": false,
     "steps": 5000, "episodes": [0, 1, 3, ...], "lengths": [...], "returns": [...], "failed": {"env": 1}}
    {"line": "note", "failed": {"env": 1}, "state": ...}
    {"line": "end", "episodes": 400}

The layout comes before the first shard. A complete data set ends with "end": only episodes with smaller numbers count.
"failed" and "state" (for the next writer) are optional.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

try:
    import msgspec
    from msgspec import Meta
except ImportError as error:
    raise ImportError("data sets need msgspec: pip install vecenv[data]", name="msgspec") from error

LARGEST = 2**53
"""Limit of integers that JSON readers with floats represent exactly."""
LARGEST_SIZE = 2**48
"""Limit of array sizes, so that products do not overflow int64."""
DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
Count = Annotated[int, Meta(ge=0, lt=LARGEST)]
Size = Annotated[int, Meta(ge=0, lt=LARGEST_SIZE)]
Shape = Annotated[list[Size], Meta(max_length=32)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class ManifestLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="line"):
    pass


class LayoutLine(ManifestLine, tag="layout"):
    """Row dtypes and shapes, as trees (tuples are lists)."""

    obs: Any
    action: Any
    reward: Annotated[str, Meta(pattern=r"^<f8( [0-9]{1,9})*\Z")]


class Note(ManifestLine, tag="note"):
    """Failures since the previous line, and state."""

    failed: dict[str, Count] = {}
    state: Any = None


class ShardLine(Note, tag="shard", kw_only=True):
    shard: Annotated[str, Meta(pattern=r"^shards/[0-9]{6,12}\Z")]
    files: dict[str, tuple[Count, Sha256]]
    """Size and hash of each file."""
    compressed: bool
    steps: Count
    episodes: Annotated[list[Count], Meta(min_length=1)]
    lengths: list[Annotated[int, Meta(ge=1, lt=LARGEST)]]
    returns: list[float]

    @property
    def nbytes(self) -> int:
        return sum(size for size, _ in self.files.values())

    def without_episodes(self) -> ShardLine:
        return msgspec.structs.replace(self, episodes=[], lengths=[], returns=[])


class End(ManifestLine, tag="end"):
    """End of a complete data set."""

    episodes: Count


Line = LayoutLine | ShardLine | Note | End


class SpaceForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """gymnasium space: type and arguments, or only a text."""

    type: Literal["Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple", "other"]
    dtype: Literal[("", *DTYPES)] = ""  # type: ignore[valid-type]
    shape: Shape = []
    low: Any = None
    """Bound of a Box: a number, or a list in C order. Infinity is "inf"."""
    high: Any = None
    n: int | Shape = 0
    nvec: list[Any] = []
    start: int | list[Any] = 0
    spaces: dict[str, SpaceForm] | list[SpaceForm] = []
    text: str = ""


class Head(msgspec.Struct):
    """Checked entries of dataset.json."""

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
    """Return the value of a JSON text in UTF-8, checked against `kind`. Raises ValueError.

    >>> parse(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def dump(value: Any) -> bytes:
    """Return a line of JSON without line end. Raises ValueError for NaN and infinity, TypeError for other objects.

    >>> dump({"a": (1, 2.5)})
    b'{"a": [1, 2.5]}'
    """
    return json.dumps(as_json(value), allow_nan=False).encode("ascii")


def dump_line(line: Line) -> bytes:
    """Return `dump(line)`. Raises ValueError also if readers of the manifest would refuse the line."""
    data = dump(line)
    parse(data, Line)
    return data
