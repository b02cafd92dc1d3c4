"""manifest.jsonl: one line for each committed shard, which says all that is known of it without opening it.

    {"layout": {"obs": "obs", "action": "action", "arrays": {"obs": ["<f4", [4]], ...}}}
    {"file": "shards/w000/000000.npz", "bytes": 23456, "sha256": "...", "compressed": false, "steps": 5000,
     "episodes": [0, 1, 3, ...], "lengths": [...], "returns": [...], "failed": {"env": 1}}
    {"end": "complete", "episodes": 400}

The layout comes before the first shard, the end last: of a data set that is complete, the episodes below that number
count. "failed" and "state" (what the writer wants to find again) are optional, and may stand in a line without a
shard. Bytes after the last line end are those of a line that is being written, or was when its writer was killed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collector.store.errors import DatasetError
from collector.store.files import strict_json
from collector.store.files.safe_folder import SafeFolder
from collector.store.layout import Layout
from collector.store.packed import PackedEpisodes

MANIFEST = "manifest.jsonl"
SHARDS = "shards"
SHARD_NAME = re.compile(r"shards/w\d{3,9}/\d{6,12}\.npz", re.ASCII)
LONGEST_LINE = 2**27
LARGEST = 2**53
"""Numbers of episodes and counts are below it: what reads JSON with floats gets them exactly."""
BEST_COMPRESSION = 1032
"""Deflate makes nothing smaller than by this factor, so nothing true is declared with more."""
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SHARD_KEYS = {"file", "bytes", "sha256", "compressed", "steps", "episodes", "lengths", "returns"}
_NOTES = {"failed", "state"}


@dataclass(frozen=True)
class ShardRecord:
    """One shard, as the manifest has it; the numbers of its episodes are in the `Index`."""

    file: str
    bytes: int
    sha256: str
    compressed: bool
    steps: int
    episodes: int


@dataclass
class Index:
    """What is known of each episode without opening a shard: an entry of each array an episode."""

    number: np.ndarray
    length: np.ndarray
    returns: np.ndarray
    shard: np.ndarray
    """Index of its shard in the list of shards."""
    position: np.ndarray
    """Its place among the episodes of the shard."""
    first: np.ndarray
    """The row of its first step in the shard."""

    def __len__(self) -> int:
        return len(self.number)

    def take(self, which: Any) -> Index:
        """Some of them."""
        columns = (self.number, self.length, self.returns, self.shard, self.position, self.first)
        return Index(*(column[which] for column in columns))

    def by_number(self) -> Index:
        """In the order of their numbers."""
        if (np.diff(self.number) > 0).all():
            return self
        return self.take(np.argsort(self.number, kind="stable"))


@dataclass
class Manifest:
    """A manifest that has been read and checked."""

    shards: list[ShardRecord]
    index: Index
    """In the order of the lines."""
    layout: Layout | None = None
    """None as long as no shard is committed."""
    end: int | None = None
    """Of a complete data set: numbers below this count."""
    end_at: int = 0
    """Where the line of the end begins: so many bytes are before it."""
    failed: dict[str, int] = field(default_factory=dict)
    """Counts of failures, added up."""
    state: Any = None
    """The last one that the writer left."""
    good_bytes: int = 0
    """Size of the lines that are whole."""


def shard_line(file: str, data: Any, compressed: bool, episodes: PackedEpisodes) -> dict[str, Any]:
    """The line of the shard `file`, such as "shards/w000/000000.npz", with this content, a buffer."""
    return {
        "file": file,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "compressed": compressed,
        "steps": episodes.steps,
        "episodes": episodes.episode.tolist(),
        "lengths": episodes.lengths.tolist(),
        "returns": episodes.returns().tolist(),
    }


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read and check the manifest of a folder. Raises `DatasetError`."""
    root = Path(folder)
    try:
        with SafeFolder(folder) as opened:
            fd = opened.open(MANIFEST)
    except FileNotFoundError:
        return Reading().manifest()  # killed before its first line
    reading, number = Reading(), 0
    with os.fdopen(fd, "rb") as file:
        for number, line in enumerate(_lines(file, root), 1):
            try:
                reading.take(strict_json.parse(line))
            except (DatasetError, ValueError, OverflowError) as error:
                raise DatasetError(f"{root / MANIFEST}, line {number}, cannot be read: {error}") from None
            reading.good_bytes += len(line)
    try:
        return reading.manifest()
    except DatasetError as error:
        raise DatasetError(f"{root / MANIFEST}: {error}") from None


def _lines(file: Any, root: Path) -> Iterator[bytes]:
    while True:
        line = file.readline(LONGEST_LINE + 1)
        if len(line) > LONGEST_LINE:
            raise DatasetError(f"{root / MANIFEST} has a line of more than {LONGEST_LINE:,} bytes")
        if not line.endswith(b"\n"):
            return
        yield line


