"""Keep threads of OpenMP and OpenBLAS in this process from spinning on CPUs that workers need.

After a parallel operation, threads of libgomp (torch) wait in a busy loop for milliseconds, and threads of OpenBLAS
(numpy, scipy) for about 20 ms. vecenv shortens these waits without changing results:

- OpenMP 5.0 can end the idle threads of the calling thread. The next parallel region starts new threads.
- vecenv sets a short spin time for OpenBLAS, and ends OpenBLAS's threads, because only new threads use this time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from vecenv.backends.system_limits import usable_cpus
from vecenv.errors import warn_caller
from vecenv.portability import system_file, thread_ids

PAUSE_SOFT = 1
"""`omp_pause_soft`, which ends idle threads, but keeps thread counts and other settings."""
SPIN, SPIN_EXPONENT = "OPENBLAS_THREAD_TIMEOUT", "14"
"""Environment variable of OpenBLAS, and value: threads sleep after 2**14 idle cycles (about 6 us; default: 2**26)."""
FORKED_NOT_EXECUTED = 0x40
"""Flag of a forked process: `PF_FORKNOEXEC` of Linux's `sched.h`."""

MIN_SPIN_SECONDS = 1e-4
"""CPU seconds per round. vecenv ends threads only if they waste more, because ending threads costs as much."""
SAMPLED, PERIOD = 8, 160
"""The first `SAMPLED` of each `PERIOD` rounds measure the threads."""
PAUSE = 16
WARN_SHARE = 0.5
"""If vecenv cannot end threads that use at least this number of CPUs, it warns."""

_releases: list[Callable[[int], int]] = []
_shortened: set[str] = set()
_warned = False


def _was_forked() -> bool:
    stat = system_file("/proc/self/stat")
    return stat is None or bool(int(stat.rpartition(")")[2].split()[6]) & FORKED_NOT_EXECUTED)


# In a forked child, the threads do not exist. Ending them would wait forever.
_usable = os.environ.get("VECENV_RELEASE_OPENMP", "1") != "0" and not _was_forked()


def _disable() -> None:
    global _usable
    _usable = False


os.register_at_fork(after_in_child=_disable)


def is_enabled() -> bool:
    """Return False in forked children, on systems that do not list threads, and with `VECENV_RELEASE_OPENMP=0`."""
    return _usable and thread_ids() is not None


def can_release() -> bool:
    """Return True if a libgomp with `omp_pause_resource_all` is loaded, and torch.profiler does not record.

    Other OpenMP runtimes (LLVM, Intel) do not count, because their `omp_pause_resource_all` also ends OpenMP
    threads of other Python threads.
    """
    if _usable and not _releases:
        found = (getattr(library, "omp_pause_resource_all", None) for _, library in _loaded("libgomp"))
        _releases.extend(release for release in found if release is not None)
    profiler = sys.modules.get("torch.autograd.profiler")
    profiles = getattr(profiler, "_is_profiler_enabled", False)
    return _usable and bool(_releases) and not profiles


def release_pool() -> bool:
    """End the idle OpenMP threads of the calling thread. Return False if this is not possible."""
    if not can_release():
        return False
    for release in list(_releases):
        if release(PAUSE_SOFT) != 0:
            _disable()
    return _usable


def shorten_openblas_spin() -> bool:
    """Make the threads of each loaded OpenBLAS sleep soon after a matrix product. Return True if a library changed.

    Do nothing if the user has set `OPENBLAS_THREAD_TIMEOUT`, or if another Python thread may be using OpenBLAS.
    """
    if not _usable or SPIN in os.environ or len(sys._current_frames()) > 1:
        return False
    new = [(path, library) for path, library in _loaded("openblas") if path not in _shortened and _has_threads(library)]
    os.putenv(SPIN, SPIN_EXPONENT)  # os.environ would pass the value to children
    for path, library in new:
        library.openblas_read_env()
        library.blas_thread_shutdown_()
        _shortened.add(path)
    os.unsetenv(SPIN)
    return bool(new)


def _has_threads(library: Any) -> bool:
    names = [f"{prefix}openblas_get_parallel{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_")]
    kind = next((found for name in names if (found := getattr(library, name, None))), None)
    complete = hasattr(library, "openblas_read_env") and hasattr(library, "blas_thread_shutdown_")
    return kind is not None and complete and kind() == 1


