"""Reading a shard: a zip file of arrays whose every size is known before anything is allocated.

`np.load` would read these files too. Here the arrays of a plain shard are mapped at their place in the file, and
nothing in the file is believed: names, sizes, places, dtypes and shapes must be those that the manifest implies.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from collector.store.errors import DatasetError
from collector.store.files.row_reads import MappedFile
from collector.store.files.safe_folder import SafeFolder
from collector.store.layout import DTYPES, Column
from collector.store.manifest import ShardRecord

LONGEST_HEADER = 4096
_LOCAL = struct.Struct("<4s5H3L2H")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CHUNK = 2**20


class Member:
    """One array in a zip file: where its bytes are, and whether they are compressed."""

    def __init__(self, info: zipfile.ZipInfo, start: int) -> None:
        self.start, self.packed, self.size, self.crc = start, info.compress_size, info.file_size, info.CRC
        self.compressed = info.compress_type == zipfile.ZIP_DEFLATED

    def content(self, file: Any, known: bool) -> Any:
        """Its bytes: a view of the file, or as much as it declares of what is compressed there.

        The checksum is that of the zip file, and not computed where the content is `known`."""
        data = memoryview(file)[self.start : self.start + self.packed]
        if self.compressed:
            stream = zlib.decompressobj(-15)
            data = memoryview(stream.decompress(data, self.size + 1))
        if len(data) != self.size or not (known or zlib.crc32(data) == self.crc):
            raise DatasetError("an array in it is damaged")
        return data


def open_shard(
    root: Path, record: ShardRecord, expected: Mapping[str, Column] | None, *, known: bool = False, manifest: str = ""
) -> tuple[dict[str, np.ndarray], MappedFile]:
    """The arrays of a shard, and the mapping that those of a plain one are views of.

    Its size and hash must be those of the `record` (the hash is not computed where it is `known`), its arrays those
    `expected`; None: a shard of the first form, any plain arrays. Raises `DatasetError`.
    """
    path = root / record.file
    try:
        with SafeFolder(root) as folder:
            fd = folder.open(record.file)
    except FileNotFoundError:
        raise _mismatch(path, manifest) from None
    with os.fdopen(fd, "rb") as file:
        if os.fstat(fd).st_size != record.bytes or not record.bytes:
            raise _mismatch(path, manifest)
        if not known and sha256_of(file) != record.sha256:
            raise _mismatch(path, manifest)
        mapping = MappedFile(fd, 0, access=mmap.ACCESS_READ)
        mapping.path = path
        try:
            members = directory(file, record.bytes, None if expected is None else len(expected))
            names = members.keys() if expected is None else expected.keys()
            if members.keys() != names:
                raise DatasetError(f"it has the arrays {sorted(members)[:20]}, expected {sorted(names)}")
            if any(member.compressed is not record.compressed for member in members.values()):
                raise DatasetError("its arrays are compressed, or not, otherwise than the manifest says")
            arrays = {
                name: _array(members[name], mapping, None if expected is None else expected[name], known)
                for name in names
            }
        except DatasetError as error:
            raise DatasetError(f"{path} is not a shard of this data set: {error}") from None
        except Exception as error:  # of zipfile, zlib and numpy: what is wrong with the file
            reason = f"{type(error).__name__}: {error}"
            raise DatasetError(f"{path} is not a shard of this data set: {reason}") from None
    return arrays, mapping


def _mismatch(path: Path, manifest: str) -> DatasetError:
    return DatasetError(f"{path} is missing or does not match {manifest}; restore it, or collect again")


def sha256_of(file: Any) -> str:
    """The hash of a whole file."""
    digest, buffer = hashlib.sha256(), bytearray(_CHUNK)
    file.seek(0)
    while count := file.readinto(buffer):
        digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()


def directory(file: Any, size: int, count: int | None) -> dict[str, Member]:
    """The arrays in a zip file, by name without ".npy": plain or deflated, each of its own bytes of the file."""
    room = (64 if count is None else count) * 400
    if _directory_bytes(file, size) > room:
        raise DatasetError("its directory is larger than that of a shard")
    members, taken = dict[str, Member](), list[tuple[int, int]]()
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in members or name == info.filename:
                raise DatasetError(f"it has {info.filename[:80]!r} twice, or as something else than an array")
            if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DatasetError(f"{name[:80]!r} in it is encrypted, or compressed in another way than deflate")
            if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
                raise DatasetError(f"{name[:80]!r} in it has two sizes")
            start = _data_start(file, info)
            members[name] = Member(info, start)
            taken.append((info.header_offset, start + info.compress_size))
        end = archive.start_dir
    taken.sort()
    borders = [0, *(stop for _, stop in taken)]
    starts = [*(start for start, _ in taken), end]
    if any(start < stop for start, stop in zip(starts, borders, strict=True)) or end > size:
        raise DatasetError("arrays in it overlap, or reach beyond the file")
    return members


def _directory_bytes(file: Any, size: int) -> int:
    """Size of the directory of a zip file, from its last record; zipfile would read all of it."""
    if size < _END.size:
        raise DatasetError("it is too short for a zip file")
    file.seek(size - _END.size)
    magic, *_, length, _, comment = _END.unpack(file.read(_END.size))
    if magic != b"PK\x05\x06" or comment:
        raise DatasetError("it does not end as a zip file without a comment")
    locator = size - _END.size - 20
    file.seek(max(0, locator))
    if locator >= _END64.size and file.read(4) == b"PK\x06\x07":
        file.seek(locator - _END64.size)
        return int(_END64.unpack(file.read(_END64.size))[8])
    return int(length)


def _data_start(file: Any, info: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin, from the header before them."""
    file.seek(info.header_offset)
    magic, *_, name_bytes, extra_bytes = _LOCAL.unpack(file.read(_LOCAL.size))
    if magic != b"PK\x03\x04" or file.read(name_bytes) != info.filename.encode():
        raise DatasetError(f"{info.filename[:80]!r} is not where the directory says")
    return int(info.header_offset + _LOCAL.size + name_bytes + extra_bytes)


