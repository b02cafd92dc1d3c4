"""The system calls that change a folder of episodes: each is made here, so that a test can make any of them fail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

PARTIAL = ".partial"
"""The end of the name of a file that is being written."""


def write(fd: int, data: Any) -> None:
    """Write all of `data`, which is bytes or a buffer."""
    rest = memoryview(data).cast("B")
    while len(rest):
        rest = rest[os.write(fd, rest) :]


def fsync(fd: int) -> None:
    """Return once the file is on the disk."""
    os.fsync(fd)


def fsync_folder(path: Path) -> None:
    """Return once the names in a folder are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def rename(old: Path, new: Path) -> None:
    """Give a file another name, which may be that of a file to replace."""
    os.replace(old, new)


def truncate(fd: int, size: int) -> None:
    """Cut a file off."""
    os.ftruncate(fd, size)


def unlink(path: Path) -> None:
    """Remove a file."""
    os.unlink(path)


def mkdir(path: Path) -> None:
    """Make a folder in one that exists, and return once its name is on the disk."""
    os.mkdir(path)
    fsync_folder(path.parent)


def write_atomically(path: Path, data: Any) -> None:
    """Give `path` its content, on the disk, at once or not at all."""
    partial = path.with_name(path.name + PARTIAL)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    try:
        write(fd, data)
        fsync(fd)  # without it, a power cut after the rename could leave an empty file under the new name
    finally:
        os.close(fd)
    rename(partial, path)
    fsync_folder(path.parent)
