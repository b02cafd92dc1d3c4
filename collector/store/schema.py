"""Structs for the JSON of a data set: head, spaces and manifest lines. Each value is checked when it is read.

`line` is the kind of a line of manifest.jsonl::

    {"line": "layout", "obs": {"image": "|u1 84 84", "speed": "<f4"}, "action": "<i8", "reward": "<f8"}
    {"line": "shard", "shard": "shards/000000", "files": {"obs.npy": [23456, "<sha256>"], ...}, "compressed": false,
     "steps": 5000, "episodes": [0, 1, 3, ...], "lengths": [...], "returns": [...], "failed": {"env": 1}}
    {"line": "note", "failed": {"env": 1}, "state": ...}
    {"line": "end", "episodes": 400}

The layout comes before the first shard, the end last: of a data set that is complete, the episodes below that number
count. "failed" and "state" (what the writer wants to find again) are optional.
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
"""Numbers of episodes and counts are below it: what reads JSON with floats gets them exactly."""
LARGEST_SIZE = 2**48
"""No array is declared larger; products of numbers below stay far from the limits of int64."""
DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
Count = Annotated[int, Meta(ge=0, lt=LARGEST)]
Size = Annotated[int, Meta(ge=0, lt=LARGEST_SIZE)]
Shape = Annotated[list[Size], Meta(max_length=32)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Exact(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="line"):
    """A line of the manifest."""


class LayoutLine(Exact, tag="layout"):
    """The dtype and the shape of a row of observations, actions and rewards; trees of such (tuples are lists)."""

    obs: Any
    action: Any
    reward: Annotated[str, Meta(pattern=r"^<f8( [0-9]{1,9})*\Z")]


class Note(Exact, tag="note"):
    """Counts of failures since the line before, and what the writer wants to find again."""

    failed: dict[str, Count] = {}
    state: Any = None


class ShardLine(Note, tag="shard", kw_only=True):
    """One committed shard."""

    shard: Annotated[str, Meta(pattern=r"^shards/[0-9]{6,12}\Z")]
    """Its folder."""
    files: dict[str, tuple[Count, Sha256]]
    """Size and hash of each file in it."""
    compressed: bool
    steps: Count
    episodes: Annotated[list[Count], Meta(min_length=1)]
    lengths: list[Annotated[int, Meta(ge=1, lt=LARGEST)]]
    returns: list[float]

    @property
    def nbytes(self) -> int:
        """Size of its files."""
        return sum(size for size, _ in self.files.values())

    def without_episodes(self) -> ShardLine:
        """The same without the lists that have an entry for each episode."""
        return msgspec.structs.replace(self, episodes=[], lengths=[], returns=[])


class End(Exact, tag="end"):
    """The end of a data set that is complete: numbers below `episodes` count."""

    episodes: Count


Line = LayoutLine | ShardLine | Note | End


class SpaceForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A space of gymnasium: its type, and the arguments that make it; of another type its text, without a way back."""

    type: Literal["Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple", "other"]
    dtype: Literal[("", *DTYPES)] = ""  # type: ignore[valid-type]
    shape: Shape = []
    low: Any = None
    """A bound of a Box is one number, or a list in C order; infinity is "inf"."""
    high: Any = None
    n: int | Shape = 0
    nvec: list[Any] = []
    start: int | list[Any] = 0
    spaces: dict[str, SpaceForm] | list[SpaceForm] = []
    text: str = ""


class Head(msgspec.Struct):
    """Entries of dataset.json that are checked; others may stand beside them."""

    format: Literal["vecenv dataset"]
    version: Literal[3]
    job: dict[str, Any] | None = None
    versions: dict[str, Any] = {}
    observation_space: SpaceForm | None = None
    action_space: SpaceForm | None = None


as_json = msgspec.to_builtins
"""A struct as values of JSON."""
convert = msgspec.convert
"""The inverse, for a value and a struct. Raises ValueError, and RecursionError where it is nested too deeply."""


def parse(data: bytes, kind: Any = Any) -> Any:
    """The value of a JSON text in UTF-8, which must be of that kind. Raises ValueError.

    >>> parse(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def dump(value: Any) -> bytes:
    """One line of JSON, without its end. Raises ValueError for NaN and infinity, TypeError for other objects.

    >>> dump({"a": (1, 2.5)})
    b'{"a": [1, 2.5]}'
    """
    return json.dumps(as_json(value), allow_nan=False).encode("ascii")
