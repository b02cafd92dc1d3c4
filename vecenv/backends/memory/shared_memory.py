"""Memory that processes can share: files without a name, reserved before anybody relies on them."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile

from vecenv.backends.system_limits import available_memory
from vecenv.errors import SharedMemoryError

PAGE = 4096


def anonymous_file(name: str) -> int:
    """The descriptor of an unnamed file in memory, or in the temporary folder where there is no memfd."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def reserve(fd: int, size: int, purpose: str, used: int | None = None) -> mmap.mmap:
    """Give the file `fd` `size` bytes, and map them. SharedMemoryError if there is not so much.

    The first `used` (None: all) are really there: without that a full memory would kill whoever touches a page first
    (SIGBUS) instead of failing here. The others are taken when they are written to.
    """
    used = size if used is None else used
    available = available_memory()
    if available is not None and used > available:
        raise _refused(used, purpose, f"only {available / 2**20:.1f} MiB are available")
    try:
        os.ftruncate(fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, used)
        memory = mmap.mmap(fd, size)
    except OSError as error:
        raise _refused(used, purpose, f"the system refused: {error}") from error
    _seal(fd)
    return memory


def _refused(size: int, purpose: str, reason: str) -> SharedMemoryError:
    return SharedMemoryError(
        f"{size / 2**20:.1f} MiB of shared memory are needed for {purpose}, but {reason}. "
        "Use fewer envs, smaller observations, or SubprocVectorEnv."
    )


def _seal(fd: int) -> None:
    """No process may change the size any more: shrinking it under another one would kill that one."""
    if hasattr(fcntl, "F_ADD_SEALS") and hasattr(os, "memfd_create"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