def _array(member: Member, file: Any, expected: Column | None, known: bool) -> np.ndarray:
    size = member.size
    if expected is not None and not expected.row_bytes < size <= expected.row_bytes + LONGEST_HEADER:
        raise DatasetError(f"an array in it has {size:,} bytes, expected {expected.row_bytes:,} and a header")
    data = member.content(file, known)
    column, start = _header(bytes(data[:LONGEST_HEADER]))
    if expected is not None and column != expected:
        raise DatasetError(f"an array in it is {_text(column)}, expected {_text(expected)}")
    if column.row_bytes != size - start:
        raise DatasetError(f"an array in it has {size - start:,} bytes, and {_text(column)} has {column.row_bytes:,}")
    count = column.row_bytes // column.dtype.itemsize
    array = np.frombuffer(data, column.dtype, count, start) if count else np.zeros(0, column.dtype)
    if not known and column.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        raise DatasetError("an array of bool in it has other bytes than 0 and 1")
    return array.reshape(column.shape)


def _header(data: bytes) -> tuple[Column, int]:
    """Dtype and shape of a .npy file, and where its numbers begin."""
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise DatasetError("an array in it is not in version 1.0 of the format of numpy")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=LONGEST_HEADER)
    sizes = tuple(shape)
    if fortran and len(sizes) > 1:
        raise DatasetError("an array in it is in Fortran order")
    if dtype.str not in DTYPES or dtype.names or not all(type(size) is int and 0 <= size < 2**48 for size in sizes):
        raise DatasetError(f"an array in it is {dtype} of the shape {str(sizes)[:80]}; only numbers can be read")
    return Column(dtype, sizes), file.tell()


def _text(column: Column) -> str:
    return f"{column.dtype} {column.shape}"
