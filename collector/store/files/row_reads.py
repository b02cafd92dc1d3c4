"""Rows of large observations, read from their file: of mapped pages each row would be several faults."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from collector.store.errors import DatasetError

LARGE_ROW, _LARGEST = 1024, 2**28
"""Bytes of a row that is worth a system call of its own, and that one call surely reads with the row behind it."""
_ASK = getattr(mmap, "MADV_WILLNEED", None)


class MappedFile(mmap.mmap):
    """A file that is mapped for reading, and can be read by `fd` too, which is closed with the last view of it."""

    fd = -1
    path = Path()
    """For messages."""

    def __init__(self, fd: int, *_: Any, **__: Any) -> None:
        self.fd = os.dup(fd)
        self.address = address(np.frombuffer(self, np.uint8))

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class RowReads:
    """What a batch needs: all rows are asked for when they are added, and read, one after another, at the end.

    The disk has them all to do at once then, from one thread; of rows in the page cache the asking costs little.
    """

    def __init__(self) -> None:
        self.files = 0
        """Times that rows of a file were added since the last `read`; they keep it open."""
        self._reads: list[tuple[MappedFile, list[memoryview], int]] = []

    def add(
        self, file: MappedFile, leaf: np.ndarray, rows: np.ndarray, obs: memoryview, after: memoryview, into: np.ndarray
    ) -> None:
        """Rows of an array of the file, and those behind them, into the rows `into` of two arrays (`bytes_of`)."""
        self.files += 1
        size = row_bytes(leaf)
        places = address(leaf) - file.address + rows * size
        if _ASK is not None:
            for begin, place in zip((places // mmap.PAGESIZE * mmap.PAGESIZE).tolist(), places.tolist(), strict=True):
                file.madvise(_ASK, begin, place + 2 * size - begin)
        for place, to in zip(places.tolist(), (into * size).tolist(), strict=True):
            self._reads.append((file, [obs[to : to + size], after[to : to + size]], place))

    def read(self) -> None:
        """Raises `DatasetError` where the disk fails, or a file has become shorter."""
        for file, rows, place in self._reads:
            try:
                count = os.preadv(file.fd, rows, place)
            except OSError as error:
                raise DatasetError(f"{file.path} cannot be read: {error.strerror or error}") from error
            if count != 2 * len(rows[0]):
                raise DatasetError(f"{file.path} has become shorter while it was read; restore it, or collect again")
        self._reads.clear()
        self.files = 0


def is_large(leaf: np.ndarray) -> bool:
    """Whether the rows of an array are read so."""
    return LARGE_ROW <= row_bytes(leaf) <= _LARGEST


def row_bytes(leaf: np.ndarray) -> int:
    """Size of each row of an array that has some."""
    return leaf[:1].nbytes


def bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of an array whose rows lie one after another, to write to."""
    return array.reshape(-1).view(np.uint8).data


def address(array: np.ndarray) -> int:
    """Where its bytes begin in memory."""
    return int(array.__array_interface__["data"][0])
