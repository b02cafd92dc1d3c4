"""The lock of a folder: one writer at a time."""

from __future__ import annotations

import fcntl
import os
import socket
import weakref

from collector.store.errors import FolderInUseError
from collector.store.files.safe_folder import SafeFolder

LOCK = "writer.lock"


class FolderLock:
    """Holds a folder locked, by a file in it, until `release` or the end of the process, however it ends.

    Raises `FolderInUseError` at once where another writer has it; the file says which. A child that is forked does not
    keep the lock: a job that is killed leaves its folder free, even while its workers are still ending.
    """

    def __init__(self, folder: SafeFolder) -> None:
        self._fd = folder.open(LOCK, os.O_RDWR | os.O_CREAT)
        _HELD.add(self)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(self._fd, 200, 0).decode(errors="replace").strip() or "another process"
            self.release()
            raise FolderInUseError(
                f"{folder.path} is being written by {holder}: wait for its end, or choose another folder"
            ) from None
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let others have it; once more does nothing."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # closing is not enough while a child, just forked, has it open too
            self.close()

    def close(self) -> None:
        """Close the file; the lock stays while another process has it open."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.release()


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _close_all() -> None:
    for lock in list(_HELD):
        lock.close()


# The lock belongs to the open file, which a forked child shares: it closes its own descriptors of it.
os.register_at_fork(after_in_child=_close_all)
