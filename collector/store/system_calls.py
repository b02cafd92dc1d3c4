"""The system calls that change a folder of episodes: each is made here, so that a test can make any of them fail.

`folder` is the descriptor of the folder of a name.
"""

from __future__ import annotations

import os
from typing import Any


def write(fd: int, data: Any) -> None:
    """Write all of `data`, which is bytes or a buffer."""
    rest = memoryview(data).cast("B")
    while len(rest):
        rest = rest[os.write(fd, rest) :]


def fsync(fd: int) -> None:
    """Return once the file, or the names in a folder, are on the disk."""
    os.fsync(fd)


def rename(old: str, new: str, folder: int, to: int) -> None:
    """Give a file or a folder another name in the folder `to`; a file of that name is replaced."""
    os.replace(old, new, src_dir_fd=folder, dst_dir_fd=to)


def truncate(fd: int, size: int) -> None:
    """Cut a file off."""
    os.ftruncate(fd, size)


def unlink(name: str, folder: int) -> None:
    """Remove a file."""
    os.unlink(name, dir_fd=folder)


def mkdir(name: str, folder: int) -> None:
    """Make a folder, and return once its name is on the disk."""
    os.mkdir(name, dir_fd=folder)
    fsync(folder)


def rmdir(name: str, folder: int) -> None:
    """Remove a folder that is empty."""
    os.rmdir(name, dir_fd=folder)
