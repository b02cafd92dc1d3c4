"""RecordLock: a lock between processes that is free again when its holder ends.

A record lock of the system (`fcntl`) belongs to a process: the system releases it when the process ends, however it
ends. It does not exclude threads of one process from each other, which a lock of `threading` in front of it does. A
record lock is released as soon as its process closes *any* descriptor of the file: hold one descriptor a process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import weakref
from time import monotonic

TRIES = 50
"""How often a lock that is held is tried, each time after giving the CPU away, before a thread waits for it."""


class RecordLock:
    """The lock of the file `fd`, which the lock owns from now on, or (None) a lock of this process alone."""

    def __init__(self, fd: int | None) -> None:
        self.fd = fd
        self._threads = threading.Lock()
        self._owner: int | None = None
        _locks.add(self)
        if fd is not None:
            weakref.finalize(self, os.close, fd).atexit = False

    def acquire(self, timeout: float) -> bool:
        """Take the lock, or return False if it is held for `timeout` seconds; RuntimeError in the thread that has it.

        Where waiting is interrupted or ends in vain, the lock stays closed for this process until the holder, which may
        be stopped, has released it.
        """
        me = threading.get_ident()
        if self._owner == me:
            raise RuntimeError("this thread is in an update of the shared state already: make one after the other")
        deadline = monotonic() + timeout
        if not self._threads.acquire(timeout=timeout):
            return False
        try:
            obtained = self.fd is None or self._try(self.fd)
        except BaseException:  # an interrupt
            self.release()
            raise
        if obtained or self._wait(self.fd, deadline):  # type: ignore[arg-type]
            self._owner = me
            return True
        return False

    def release(self) -> None:
        """Give the lock back."""
        self._owner = None
        if self.fd is not None:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)
        self._threads.release()

    @staticmethod
    def _try(fd: int) -> bool:
        for _ in range(TRIES):
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except (BlockingIOError, PermissionError):  # the two answers that POSIX allows
                os.sched_yield()
        return False

    def _wait(self, fd: int, deadline: float) -> bool:
        """Wait in a thread of its own, for the system's wait has no timeout.

        The first of the two to take `decision` decides. If this one does, because it is late or interrupted, the thread
        gives back what it obtains later, the lock between threads included: while it waits, the lock that it obtains is
        no different from one that another thread of this process has obtained.
        """
        decision, obtained = threading.Lock(), threading.Event()

        def wait() -> None:
            _lock_exclusively(fd)
            if decision.acquire(blocking=False):
                obtained.set()
            else:
                self.release()

        threading.Thread(target=wait, name="vecenv-record-lock", daemon=True).start()
        try:
            obtained.wait(max(0.0, deadline - monotonic()))
        except BaseException:
            if not decision.acquire(blocking=False):
                self.release()
            raise
        return not decision.acquire(blocking=False)

    def renew(self) -> None:
        """In a forked process: no thread of the original is here to release it."""
        self._threads, self._owner = threading.Lock(), None


def _lock_exclusively(fd: int) -> None:
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX)
            return
        except OSError as error:
            # The system takes two processes for deadlocked where threads of theirs wait for each other's *other* lock.
            if error.errno != errno.EDEADLK:
                raise
            os.sched_yield()


_locks: weakref.WeakSet[RecordLock] = weakref.WeakSet()


def _renew_locks() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_locks)
