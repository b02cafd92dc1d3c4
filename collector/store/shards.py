"""The shards of a data set that are open: plain ones mapped, compressed ones in memory, both up to a limit."""

from __future__ import annotations

import mmap
import resource
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collector.store.errors import DatasetError
from collector.store.files.row_reads import MappedFile
from collector.store.first_form import open_first_shard
from collector.store.head import FIRST_MANIFEST
from collector.store.layout import Layout
from collector.store.manifest import MANIFEST, Index, ShardRecord
from collector.store.packed import PackedEpisodes
from collector.store.shard import open_shard
from vecenv import nest

LARGEST_IN_MEMORY = 2**32
"""The most that a compressed shard may become in memory; a writer with the usual settings makes them of 64 MB."""
_DROP = getattr(mmap, "MADV_DONTNEED", None)


class OpenShard(NamedTuple):
    """The episodes of a shard, and what holds them."""

    episodes: PackedEpisodes
    mapping: MappedFile | None
    """Of a plain one; None: in memory."""
    nbytes: int


class Shards:
    """Opens the shards of a data set when they are needed, and checks each against the manifest the first time.

    Memory stays below `memory` bytes, and one shard: decompressed shards that were not used for the longest time are
    dropped, and pages of mapped ones are given back. Pickled, it takes along which shards have been checked.
    """

    def __init__(
        self,
        root: Path,
        records: list[ShardRecord],
        index: Index,
        layout: Layout | None,
        memory: int,
        structure: Any = None,
    ) -> None:
        self.root, self.records, self.layout, self.memory = root, records, layout, memory
        self.structure = structure
        """Of the first form: the tree of the observations in its manifest."""
        self._index = index
        self._bounds = np.cumsum([0, *(record.episodes for record in records)])
        self._checked: set[int] = set()
        self._open: OrderedDict[int, OpenShard] = OrderedDict()
        self._loaded = 0
        self._touched = 0
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = (
            4096 if soft == resource.RLIM_INFINITY else max(16, min(4096, soft // 3))
        )  # of two descriptors each

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": OrderedDict(), "_loaded": 0, "_touched": 0}

    @property
    def manifest(self) -> str:
        """Name of the file that lists the shards."""
        return MANIFEST if self.structure is None else FIRST_MANIFEST

    def compressed(self, which: int) -> bool:
        """Whether a shard is decompressed into memory."""
        return self.records[which].compressed

    def nbytes(self, which: int) -> int:
        """Size of its arrays in memory."""
        record = self.records[which]
        return 0 if self.layout is None else self.layout.nbytes(record.steps, record.episodes)

    def __getitem__(self, which: int) -> PackedEpisodes:
        return self.open(which)[0]

    def open(self, which: int) -> tuple[PackedEpisodes, MappedFile | None]:
        """The episodes of a shard, and the file that they are views of; None: they are in memory."""
        found = self._open.get(which)
        if found is None:
            found = self._read(which)
            self._open[which] = found
            self._loaded += 0 if found.mapping is not None else found.nbytes
            self._shrink(which)
        else:
            self._open.move_to_end(which)
        return found.episodes, found.mapping

    @property
    def full(self) -> bool:
        """Whether the next shard that is opened takes the place of another."""
        return len(self._open) >= self._most

    def check(self, which: int) -> None:
        """Read a shard and check all that is known of it, whether it has been checked before or not."""
        self._checked.discard(which)
        self._drop(which)
        self[which].check()
        returns, expected = self[which].returns(), self._of(which, self._index.returns)
        if not np.allclose(returns, expected, rtol=1e-9, atol=1e-9):
            raise DatasetError(
                f"{self.root / self.records[which].file} has other rewards than the returns in {self.manifest}"
            )
        self.forget_pages()

    def touch(self, nbytes: int) -> None:
        """Note that so many bytes of mapped arrays have been read, and give the pages back in time."""
        self._touched += nbytes
        if self._touched > self.memory:
            self.forget_pages()

    def forget_pages(self) -> None:
        """Give the pages of mapped shards back; the kernel keeps what it has room for."""
        self._touched = 0
        if _DROP is not None:
            for each in self._open.values():
                if each.mapping is not None:
                    each.mapping.madvise(_DROP)

    def _of(self, which: int, column: np.ndarray) -> np.ndarray:
        return column[self._bounds[which] : self._bounds[which + 1]]

    def _read(self, which: int) -> OpenShard:
        record, layout = self.records[which], self.layout
        if layout is None:
            raise DatasetError(f"{self.root} has no shards")
        size = layout.nbytes(record.steps, record.episodes)
        if record.compressed and size > LARGEST_IN_MEMORY:
            raise DatasetError(
                f"{self.root / record.file} declares {size:,} bytes; {LARGEST_IN_MEMORY:,} are the most for a shard "
                "that is compressed"
            )
        known = which in self._checked
        if self.structure is None:
            expected = layout.shapes(record.steps, record.episodes)
            arrays, mapping = open_shard(self.root, record, expected, known=known, manifest=MANIFEST)
        else:
            arrays, mapping = open_first_shard(self.root, record, layout, self.structure, known)
            numbers = self._of(which, self._index.number)
            arrays |= {"episode": numbers, "seed": np.full(len(numbers), -1), "env_id": arrays["env_id"]}
        episodes = self._packed(arrays, layout)
        if not known:
            self._check_meaning(which, arrays, episodes)
            self._checked.add(which)
            if _DROP is not None:
                mapping.madvise(_DROP)
        return OpenShard(episodes, None if record.compressed else mapping, size)

    def _packed(self, arrays: dict[str, np.ndarray], layout: Layout) -> PackedEpisodes:
        return PackedEpisodes(
            nest.map(arrays.__getitem__, layout.obs),
            nest.map(arrays.__getitem__, layout.action),
            **{name: arrays[name] for name in ("reward", "terminated", "truncated", "episode", "seed", "env_id")},
            lengths=np.diff(arrays["offsets"]),
        )

    def _check_meaning(self, which: int, arrays: dict[str, np.ndarray], episodes: PackedEpisodes) -> None:
        """Raise `DatasetError` where the arrays are not those of the episodes in the manifest."""
        path = self.root / self.records[which].file
        expected = np.concatenate([[0], np.cumsum(self._of(which, self._index.length))])
        if not np.array_equal(arrays["offsets"], expected):
            raise DatasetError(f"{path} has offsets that are not those of the lengths in {self.manifest}")
        if not np.array_equal(arrays["episode"], self._of(which, self._index.number)):
            raise DatasetError(f"{path} has other episodes than {self.manifest} says")
        if episodes.seed.min() < -1 or episodes.env_id.min() < 0:
            raise DatasetError(f"{path} has a seed or an env below zero")
        if self.structure is None and not np.isfinite(episodes.reward).all():
            raise DatasetError(f"{path} has a reward that is not finite")
        if not np.array_equal(np.flatnonzero(episodes.terminated | episodes.truncated), expected[1:] - 1):
            raise DatasetError(f"{path} has episodes that are not over in their last step, or earlier")

    def _shrink(self, keep: int) -> None:
        for which in list(self._open):
            if len(self._open) <= self._most and self._loaded <= self.memory:
                return
            if which != keep:
                self._drop(which)

    def _drop(self, which: int) -> None:
        found = self._open.pop(which, None)
        if found is not None and found.mapping is None:
            self._loaded -= found.nbytes
