"""`SafeFolder`: opens files in an untrusted folder without following links. `FolderLock`: admits one writer."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from vecenv.portability import path_of_descriptor

T = TypeVar("T")
FILE, FOLDER = "file", "folder"
PARTIAL = ".partial"
LOCK = "writer.lock"
DEEPEST_FOLDER = 8
_KINDS = {stat.S_IFREG: FILE, stat.S_IFDIR: FOLDER, stat.S_IFLNK: "link", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY
# O_NONBLOCK, because opening a FIFO would wait for a writer.
_OPEN_FILE = os.O_NOFOLLOW | os.O_NONBLOCK


# Tests replace these names.
fsync, truncate = os.fsync, os.ftruncate
unlink, rmdir, mkdir = os.unlink, os.rmdir, os.mkdir
rename = os.replace


MOST_BUFFERS = 1024
"""Maximum buffers per `writev` call (IOV_MAX)."""


def write(fd: int, data: Any) -> None:
    rest = [memoryview(each).cast("B") for each in (data if isinstance(data, list) else [data]) if len(each)]
    at = 0
    while at < len(rest):
        written = os.writev(fd, rest[at : at + MOST_BUFFERS])
        while at < len(rest) and written >= len(rest[at]):
            written -= len(rest[at])
            at += 1
        if written:
            rest[at] = rest[at][written:]


class DatasetError(RuntimeError):
    """Raised if a data set cannot be read or written, or cannot store an episode."""


class FolderInUseError(DatasetError):
    """Raised if another writer has locked the folder."""


class Closable:
    _fd = -1

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class SafeFolder(Closable, os.PathLike[str]):
    """Folder that is held open by a file descriptor.

    The constructor's path may contain links. Inside the folder, each link raises `DatasetError`, even if another
    process replaces a folder by a link after a check.

    Methods raise FileNotFoundError for missing entries, `DatasetError` for entries of the wrong kind and failed reads,
    and OSError for failed writes.
    """

    path: Path
    """Absolute path for messages, and for functions that take no descriptor."""

    def __init__(self, path: str | os.PathLike[str], fd: int | None = None) -> None:
        self.path = Path(os.path.abspath(path))
        try:
            if fd is None:
                fd = os.dup(path._fd) if isinstance(path, SafeFolder) else os.open(self.path, _OPEN_FOLDER)
            self._fd = fd
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DatasetError(f"{self.path} cannot be opened as a folder: {error.strerror or error}") from None

    @classmethod
    def make(cls, path: str | os.PathLike[str]) -> SafeFolder:
        """Open a folder. Create missing folders of the path."""
        whole = Path(os.path.abspath(path))
        there = next(each for each in (whole, *whole.parents) if each.exists())
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
        with cls(there) as parent:
            return parent.inside("/".join(whole.relative_to(there).parts), make=True)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def fd_path(self) -> str:
        """On Linux, path through the descriptor, which is valid until `close` even if the folder is replaced."""
        return path_of_descriptor(self._fd) or str(self.path)

    def kind(self, name: str) -> str | None:
        """Return FILE, FOLDER, or None if missing. Raises `DatasetError` for links and other kinds."""
        try:
            mode = os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        found = _KINDS.get(stat.S_IFMT(mode), "device")
        if found not in (FILE, FOLDER):
            raise DatasetError(
                f"{self.path / name} is a {found}: a data set contains only files and folders, and nothing was "
                "changed; remove it, or replace it by its target"
            )
        return found

    def is_here(self, name: str, fd: int) -> bool:
        return self.kind(name) is not None and os.path.samestat(
            os.stat(name, dir_fd=self._fd, follow_symlinks=False), os.fstat(fd)
        )

    def entries(self) -> list[tuple[str, str]]:
        with os.scandir(self._fd) as found:
            names = sorted((each.name, each.is_file(follow_symlinks=False)) for each in found)
        kinds = ((name, FILE if is_file else self.kind(name)) for name, is_file in names)
        return [(name, kind) for name, kind in kinds if kind is not None]

    def check(self, depth: int = DEEPEST_FOLDER) -> None:
        """Raise `DatasetError` for links at any depth, and for `depth` or more nested folders."""
        if not depth:
            raise DatasetError(
                f"{self.path} is nested deeper than a data set is, so do not trust the folder; choose another folder"
            )
        for name, kind in self.entries():
            if kind == FOLDER:
                with self.inside(name) as below:
                    below.check(depth - 1)

    def inside(self, name: str, *, make: bool = False) -> SafeFolder:
        found = SafeFolder(self)
        for each in name.split("/") if name else ():
            with found as above:
                if make and above.kind(each) is None:
                    with suppress(FileExistsError):
                        mkdir(each, dir_fd=above._fd)
                    above.sync()
                found = SafeFolder(above.path / each, above._open(each, _OPEN_FOLDER, FOLDER))
        return found

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        above, _, last = name.rpartition("/")
        with self.inside(above) as folder:
            fd = folder._open(last, flags | _OPEN_FILE, FILE)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise folder._wrong(last, FILE)
            return fd

    def _open(self, name: str, flags: int, expected: str) -> int:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise DatasetError(
                f"{name!r} is not a valid name of a {expected} inside {self.path}, so do not trust the folder"
            )
        try:
            return os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=self._fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            if self.kind(name) not in (expected, None):
                raise self._wrong(name, expected) from None
            if flags & (os.O_WRONLY | os.O_RDWR):
                raise
            raise DatasetError(f"{self.path / name} cannot be read: {error.strerror or error}") from None

    def _wrong(self, name: str, expected: str) -> DatasetError:
        found = self.kind(name)  # raises for a link
        return DatasetError(f"{self.path / name} is a {found}, expected a {expected}; do not trust the folder")

    def read(self, name: str, limit: int) -> bytes:
        with os.fdopen(self.open(name), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise DatasetError(f"{self.path / name} has {size:,} bytes, but at most {limit:,} are allowed")
            return file.read(size)

    def size(self, name: str) -> int:
        with os.fdopen(self.open(name), "rb") as file:
            return os.fstat(file.fileno()).st_size

    def write(self, name: str, data: Any) -> None:
        """Replace a file. After a crash, the disk has the whole old or the whole new content."""
        if self.kind(name) == FOLDER:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        try:
            self.create(name + PARTIAL, data)
            self.rename(name + PARTIAL, name)
        except OSError:
            with suppress(OSError):  # on a full disk, the rest of a file would use the last space
                unlink(name + PARTIAL, dir_fd=self._fd)
            raise

    def create(self, name: str, data: Any) -> None:
        fd = self.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write(fd, data)
            fsync(fd)  # otherwise a power cut after the rename could leave an empty file
        finally:
            os.close(fd)

    def rename(self, old: str, new: str, to: SafeFolder | None = None) -> None:
        rename(old, new, src_dir_fd=self._fd, dst_dir_fd=(to or self)._fd)
        (to or self).sync()

    def remove(self, name: str) -> None:
        if self.kind(name) != FOLDER:
            unlink(name, dir_fd=self._fd)
            return
        with self.inside(name) as below:
            for each, _ in below.entries():
                below.remove(each)
        rmdir(name, dir_fd=self._fd)

    def sync(self) -> None:
        fsync(self._fd)


class FolderLock(Closable):
    """Lock of a folder until `close` or the end of the process, by `flock` on a file in the folder.

    Raises `FolderInUseError` immediately if another writer has the lock. Forked children do not inherit the lock, so
    a killed job's folder is free even while workers still run.
    """

    def __init__(self, folder: SafeFolder) -> None:
        self._folder = folder
        _OPEN_LOCKS.add(self)
        while not self._lock():  # another writer has removed the file: retry
            super().close()

    def _lock(self) -> bool:
        """Lock the file, and return whether the folder still holds this file."""
        self._fd = self._folder.open(LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._folder.is_here(LOCK, self._fd):
                return False
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except BaseException as error:
            holder = os.pread(self._fd, 200, 0).decode(errors="replace").strip() or "another process"
            super().close()
            if not isinstance(error, BlockingIOError):
                raise
            raise FolderInUseError(
                f"{self._folder.path} is being written by {holder}: wait for its end, or choose another folder"
            ) from None
        return True

    def remove_if_empty(self) -> None:
        if [name for name, _ in self._folder.entries()] == [LOCK]:
            self._folder.remove(LOCK)
            with suppress(OSError):  # another writer has made a new lock file
                rmdir(self._folder.path)

    def close(self) -> None:
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # a child that was just forked may still have the file open
        super().close()


_OPEN_LOCKS: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _close_all() -> None:
    for lock in list(_OPEN_LOCKS):
        Closable.close(lock)


# A forked child closes its copies of the descriptors, so that the locks end with the parent.
os.register_at_fork(after_in_child=_close_all)
