"""Read and write manifest.jsonl, which has one line per committed shard (see `schema`).

Bytes after the last line end belong to a line that is being written, or was when its writer was killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collector.store import safe_folder, schema
from collector.store.safe_folder import DatasetError, SafeFolder
from collector.store.schema import End, LayoutLine, Line, Note, ShardLine
from collector.store.shard_layout import EpisodeLayout

MANIFEST = "manifest.jsonl"
LONGEST_LINE = 2**27
BEST_COMPRESSION = 1032
"""Deflate makes nothing smaller than by this factor, so nothing true is declared with more."""


INDEX = np.dtype(
    [("number", "i8"), ("length", "i8"), ("returns", "f8"), ("shard", "i8"), ("position", "i8"), ("first", "i8")]
)
"""An entry of the index, which has one for each episode, known without opening a shard: its number, steps and return,
the index of its shard in the list of shards, its place among the episodes of it, and the row of its first step."""


@dataclass
class Manifest:
    """A manifest, line by line as it is read or written, and checked."""

    shards: list[ShardLine] = field(default_factory=list)
    """Their lines; numbers, lengths and returns of the episodes are in the index."""
    layout: EpisodeLayout | None = None
    """None as long as no shard is committed."""
    end: int | None = None
    """Of a complete data set: numbers below this count."""
    end_at: int = 0
    """So many bytes are before the line of the end."""
    failed: dict[str, int] = field(default_factory=dict)
    """Counts of failures, added up."""
    state: Any = None
    """The last one that the writer left."""
    good_bytes: int = 0
    """Size of the lines that are whole."""
    entries: list[np.ndarray] = field(default_factory=list)
    """Of the index, by shard."""
    fd: int = -1
    """The file, open for appending: it belongs to the writer."""
    unknown: str = ""
    """Not empty: the error after which it is not known what the file ends with."""

    @property
    def index(self) -> np.ndarray:
        """Its episodes, in the order of the lines: `INDEX` `(episodes,)`."""
        if len(self.entries) != 1:
            self.entries = [np.concatenate([np.zeros(0, INDEX), *self.entries])]
        return self.entries[0]

    def take(self, line: Line) -> None:
        """Add one line. Raises `DatasetError`."""
        if self.end is not None:
            raise DatasetError("it stands after the end")
        if isinstance(line, LayoutLine):
            if self.layout is not None:
                raise DatasetError("it is a second layout")
            self.layout = EpisodeLayout.of(line)
        elif isinstance(line, End):
            self.end, self.end_at = line.episodes, self.good_bytes
        elif isinstance(line, Note):
            if isinstance(line, ShardLine):
                self._take_shard(line)
            for name, count in line.failed.items():
                self.failed[name] = self.failed.get(name, 0) + count
            self.state = self.state if line.state is None else line.state

    def _take_shard(self, line: ShardLine) -> None:
        if self.layout is None:
            raise DatasetError("it is a shard before the layout")
        steps, episodes = line.steps, len(line.episodes)
        if not episodes == len(line.lengths) == len(line.returns):
            raise DatasetError(
                f"it has {episodes} episodes, {len(line.lengths)} lengths and {len(line.returns)} returns"
            )
        if max(line.lengths) > steps or sum(line.lengths) != steps:
            raise DatasetError(f"it has lengths that are not those of {steps} steps")
        entries = np.zeros(episodes, INDEX)
        entries["number"], entries["length"], entries["returns"] = line.episodes, line.lengths, line.returns
        entries["shard"], entries["position"] = len(self.shards), np.arange(episodes)
        entries["first"] = np.cumsum(entries["length"]) - entries["length"]
        if not np.isfinite(entries["returns"]).all():
            raise DatasetError("it has a return that is not finite")
        arrays = self.layout.arrays(steps, episodes)
        if line.files.keys() != {file_name(name, line.compressed) for name in arrays}:
            raise DatasetError(f"it has the files {str(sorted(line.files))[:200]}, and its layout {sorted(arrays)}")
        for name, (count, row) in arrays.items():
            size, _ = line.files[file_name(name, line.compressed)]
            if count * row.itemsize > size * (BEST_COMPRESSION if line.compressed else 1):
                raise DatasetError(f"it declares {steps:,} steps, more than a file {name} of {size:,} bytes can hold")
        self.entries.append(entries)
        self.shards.append(line.without_episodes())

    def problem(self) -> str:
        """A shard or an episode that is there twice, or ""."""
        if len({line.shard for line in self.shards}) < len(self.shards):
            return "it names a shard twice"
        numbers = np.sort(self.index["number"])
        if (twice := numbers[1:][numbers[1:] == numbers[:-1]]).size:
            return f"it has episode {twice[0]} twice"
        return f"it ends with {self.end} episodes, and has none" if self.layout is None and self.end else ""

    def cut_off(self) -> None:
        """Remove what follows the lines that have been read, before the first `append`."""
        if os.fstat(self.fd).st_size > self.good_bytes:
            safe_folder.truncate(self.fd, self.good_bytes)
        safe_folder.fsync(self.fd)

    def append(self, lines: Sequence[Line]) -> None:
        """Add these lines, on the disk, or none of them: after an OSError the file is as it was, or `unknown`."""
        data = b"".join(schema.dump(line) + b"\n" for line in lines)
        try:
            safe_folder.write(self.fd, data)
            safe_folder.fsync(self.fd)
        except OSError as error:
            # Whether the lines are on the disk is not known. If they cannot be removed, only one who reads the file
            # again can find out what is there.
            try:
                safe_folder.truncate(self.fd, self.good_bytes)
                safe_folder.fsync(self.fd)
            except OSError:
                self.unknown = str(error)
            raise
        for line in lines:
            self.take(line)
        self.good_bytes += len(data)


def file_name(array: str, compressed: bool) -> str:
    """The file of an array in the folder of a shard."""
    return f"{array}.npy.gz" if compressed else f"{array}.npy"


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read and check the manifest of a folder. Raises `DatasetError`."""
    found, where, number = Manifest(), str(Path(folder) / MANIFEST), 1
    try:
        for line, size in read_lines(folder):
            found.take(line)
            found.good_bytes += size
            number += 1
    except DatasetError as error:
        raise DatasetError(f"{where}, line {number}, cannot be read: {error}") from None
    if problem := found.problem():
        raise DatasetError(f"{where}: {problem}")
    return found


def read_lines(folder: str | os.PathLike[str]) -> Iterator[tuple[Line, int]]:
    """Each whole line of the manifest of a folder, and its size. Raises `DatasetError`."""
    try:
        with SafeFolder(folder) as opened:
            fd = opened.open(MANIFEST)
    except FileNotFoundError:
        return  # killed before its first line
    with os.fdopen(fd, "rb") as file:
        while line := file.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise DatasetError(f"it has more than {LONGEST_LINE:,} bytes")
            if not line.endswith(b"\n"):
                return
            try:
                found = schema.parse(line, Line)
            except ValueError as error:
                raise DatasetError(str(error)) from None
            yield found, len(line)
