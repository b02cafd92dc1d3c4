"""Write and read a shard: a folder with the arrays of some episodes, in a .npy or .npy.gz file per array."""

from __future__ import annotations

import gzip
import hashlib
import io
import mmap
import os
import resource
import threading
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collector.episodes.episode import EpisodeBatch
from collector.store.manifest import MANIFEST, Manifest, file_name
from collector.store.safe_folder import PARTIAL, DatasetError, SafeFolder
from collector.store.schema import ShardLine
from collector.store.shard_layout import batch_of, check_whole
from collector.store.texts import TEXT_OBJECT_BYTES
from vecenv.portability import UNTRACKED

LARGEST_INFLATED = 2**32
"""Maximum bytes of a compressed shard before compression. Larger shards are not compressed."""
LONGEST_HEADER = 4096
SMALL = 2**17
"""Files of up to this size are read instead of memory-mapped, because a mapping may keep a file descriptor open."""
_header_lock = threading.Lock()
"""Lock for numpy's header parser: Python before 3.11.8 and 3.12.2 may raise SystemError if two threads use `ast`."""


def _renew_header_lock() -> None:
    """Replace the lock in a forked process, because another thread may have held it."""
    global _header_lock
    _header_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_header_lock)


def write_shard(
    folder: SafeFolder, name: str, columns: Mapping[str, Sequence[np.ndarray]], compress: bool
) -> tuple[dict[str, tuple[int, str]], bool]:
    """Write a shard's files under a temporary name, flush them, and rename the folder.

    `columns` has each array in consecutive parts. Returns size and hash of each file, and whether the files are
    compressed. Equal arrays give equal bytes.
    """
    files, size = {}, sum(part.nbytes for parts in columns.values() for part in parts)
    compress = compress and size <= LARGEST_INFLATED
    with folder.inside(name + PARTIAL, make=True) as shard:
        for array_name, parts in columns.items():
            data: list[Any] = [_npy_header(parts), *(part.reshape(-1).view(np.uint8) for part in parts)]
            if compress:
                data = [gzip.compress(b"".join(data), 6, mtime=0)]
            sha256 = hashlib.sha256()
            for each in data:
                sha256.update(each)
            shard.create(file_name(array_name, compress), data)
            files[file_name(array_name, compress)] = sum(map(len, data)), sha256.hexdigest()
        shard.sync()
    folder.rename(name + PARTIAL, name)
    return files, compress


