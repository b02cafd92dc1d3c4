"""Writing a shard: arrays as a zip file that `np.load` reads; those of a plain shard begin at multiples of 64."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import numpy as np

ALIGNMENT = 64
# An extra field that readers skip. The number is that which Android's tools use for the same purpose.
_PADDING = 0xD935


def shard_bytes(arrays: Mapping[str, np.ndarray], *, compress: bool = False) -> io.BytesIO:
    """The file, in memory. The same arrays give the same bytes: no time is in them."""
    buffer = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, array in arrays.items():
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
            info = zipfile.ZipInfo(f"{name}.npy")  # of 1980, whenever it is written
            info.compress_type, info.external_attr = kind, 0o600 << 16
            info.file_size = header.tell() + array.nbytes
            if not compress:
                # Mapped arrays that are aligned are read faster. 30: the header of a member; 4: that of an extra field.
                begin = buffer.tell() + 30 + len(info.filename) + 4 + 20 * (info.file_size > zipfile.ZIP64_LIMIT)
                padding = -begin % ALIGNMENT
                info.extra = _PADDING.to_bytes(2, "little") + padding.to_bytes(2, "little") + bytes(padding)
            with archive.open(info, "w") as member:
                member.write(header.getvalue())
                if array.nbytes:
                    member.write(array.data.cast("B"))
    return buffer
