"""A file of lines of JSON that grows by whole lines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from collector.store.files import strict_json, system_calls


class LineFile:
    """Adds lines to a file that exists, and whose last line is whole: `fd` is its descriptor, open for appending."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = os.fstat(fd).st_size
        self.unknown = ""
        """Not empty: the error after which it is not known what the file ends with."""

    def append(self, lines: Sequence[dict[str, Any]]) -> None:
        """Add these lines, on the disk, or none of them: after an OSError the file is as it was, or `unknown`."""
        data = b"".join(strict_json.dump(line) + b"\n" for line in lines)
        try:
            system_calls.write(self._fd, data)
            system_calls.fsync(self._fd)
        except OSError as error:
            # Whether the lines are on the disk is not known. If they cannot be removed, only one who reads the file
            # again can find out what is there.
            try:
                system_calls.truncate(self._fd, self._size)
                system_calls.fsync(self._fd)
            except OSError:
                self.unknown = str(error)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Close the file; once more does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