def _npy_header(parts: Sequence[np.ndarray]) -> bytes:
    file, shape = io.BytesIO(), (sum(map(len, parts)), *parts[0].shape[1:])
    descr = np.lib.format.dtype_to_descr(parts[0].dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def read_array(folder: SafeFolder, record: ShardLine, name: str, count: int, row: np.dtype, known: bool) -> np.ndarray:
    """Return an array of the shape `(count, *row.shape)` and the dtype `row.base`.

    The array is a view of the file or of the decompressed content. `known` skips the checks of hash and bool values,
    which an earlier call made.

    Raises FileNotFoundError if the file is missing, or if its size or hash differs from the manifest. Raises
    `DatasetError` if the file holds a different dtype or shape, or a bool that is neither 0 nor 1.
    """
    size, sha256 = record.files[file_name(name, record.compressed)]
    fd, nbytes = folder.open(file_name(name, record.compressed)), count * row.itemsize
    with os.fdopen(fd, "rb") as file:
        if os.fstat(fd).st_size != size or not size:
            raise FileNotFoundError
        data: Any = file.read() if size <= SMALL else mmap.mmap(fd, 0, access=mmap.ACCESS_READ, **UNTRACKED)
    if not known and hashlib.sha256(data).hexdigest() != sha256:
        raise FileNotFoundError
    if record.compressed:
        stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        data = stream.decompress(data, nbytes + LONGEST_HEADER)
        if not stream.eof:
            raise DatasetError(f"{name} is damaged, or larger than the layout in the manifest says")
    header = io.BytesIO(memoryview(data)[:LONGEST_HEADER])
    if np.lib.format.read_magic(header) != (1, 0):
        raise DatasetError(f"{name} is not in version 1.0 of numpy's .npy format")
    with _header_lock:
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(header, max_header_size=LONGEST_HEADER)
    if (dtype, shape) != (row.base, (count, *row.shape)) or (fortran and len(shape) > 1):
        raise DatasetError(f"{name} is {dtype} {str(shape)[:80]}, expected {row.base} {(count, *row.shape)}")
    if len(data) != header.tell() + nbytes:
        raise DatasetError(f"{name} has {len(data):,} bytes, expected {header.tell() + nbytes:,}")
    array: np.ndarray = np.ndarray(shape, dtype, data, header.tell())
    if not known and dtype == np.bool_ and (array.view(np.uint8) > 1).any():
        raise DatasetError(f"{name} is an array of bool, but has bytes other than 0 and 1")
    return array


class Shards:
    """Shards of a data set by index. The first read of a shard checks it.

    The least recently used shards are closed if the open shards exceed `memory` bytes, or need too many file
    descriptors.
    """

    def __init__(self, root: Path, manifest: Manifest, memory: int) -> None:
        self.root, self.memory = root, memory
        self.records, self.layout, self._index = manifest.shards, manifest.layout, manifest.index
        self._bounds = np.searchsorted(self._index["shard"], np.arange(len(self.records) + 1))
        self._checked: set[int] = set()
        self._open: dict[int, EpisodeBatch] = {}
        """Open shards by index, ordered by their last use."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        descriptors = 8192 if soft == resource.RLIM_INFINITY else max(64, min(8192, soft // 2))
        self._most_open = max(1, descriptors // (1 if self.layout is None else len(self.layout.arrays(0, 0))))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}}

    def nbytes(self, which: int) -> int:
        """Return the bytes of the shard's arrays in memory, with the objects that hold texts."""
        assert self.layout is not None, "a manifest with shards has a layout"
        record, episodes = self.records[which], len(self._entries(which))
        objects = TEXT_OBJECT_BYTES * len(record.text_bytes) * (record.steps + episodes)
        return self.layout.nbytes(record.steps, episodes) + sum(record.text_bytes.values()) + objects

    def _entries(self, which: int) -> np.ndarray:
        return self._index[self._bounds[which] : self._bounds[which + 1]]

    def __getitem__(self, which: int) -> EpisodeBatch:
        # Several threads may read, so each access to the dict is a single call.
        found = self._open.pop(which, None)
        if found is None:
            found, opened = self._read(which), list(self._open)
            while opened and (len(opened) >= self._most_open or sum(map(self.nbytes, [which, *opened])) > self.memory):
                self._open.pop(opened.pop(0), None)
        self._open[which] = found
        return found

    def check(self, which: int) -> None:
        """Check a shard again, and its rewards against the manifest. Raises `DatasetError`."""
        self._checked.discard(which)
        self._open.pop(which, None)
        if not np.allclose(self[which].total_rewards, self._entries(which)["returns"], rtol=1e-9, atol=1e-9):
            raise DatasetError(
                f"the rewards in {self.root / self.records[which].shard} do not add up to the returns in {MANIFEST}; "
                "restore the shard, or collect again"
            )

    def _read(self, which: int) -> EpisodeBatch:
        record, entries, known = self.records[which], self._entries(which), which in self._checked
        path, layout = self.root / record.shard, self.layout
        assert layout is not None, "a manifest with shards has a layout"
        expected = layout.files(record.steps, len(entries), record.text_bytes)
        nbytes = sum(count * row.itemsize for count, row in expected.values())
        if record.compressed and nbytes > LARGEST_INFLATED:
            raise DatasetError(
                f"{path} decompresses to {nbytes:,} bytes according to {MANIFEST}, but a compressed shard has at most "
                f"{LARGEST_INFLATED:,} bytes before compression"
            )
        try:
            with SafeFolder(self.root) as root, root.inside(record.shard) as folder:
                arrays = {name: read_array(folder, record, name, *each, known) for name, each in expected.items()}
            episodes = batch_of(layout, arrays)
            if not known:
                if not np.array_equal(arrays["offsets"], np.append(entries["first"], record.steps)):
                    raise DatasetError(f"its offsets do not match the lengths in {MANIFEST}")
                if not np.array_equal(episodes.episode, entries["number"]):
                    raise DatasetError(f"its episodes do not match {MANIFEST}")
                check_whole(episodes, layout)
        except FileNotFoundError:
            raise mismatch(path) from None
        except Exception as error:  # numpy and zlib raise many types for a damaged file
            reason = error if isinstance(error, DatasetError) else f"{type(error).__name__}: {error}"
            raise DatasetError(f"{path} is not a shard of this data set: {reason}") from None
        self._checked.add(which)
        return episodes


def mismatch(path: Path) -> DatasetError:
    return DatasetError(f"{path} is missing or does not match {MANIFEST}; restore it, or collect again")