def _loaded(name: str) -> list[tuple[str, Any]]:
    import ctypes

    lines = (system_file("/proc/self/maps") or "").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if name in line.rpartition("/")[2]}
    libraries = []
    for path in sorted(path for path in paths if ".so" in path):
        with contextlib.suppress(OSError):
            # PyDLL keeps the interpreter lock, so no Python thread can start a matrix product during a call.
            libraries.append((path, ctypes.PyDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)))
    return libraries


def unknown_threads() -> list[int]:
    known = {thread.native_id for thread in threading.enumerate()}
    return [tid for tid in thread_ids() or () if tid not in known]


def cpu_seconds(tids: Iterable[int]) -> float:
    seconds = 0.0
    for tid in tids:
        with contextlib.suppress(OSError):
            seconds += time.clock_gettime((~tid << 3) | 6)
    return seconds


class SpinningThreads:
    """Control that ends spinning threads of this process while `num_workers` worker processes step envs.

    1. `review` engages the control if threads other than the caller's use CPU time.
    2. The next `SAMPLED` rounds measure the CPU time of threads that Python did not start. Spinning on spare CPUs does
       not count.
    3. If this time is long, the control shortens OpenBLAS's spin, and repeats the measurement. If the time is still
       long, the control ends OpenMP threads before each round.
    4. The control disengages if it finds no spinning, if it cannot end threads, or if rounds do not get faster.
    """

    def __init__(self, num_workers: int) -> None:
        self._spare = max(0, usable_cpus() - num_workers)
        self.engaged = False
        self.rounds = 0
        self._others = time.process_time() - time.thread_time()
        self._pause = self._helpless = 0
        self._sample()

    def stats(self) -> dict[str, Any]:
        active = self.engaged and self._round > SAMPLED
        return {"openmp_active": active, "openmp_rounds": self.rounds, "openblas_shortened": bool(_shortened)}

    def _sample(self) -> None:
        self._round = 0
        self._began: tuple[float, list[int], float] | None = None
        self._begins: list[float] = []
        self._released: set[int] = set()
        self._seconds = self._spun = 0.0

    def review(self, rounds: int) -> None:
        others = time.process_time() - time.thread_time()
        used, self._others = others - self._others, others
        self._pause -= 1
        if self._pause < 0 and used > MIN_SPIN_SECONDS * rounds:
            self.engaged = True
            self._sample()

    def before_round(self) -> None:
        self._round += 1
        if self._round <= 2 * SAMPLED + 1:
            self._begins.append(time.perf_counter())
        if self._round <= SAMPLED:
            threads = unknown_threads()
            self._began = time.perf_counter(), threads, cpu_seconds(threads)
        else:
            if self._round == SAMPLED + 1:
                self._released = set(unknown_threads())
            elif self._round == SAMPLED + 2 and self._released and self._released.issubset(unknown_threads()):
                self._fail()  # a round later, because the system removes an ended thread a little later
                return
            self.rounds += release_pool()

    def after_round(self) -> None:
        if self._began is not None:
            begin, threads, before = self._began
            self._began = None
            self._seconds += time.perf_counter() - begin
            self._spun += max(0.0, cpu_seconds(threads) - before)
            if self._round == SAMPLED:
                self._decide()
        elif self._round == 2 * SAMPLED + 1 and not self._is_faster():
            self._pause, self.engaged = PAUSE, False
        elif self._round >= PERIOD:
            self._sample()

    def _decide(self) -> None:
        if self._spun - self._spare * self._seconds < MIN_SPIN_SECONDS * SAMPLED:
            self._pause, self.engaged = PAUSE, False
        elif shorten_openblas_spin():
            self._sample()
        elif not can_release():
            self._fail()

    def _is_faster(self) -> bool:
        begins = self._begins
        seconds = [after - before for before, after in pairwise(begins)]
        before, released = sorted(seconds[:SAMPLED]), sorted(seconds[SAMPLED:])
        return released[SAMPLED // 2] < before[SAMPLED // 2]

    def _fail(self) -> None:
        self._pause, self.engaged = PAUSE, False
        self._helpless += 1
        share = self._spun / self._seconds
        if self._helpless > 1 and share >= WARN_SHARE:
            _warn(share)


def _warn(share: float) -> None:
    global _warned
    if not _warned:
        _warned = True
        warn_caller(
            f"while this vector env waited for its workers, threads of this process that Python did not start used "
            f"{share:.1f} CPUs, which the workers lack. Probably threads of OpenMP or OpenBLAS spin after each "
            "parallel operation. Set OPENBLAS_NUM_THREADS=1 or OMP_WAIT_POLICY=passive before Python starts, or call "
            "torch.set_num_threads(1) around the rollout"
        )
