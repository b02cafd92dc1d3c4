"""`SafeFolder`: open files relative to a folder's descriptor, without following links; `FolderLock`."""

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

from vecenv.extending import path_of_descriptor

T = TypeVar("T")
FILE, FOLDER = "file", "folder"
PARTIAL = ".partial"
"""The end of the name of a file that is being written."""
LOCK = "writer.lock"
DEEPEST = 8
"""More folders within folders than any data set has."""
_KINDS = {stat.S_IFREG: FILE, stat.S_IFDIR: FOLDER, stat.S_IFLNK: "link", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY
# A FIFO without a writer would block the caller for ever.
_OPEN_FILE = os.O_NOFOLLOW | os.O_NONBLOCK


# The system calls that change a folder of episodes, by names of this module, so that a test can make any of them fail.
fsync, truncate = os.fsync, os.ftruncate
unlink, rmdir, mkdir = os.unlink, os.rmdir, os.mkdir
rename = os.replace


MOST_BUFFERS = 1024
"""The most that one call of the system writes (IOV_MAX)."""


def write(fd: int, data: Any) -> None:
    """Write all of `data`: bytes, a buffer of bytes, or a list of these."""
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
    """A folder of episodes cannot be used; the message has what is wrong with it and what to do."""


class FolderInUseError(DatasetError):
    """Another process writes to the folder."""


class Closable:
    """Holds a descriptor, or more, until `close`, the end of a `with` block, or garbage collection."""

    _fd = -1

    def close(self) -> None:
        """Close it; once more does nothing."""
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
    """A folder by its descriptor.

    The path that it is made with is the caller's own, and may lead through links. Below it there are files and folders
    only: a link, or anything else, is a `DatasetError` that names it, also where it takes the place of a folder after
    that was looked at. Names are relative, such as "shards/000000/obs.npy". Made with another `SafeFolder`, it is one
    more descriptor of the same folder. Raises FileNotFoundError, and `DatasetError` for what is no folder.
    """

    path: Path
    """For messages, and for what only takes paths."""

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
        """Open a folder, which is made with its parents where there is none. Raises OSError."""
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
        """A path that leads to this folder whatever takes its name, for a library that opens files by path; it is valid
        in this process until `close`. Where the system has none: the usual path."""
        return path_of_descriptor(self._fd) or str(self.path)

    # What is there

    def kind(self, name: str) -> str | None:
        """FILE or FOLDER; None: there is nothing of that name. Raises `DatasetError` for a link and all else."""
        try:
            mode = os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        found = _KINDS.get(stat.S_IFMT(mode), "device")
        if found not in (FILE, FOLDER):
            raise DatasetError(
                f"{self.path / name} is a {found}: in the folder of a data set there are files and folders only, and "
                "nothing was changed; remove it, or put there what it stands for"
            )
        return found

    def is_here(self, name: str, fd: int) -> bool:
        """Return whether an open file is still the file of that name. Raises `DatasetError` as `kind`."""
        return self.kind(name) is not None and os.path.samestat(
            os.stat(name, dir_fd=self._fd, follow_symlinks=False), os.fstat(fd)
        )

    def entries(self) -> list[tuple[str, str]]:
        """Name and kind of all that is in it, sorted. Raises as `kind`."""
        with os.scandir(self._fd) as found:
            names = sorted((each.name, each.is_file(follow_symlinks=False)) for each in found)
        kinds = ((name, FILE if is_file else self.kind(name)) for name, is_file in names)
        return [(name, kind) for name, kind in kinds if kind is not None]

    def check(self, depth: int = DEEPEST) -> None:
        """Raise `DatasetError` where anything in it, at any depth, is neither file nor folder: a link, for one."""
        if not depth:
            raise DatasetError(f"{self.path} is deeper than the folders of a data set; the folder is not to be trusted")
        for name, kind in self.entries():
            if kind == FOLDER:
                with self.inside(name) as below:
                    below.check(depth - 1)

    def inside(self, name: str, *, make: bool = False) -> SafeFolder:
        """A folder below it, which is made if `make` says so; "": this one. Raises as the constructor, and OSError."""
        found = SafeFolder(self)
        for each in name.split("/") if name else ():
            with found as above:
                if make and above.kind(each) is None:
                    with suppress(FileExistsError):
                        mkdir(each, dir_fd=above._fd)
                    above.sync()
                found = SafeFolder(above.path / each, above._open(each, _OPEN_FOLDER, FOLDER))
        return found

    # Files

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """The descriptor of a regular file.

        Raises FileNotFoundError; `DatasetError` for what is none, and where a file cannot be opened for reading;
        OSError where it cannot for writing.
        """
        above, _, last = name.rpartition("/")
        with self.inside(above) as folder:
            fd = folder._open(last, flags | _OPEN_FILE, FILE)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise folder._wrong(last, FILE)
            return fd

    def _open(self, name: str, flags: int, expected: str) -> int:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise DatasetError(f"{name!r} is no name of a {expected} inside {self.path}; it is not to be trusted")
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
        found = self.kind(name)  # which raises where it is neither
        return DatasetError(f"{self.path / name} is a {found}, expected a {expected}; the folder is not to be trusted")

    def read(self, name: str, limit: int) -> bytes:
        """The content of a file of at most `limit` bytes; raises as `open`."""
        with os.fdopen(self.open(name), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise DatasetError(
                    f"{self.path / name} has {size:,} bytes, and {limit:,} are the most that one may have"
                )
            return file.read(size)

    def size(self, name: str) -> int:
        """Size of a file. Raises as `open`."""
        with os.fdopen(self.open(name), "rb") as file:
            return os.fstat(file.fileno()).st_size

    def write(self, name: str, data: Any) -> None:
        """Give a file its content, on the disk, at once or not at all. Raises OSError, and `DatasetError` as `kind`."""
        self.kind(name)
        self.create(name + PARTIAL, data)
        self.rename(name + PARTIAL, name)

    def create(self, name: str, data: Any) -> None:
        """Write a file, on the disk. Raises as `write`."""
        fd = self.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write(fd, data)
            fsync(fd)  # without it, a power cut after a rename could leave an empty file of that name
        finally:
            os.close(fd)

    def rename(self, old: str, new: str, to: SafeFolder | None = None) -> None:
        """Give a file or a folder another name, on the disk, here or in the folder `to`. Raises OSError."""
        rename(old, new, src_dir_fd=self._fd, dst_dir_fd=(to or self)._fd)
        (to or self).sync()

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it. Raises OSError, and `DatasetError` as `kind`."""
        if self.kind(name) != FOLDER:
            unlink(name, dir_fd=self._fd)
            return
        with self.inside(name) as below:
            for each, _ in below.entries():
                below.remove(each)
        rmdir(name, dir_fd=self._fd)

    def sync(self) -> None:
        """Return once the names in it are on the disk."""
        fsync(self._fd)


class FolderLock(Closable):
    """Holds a folder locked, by a file in it, until `close` or the end of the process, however it ends.

    Raises `FolderInUseError` at once where another writer has it; the file says which. A child that is forked does not
    keep the lock: a job that is killed leaves its folder free, even while its workers are still ending.
    """

    def __init__(self, folder: SafeFolder) -> None:
        self._folder = folder
        _HELD.add(self)
        while not self._lock():  # the holder before has removed its file
            super().close()

    def _lock(self) -> bool:
        """Lock the file; returns whether it is still the one in the folder."""
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
        """Remove the folder if it holds nothing but this lock; the lock is removed first, while it is held."""
        if [name for name, _ in self._folder.entries()] == [LOCK]:
            self._folder.remove(LOCK)
            with suppress(OSError):  # another writer has come
                rmdir(self._folder.path)

    def close(self) -> None:
        """Let others have it; once more does nothing."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # closing is not enough while a child, just forked, has it open too
        super().close()


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _close_all() -> None:
    for lock in list(_HELD):
        Closable.close(lock)


# The lock belongs to the open file, which a forked child shares: it closes its own descriptors of it.
os.register_at_fork(after_in_child=_close_all)
