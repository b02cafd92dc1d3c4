"""Allocation of shared memory, `LargeData`, and `Control`: counters by which parent and workers announce rounds."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np

from vecenv import portability
from vecenv.backends.ipc.serialization import Descriptor
from vecenv.backends.system_limits import available_memory
from vecenv.errors import SharedMemoryError

PAGE = mmap.PAGESIZE


def anonymous_file(name: str) -> int:
    """Return the descriptor of an unnamed file in memory, or on disk if the system has no memfd."""
    if (fd := portability.memfd(name)) is not None:
        return fd
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def reserve(fd: int, size: int, purpose: str, used: int | None = None) -> mmap.mmap:
    """Resize the file `fd` to `size` bytes, and map it. Raises SharedMemoryError if memory is short.

    The first `used` bytes (`None` for all) are allocated now, if the system can. If memory were full later, the first
    access to an unallocated page would kill the process (SIGBUS).
    """
    used = size if used is None else used
    _check_available(used, purpose, FEWER)
    try:
        os.ftruncate(fd, size)
        system = os.fstatvfs(fd)
        if portability.allocate(fd, used) or used <= (free := system.f_bavail * system.f_frsize):
            memory = mmap.mmap(fd, size)
            portability.seal_size(fd)  # shrinking the file would kill the processes that map it
            return memory
    except OSError as error:
        raise _refused(used, purpose, f"the system refused: {error}", FEWER) from error
    raise _refused(used, purpose, f"only {free / 2**20:.1f} MiB are free in {tempfile.gettempdir()}", FEWER)


def extend(fd: int, used: int, purpose: str) -> None:
    """Allocate the first `used` bytes of a file that `reserve` has resized, if the system can."""
    try:
        portability.allocate(fd, used)
    except OSError as error:
        raise _refused(used, purpose, f"the system refused: {error}", FEWER) from error


FEWER = "Use fewer envs, smaller observations, or SubprocVectorEnv."


def _check_available(size: int, purpose: str, advice: str) -> None:
    available = available_memory()
    if available is not None and size > available:
        raise _refused(size, purpose, f"only {available / 2**20:.1f} MiB are available", advice)


def _refused(size: int, purpose: str, reason: str, advice: str) -> SharedMemoryError:
    return SharedMemoryError(
        f"{size / 2**20:.1f} MiB of shared memory are needed for {purpose}, but {reason}. {advice}"
    )


PART = 1 << 16
"""Bytes that are compared at once. Larger parts do not fit into the caches of a CPU."""


class LargeData:
    """Unnamed file with large data of env functions. Each env maps it copy-on-write, so envs share unchanged pages."""

    def __init__(self) -> None:
        self.descriptor = Descriptor(anonymous_file("vecenv-env-fns"))
        self.size = 0
        """Number of bytes in the file."""
        self._places: dict[tuple[int, int], slice] = {}
        """Places of arrays by address and size."""

    def add(self, array: np.ndarray, purpose: str) -> slice:
        """Write the bytes of a uint8 array, unless the file has them already. Return their place in the file."""
        key = array.__array_interface__["data"][0], array.nbytes
        place = self._places.get(key)
        if place is None or not self._has(array, place.start):  # another array may be at the address now
            place = self._places[key] = self.write(array, purpose)
        return place

    def _has(self, array: np.ndarray, start: int) -> bool:
        parts = ((k, array[k : k + PART]) for k in range(0, len(array), PART))
        return all(os.pread(self.descriptor.fd, len(part), start + k) == part.tobytes() for k, part in parts)

    def write(self, data: Any, purpose: str) -> slice:
        """Append bytes at the next page. Raises SharedMemoryError if memory is short."""
        advice = 'Load the data inside the function, or pass context="fork", so that workers inherit the data.'
        size, start = len(data), -(-self.size // PAGE) * PAGE
        _check_available(size, purpose, advice)
        try:
            with open(self.descriptor.fd, "wb", closefd=False) as file:
                file.seek(start)
                file.write(data)
        except OSError as error:
            raise _refused(size, purpose, f"the system refused: {error}", advice) from error
        self.size = start + size
        return slice(start, self.size)


LINE = 8  # 64-bit numbers per worker, which fill a cache line
PROGRESS = 0  # written by the worker before each use of an env (see `EnvHost`)
FRAMES = 1  # written by the parent: number of frames posted for the worker (ShmemBackend)
BUSY_NS = 2  # written by the worker: nanoseconds spent in rounds
DOING = 3  # written by the worker: one of the values below
NOTHING, A_ROUND, A_CALL, SENDING = range(4)
ELSEWHERE = 4  # written by the parent: the worker is busy, but does not share this memory
RESETS = 4  # written by the worker: number of resets of its envs (see `Vitals`)
MEMORY = 5  # written by the worker: bytes of memory


class Control:
    """Numbers in memory that the parent and the workers of a vector env share. A worker maps the file `fd`.

    A single store writes each number, so that readers see the old or the new number. Each worker has a line of `LINE`
    numbers. `ShmemBackend` also counts rounds (steps, resets):

    | number         | content                                        | when it is written    | then the writer wakes |
    |----------------|------------------------------------------------|-----------------------|-----------------------|
    | `rounds[w]`    | rounds of some envs that include worker w      | after status bytes    | the wakeup of w       |
    | `full[0]`      | rounds of all envs                             | after status bytes    | `everyone[full & 1]`  |
    | `sleepers[w]`  | 1 while worker w sleeps                        | before its last check |                       |
    | `sleepers[-1]` | 1 while the parent sleeps                      | before its last check |                       |

    All workers share the two wakeups in `everyone`. A sleeping worker polls its own wakeup and
    `everyone[full + 1 & 1]`, which the next round of all envs makes readable. The parent clears this wakeup in the
    following round of all envs, when all workers have answered, and no worker polls this wakeup.
    """

    def __init__(self, workers: int, fd: int | None = None) -> None:
        lines = workers * LINE * 8
        rounds = lines + workers * 8
        full = rounds + 8
        size = -(-(full + workers + 1) // PAGE) * PAGE
        if fd is None:
            self.fd = anonymous_file("vecenv-control")
            try:
                self._memory = reserve(self.fd, size, "the control page")
            except SharedMemoryError:
                os.close(self.fd)
                raise
        else:
            self.fd = fd
            self._memory = mmap.mmap(fd, size)
        memory = memoryview(self._memory)
        self._numbers = memory[:lines].cast("q")
        self.rounds: Any = memory[lines:rounds].cast("q")
        self.full: Any = memory[rounds:full].cast("q")
        self.sleepers: Any = memory[full : full + workers + 1]

    def line(self, worker: int) -> Any:
        return self._numbers[worker * LINE : (worker + 1) * LINE]
