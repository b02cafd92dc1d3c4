"""Opening files of a folder that others may have made: regular files inside it, and nothing else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from collector.store.errors import DatasetError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
# A FIFO without a writer would block the caller for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def open_inside(root: Path, name: str) -> int:
    """The descriptor of the regular file `name`, such as "shards/w000/000000.npz", below `root`.

    No link is followed on the way, so what is opened lies inside `root`, whatever the folder holds. Raises
    FileNotFoundError where there is none, `DatasetError` where it is something else than a file.
    """
    *folders, last = name.split("/")
    if not {*folders, last}.isdisjoint({"", ".", ".."}):
        raise DatasetError(f"{name!r} is no name of a file inside {root}; the folder is not to be trusted")
    try:
        at = os.open(root, _FOLDER)
        try:
            for each in folders:
                below = os.open(each, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
                os.close(at)
                at = below
            fd = os.open(last, _FILE, dir_fd=at)
        finally:
            os.close(at)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DatasetError(f"{root / name} cannot be opened as a file of a data set: {reason}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DatasetError(f"{root / name} is not a regular file; the folder is not to be trusted")
    return fd


def read_inside(root: Path, name: str, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes; raises as `open_inside`."""
    with os.fdopen(open_inside(root, name), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise DatasetError(f"{root / name} has {size:,} bytes, and {limit:,} are the most that one may have")
        return file.read(limit)
