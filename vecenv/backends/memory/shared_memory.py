"""Memory that processes can share: files without a name, reserved before they are used."""

from __future__ import annotations

import mmap
import os
import tempfile

from vecenv import portability
from vecenv.backends.system_limits import available_memory
from vecenv.errors import SharedMemoryError

PAGE = mmap.PAGESIZE
"""4 KiB on x86, 16 KiB on Apple silicon."""


def anonymous_file(name: str) -> int:
    """The descriptor of an unnamed file in memory, or in the temporary folder where there is no memfd."""
    if (fd := portability.memfd(name)) is not None:
        return fd
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def reserve(fd: int, size: int, purpose: str, used: int | None = None) -> mmap.mmap:
    """Give the file `fd` `size` bytes, and map them. SharedMemoryError if there is not so much.

    The first `used` (None: all) are allocated now: without that, when memory is full, the first access to a page would
    kill the process (SIGBUS) instead of failing here. The others are allocated when they are written to.
    """
    used = size if used is None else used
    available = available_memory()
    if available is not None and used > available:
        raise _refused(used, purpose, f"only {available / 2**20:.1f} MiB are available")
    try:
        os.ftruncate(fd, size)
        if not portability.allocate(fd, used) and used > (free := _free_space(fd)):
            raise _refused(used, purpose, f"only {free / 2**20:.1f} MiB are free in {tempfile.gettempdir()}")
        memory = mmap.mmap(fd, size)
    except OSError as error:
        raise _refused(used, purpose, f"the system refused: {error}") from error
    portability.seal_size(fd)  # shrinking it under another process would kill that one
    return memory


def _free_space(fd: int) -> int:
    """Bytes that the file system of `fd` can still take."""
    system = os.fstatvfs(fd)
    return system.f_bavail * system.f_frsize


def _refused(size: int, purpose: str, reason: str) -> SharedMemoryError:
    return SharedMemoryError(
        f"{size / 2**20:.1f} MiB of shared memory are needed for {purpose}, but {reason}. "
        "Use fewer envs, smaller observations, or SubprocVectorEnv."
    )