class Reading:
    """Takes lines of a manifest one by one."""

    def __init__(self) -> None:
        self.shards: list[ShardRecord] = []
        self.layout: Layout | None = None
        self.end: int | None = None
        self.end_at = 0
        self.failed: dict[str, int] = {}
        self.state: Any = None
        self.good_bytes = 0
        self._columns: list[tuple[np.ndarray, ...]] = []

    def take(self, line: Any) -> None:
        """Check one line and take what it has. Raises `DatasetError` or ValueError."""
        if type(line) is not dict:
            raise DatasetError("it is no object")
        if self.end is not None:
            raise DatasetError("it stands after the end")
        if line.keys() == {"layout"}:
            if self.layout is not None:
                raise DatasetError("it is a second layout")
            self.layout = Layout.from_json(line["layout"])
        elif line.keys() == {"end", "episodes"}:
            if line["end"] != "complete":
                raise DatasetError(f"its end is {line['end']!r}, expected 'complete'")
            self.end, self.end_at = _count(line, "episodes"), self.good_bytes
        elif line.keys() - _NOTES == _SHARD_KEYS:
            self._take_shard(line)
        elif not line or line.keys() - _NOTES:
            raise DatasetError(f"it has the keys {str(sorted(line))[:200]}")
        if "failed" in line:
            self._take_failed(line["failed"])
        self.state = line.get("state", self.state)

    def _take_shard(self, line: dict[str, Any]) -> None:
        if self.layout is None:
            raise DatasetError("it is a shard before the layout")
        name, digest = line["file"], line["sha256"]
        if type(name) is not str or not SHARD_NAME.fullmatch(name):
            raise DatasetError(f"it names the file {str(name)[:100]!r}, which is no shard of this folder")
        if type(digest) is not str or not _SHA256.fullmatch(digest):
            raise DatasetError(f"its sha256 is {str(digest)[:100]!r}")
        size, steps = _count(line, "bytes"), _count(line, "steps")
        numbers, lengths = _integers(line, "episodes"), _integers(line, "lengths")
        returns = _floats(line, "returns")
        if not len(numbers) == len(lengths) == len(returns) or not len(numbers):
            raise DatasetError(f"it has {len(numbers)} episodes, {len(lengths)} lengths and {len(returns)} returns")
        if numbers.min() < 0 or lengths.min() < 1 or lengths.max() > steps or int(lengths.sum()) != steps:
            raise DatasetError(f"it has episodes with negative numbers, or lengths that are not those of {steps} steps")
        if type(line["compressed"]) is not bool:
            raise DatasetError(f"its compressed is {str(line['compressed'])[:80]}")
        if self.layout.nbytes(steps, len(numbers)) > size * (BEST_COMPRESSION if line["compressed"] else 1):
            raise DatasetError(f"it declares {steps:,} steps, more than a file of {size:,} bytes can hold")
        if not np.isfinite(returns).all():
            raise DatasetError("it has a return that is not finite")
        many = np.arange(len(numbers))
        self._columns.append(
            (numbers, lengths, returns, np.full(len(numbers), len(self.shards)), many, np.cumsum(lengths) - lengths)
        )
        self.shards.append(ShardRecord(name, size, digest, line["compressed"], steps, len(numbers)))

    def _take_failed(self, counts: Any) -> None:
        if type(counts) is not dict or not all(type(each) is int and 0 <= each < LARGEST for each in counts.values()):
            raise DatasetError(f"its failures are {str(counts)[:100]}, expected counts by name")
        for name, count in counts.items():
            self.failed[name] = self.failed.get(name, 0) + count

    def manifest(self) -> Manifest:
        """All lines together. Raises `DatasetError` where a file or an episode is there twice."""
        names = {shard.file for shard in self.shards}
        if len(names) < len(self.shards):
            raise DatasetError("it names a shard twice")
        kinds = (np.int64, np.int64, np.float64, np.int64, np.int64, np.int64)
        if self._columns:
            columns = [np.concatenate(parts) for parts in zip(*self._columns, strict=True)]
        else:
            columns = [np.zeros(0, kind) for kind in kinds]
        self._columns = []
        index = Index(*columns)
        numbers = np.sort(index.number)
        if (numbers[1:] == numbers[:-1]).any():
            twice = int(numbers[1:][numbers[1:] == numbers[:-1]][0])
            raise DatasetError(f"it has episode {twice} twice")
        if self.layout is None and self.end:
            raise DatasetError(f"it ends with {self.end} episodes, and has none")
        return Manifest(
            self.shards, index, self.layout, self.end, self.end_at, self.failed, self.state, self.good_bytes
        )


def _count(line: dict[str, Any], key: str) -> int:
    value = line[key]
    if type(value) is not int or not 0 <= value < LARGEST:
        raise DatasetError(f"its {key} is {str(value)[:80]}, expected a count")
    return value


def _integers(line: dict[str, Any], key: str) -> np.ndarray:
    values = line[key]
    if type(values) is not list or not {*map(type, values)} <= {int}:
        raise DatasetError(f"its {key} is {str(values)[:80]}, expected a list of integers")
    found = np.array(values, np.int64)
    if len(found) and found.max() >= LARGEST:
        raise DatasetError(f"its {key} has {found.max()}")
    return found


def _floats(line: dict[str, Any], key: str) -> np.ndarray:
    values = line[key]
    if type(values) is not list or not {*map(type, values)} <= {int, float}:
        raise DatasetError(f"its {key} is {str(values)[:80]}, expected a list of numbers")
    return np.array(values, np.float64)
