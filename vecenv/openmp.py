"""OpenMP threads of this process: what CPU time they use, and how to release the pool of the calling thread.

After each parallel region the threads of libgomp, which torch and others use, spin for milliseconds in case another one
follows. Workers that should step envs meanwhile lack their CPUs. `omp_pause_resource_all` (OpenMP 5.0) ends the threads
of the calling thread's pool; the next parallel region starts new ones, in about 40 us, with the same results.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any

from vecenv.portability import system_file, thread_ids

PAUSE_SOFT = 1
"""`omp_pause_soft`: thread counts and other settings stay as they are."""

_releases: list[Callable[[int], int]] = []
"""`omp_pause_resource_all` of each libgomp that was found."""
FORKED_NOT_EXECUTED = 0x40
"""`PF_FORKNOEXEC` of Linux's `sched.h`."""


def _was_forked() -> bool:
    """Whether this process was forked and still runs the same program, or the system does not say."""
    stat = system_file("/proc/self/stat")
    return stat is None or bool(int(stat.rpartition(")")[2].split()[6]) & FORKED_NOT_EXECUTED)


# In a forked child that inherited a pool the call would wait for ever for threads that do not exist there.
_usable = os.environ.get("VECENV_RELEASE_OPENMP", "1") != "0" and not _was_forked()


def _disable() -> None:
    global _usable
    _usable = False


os.register_at_fork(after_in_child=_disable)


def is_enabled() -> bool:
    """Whether vector envs of this process may look at its threads: False in forked children and where that cannot be
    done, and with `VECENV_RELEASE_OPENMP=0` in the environment.
    """
    return _usable and thread_ids() is not None


def can_release() -> bool:
    """Whether a libgomp that offers the call is loaded, and no torch.profiler records.

    The runtimes of LLVM and Intel would act on the pools of all threads, so they are left alone.
    """
    if _usable and not _releases:
        _releases.extend(_find())
    return _usable and bool(_releases) and not _profiler_records()


def release_pool() -> bool:
    """End the idle OpenMP threads of the calling thread (20 to 60 us, less than 1 us if there are none).

    Returns whether it was possible.
    """
    if not can_release():
        return False
    for release in list(_releases):
        if release(PAUSE_SOFT) != 0:  # refused: never again
            _disable()
    return _usable


def _find() -> list[Any]:
    import ctypes

    maps = (system_file("/proc/self/maps") or "").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in maps if "libgomp" in line}
    found = []
    for path in paths:
        if PurePath(path).name.startswith("libgomp"):
            library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            found.append(getattr(library, "omp_pause_resource_all", None))  # libgomp has it since GCC 9
    return [release for release in found if release is not None]


def _profiler_records() -> bool:
    profiler = sys.modules.get("torch.autograd.profiler")
    return bool(getattr(profiler, "_is_profiler_enabled", False))  # torch has no public name for it


def unknown_threads() -> list[int]:
    """The ids of the threads that Python neither started nor runs in: those of OpenMP, OpenBLAS and the like."""
    known = {thread.native_id for thread in threading.enumerate()}
    return [tid for tid in thread_ids() or () if tid not in known]


def count_threads() -> int:
    """How many threads this process has."""
    return len(thread_ids() or ())


def cpu_seconds(tids: Iterable[int]) -> float:
    """The CPU time that these threads of this process have used since they were started."""
    seconds = 0.0
    for tid in tids:
        with contextlib.suppress(OSError):  # it has ended
            seconds += time.clock_gettime((~tid << 3) | 6)  # the kernel's number for the clock of a thread
    return seconds
