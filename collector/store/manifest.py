"""`Manifest`: content of manifest.jsonl, which lists a data set's shards. collector/store/schema.py has an example.

Readers ignore a last line without line end, because its write was interrupted.
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
"""Maximum compression ratio of deflate. Readers refuse a higher declared ratio."""


INDEX = np.dtype(
    [("number", "i8"), ("length", "i8"), ("returns", "f8"), ("shard", "i8"), ("position", "i8"), ("first", "i8")]
)
"""Entry per episode. `position` is the index of the episode in the shard, and `first` the row of its first step."""


@dataclass
class Manifest:
    shards: list[ShardLine] = field(default_factory=list)
    """Lines of shards without their lists of episodes, which are in `index`."""
    layout: EpisodeLayout | None = None
    end: int | None = None
    """Readers ignore episodes with numbers of `end` or more. None if the data set is incomplete."""
    end_at: int = 0
    """Bytes before the line "end". Reopening the data set truncates the file there."""
    failed: dict[str, int] = field(default_factory=dict)
    state: Any = None
    good_bytes: int = 0
    """Bytes of complete lines."""
    entries: list[np.ndarray] = field(default_factory=list)
    fd: int = -1
    unknown: str = ""
    """Error of an `append` that could not be undone, so that the file's content is unknown; or ""."""

    @property
    def index(self) -> np.ndarray:
        if len(self.entries) != 1:
            self.entries = [np.concatenate([np.zeros(0, INDEX), *self.entries])]
        return self.entries[0]

    def add(self, line: Line) -> None:
        if self.end is not None:
            raise DatasetError('it follows the line "end", which must be the last')
        if isinstance(line, LayoutLine):
            if self.layout is not None:
                raise DatasetError('it is a second line "layout", but a manifest has only one')
            self.layout = EpisodeLayout.of(line)
        elif isinstance(line, End):
            self.end, self.end_at = line.episodes, self.good_bytes
        elif isinstance(line, Note):
            if isinstance(line, ShardLine):
                self._add_shard(line)
            for name, count in line.failed.items():
                self.failed[name] = self.failed.get(name, 0) + count
            self.state = self.state if line.state is None else line.state

    def _add_shard(self, line: ShardLine) -> None:
        if self.layout is None:
            raise DatasetError('it is a line "shard" before the line "layout"')
        steps, episodes = line.steps, len(line.episodes)
        if not episodes == len(line.lengths) == len(line.returns):
            raise DatasetError(
                f"it has {episodes} episodes, {len(line.lengths)} lengths and {len(line.returns)} returns"
            )
        if max(line.lengths) > steps or sum(line.lengths) != steps:
            raise DatasetError(f"its lengths do not add up to {steps} steps")
        entries = np.zeros(episodes, INDEX)
        entries["number"], entries["length"], entries["returns"] = line.episodes, line.lengths, line.returns
        entries["shard"], entries["position"] = len(self.shards), np.arange(episodes)
        entries["first"] = np.cumsum(entries["length"]) - entries["length"]
        if not np.isfinite(entries["returns"]).all():
            raise DatasetError("it has a return that is not finite")
        if line.text_bytes.keys() != {*self.layout.texts}:
            raise DatasetError(f"it has the texts {str([*line.text_bytes])[:200]}, expected {self.layout.texts}")
        arrays = self.layout.files(steps, episodes, line.text_bytes)
        if line.files.keys() != {file_name(name, line.compressed) for name in arrays}:
            raise DatasetError(
                f"it has the files {str(sorted(line.files))[:200]}, expected one for each of {sorted(arrays)}"
            )
        for name, (count, row) in arrays.items():
            size, _ = line.files[file_name(name, line.compressed)]
            if count * row.itemsize > size * (BEST_COMPRESSION if line.compressed else 1):
                raise DatasetError(
                    f"it declares {steps:,} steps and {count * row.itemsize:,} bytes of {name}, more than a file "
                    f"{name} of {size:,} bytes can hold"
                )
        self.entries.append(entries)
        self.shards.append(line.without_episodes())

    def problem(self) -> str:
        """Describe an inconsistency between lines, or return an empty text."""
        if len({line.shard for line in self.shards}) < len(self.shards):
            return "it names a shard twice"
        numbers = np.sort(self.index["number"])
        if (twice := numbers[1:][numbers[1:] == numbers[:-1]]).size:
            return f"it has episode {twice[0]} twice"
        return f"it ends with {self.end} episodes, and has none" if self.layout is None and self.end else ""

    def cut_off(self) -> None:
        if os.fstat(self.fd).st_size > self.good_bytes:
            safe_folder.truncate(self.fd, self.good_bytes)
        safe_folder.fsync(self.fd)

    def append(self, lines: Sequence[Line]) -> None:
        """Append lines, and flush. After an OSError, the file is unchanged, or `unknown` is set."""
        data = b"".join(schema.dump(line) + b"\n" for line in lines)
        try:
            safe_folder.write(self.fd, data)
            safe_folder.fsync(self.fd)
        except OSError as error:
            # The lines may be on the disk, so remove them. If the removal fails too, a new writer must read the file.
            try:
                safe_folder.truncate(self.fd, self.good_bytes)
                safe_folder.fsync(self.fd)
            except OSError:
                self.unknown = str(error)
            raise
        for line in lines:
            self.add(line)
        self.good_bytes += len(data)


def file_name(array: str, compressed: bool) -> str:
    return f"{array}.npy.gz" if compressed else f"{array}.npy"


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    found, where, number = Manifest(), str(Path(folder) / MANIFEST), 1
    try:
        for line, size in read_lines(folder):
            found.add(line)
            found.good_bytes += size
            number += 1
    except DatasetError as error:
        raise DatasetError(f"{where}, line {number}, cannot be read: {error}") from None
    if problem := found.problem():
        raise DatasetError(f"{where}: {problem}")
    return found


def read_lines(folder: str | os.PathLike[str]) -> Iterator[tuple[Line, int]]:
    try:
        with SafeFolder(folder) as opened:
            fd = opened.open(MANIFEST)
    except FileNotFoundError:
        return
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
