"""Keep threads of OpenMP and OpenBLAS in this process from spinning on CPUs that workers need.

After each parallel operation the threads of libgomp (torch) spin for milliseconds, and those of OpenBLAS (numpy, scipy)
for about 20, in case another one follows. OpenMP 5.0 can end the idle threads of the calling thread's pool; the next
parallel region starts new ones in about 40 us. OpenBLAS reads how long to spin whenever it starts its threads: they are
ended once, as by every `fork()`, and the next product starts them with a short spin. Results stay the same, bit by bit.
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
"""`omp_pause_soft`: thread counts and other settings stay as they are."""
SPIN, SPIN_EXPONENT = "OPENBLAS_THREAD_TIMEOUT", "14"
"""OpenBLAS's threads sleep after 2**14 cycles, about 6 us, without work (by default 2**26)."""
FORKED_NOT_EXECUTED = 0x40
"""`PF_FORKNOEXEC` of Linux's `sched.h`."""

WORTH = 1e-4
"""Seconds of CPU time in a round from which the threads are ended: about what it costs to end and start them."""
SAMPLED, PERIOD = 8, 160
"""Of so many rounds the first `SAMPLED` measure what the threads use; the pool is released before the others."""
PAUSE = 16
"""Reviews to skip after a sample that found nothing to do."""
WARN_SHARE = 0.5
"""CPUs that spinning threads use in two samples from which the caller is warned where nothing ends them."""

_releases: list[Callable[[int], int]] = []
"""`omp_pause_resource_all` of each libgomp that was found."""
_shortened: set[str] = set()
"""The OpenBLAS libraries whose threads spin for a short time only."""
_warned = False


def _was_forked() -> bool:
    """True if this process was forked and still runs the same program, or the system does not say."""
    stat = system_file("/proc/self/stat")
    return stat is None or bool(int(stat.rpartition(")")[2].split()[6]) & FORKED_NOT_EXECUTED)


# In a forked child that inherited a pool the call would wait for ever for threads that do not exist there.
_usable = os.environ.get("VECENV_RELEASE_OPENMP", "1") != "0" and not _was_forked()


def _disable() -> None:
    global _usable
    _usable = False


os.register_at_fork(after_in_child=_disable)


def is_enabled() -> bool:
    """True if vector envs of this process may look at its threads: False in forked children and where that cannot be
    done, and with `VECENV_RELEASE_OPENMP=0` in the environment.
    """
    return _usable and thread_ids() is not None


def can_release() -> bool:
    """True if a libgomp that offers the call is loaded, and no torch.profiler records.

    The runtimes of LLVM and Intel would act on the pools of all threads, so they are left alone.
    """
    if _usable and not _releases:
        found = (getattr(library, "omp_pause_resource_all", None) for _, library in _loaded("libgomp"))
        _releases.extend(release for release in found if release is not None)  # libgomp has it since GCC 9
    profiler = sys.modules.get("torch.autograd.profiler")
    profiles = getattr(profiler, "_is_profiler_enabled", False)  # torch has no public name for it
    return _usable and bool(_releases) and not profiles


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


def shorten_openblas_spin() -> bool:
    """Have the threads of each loaded OpenBLAS sleep right after a product, once a library: whether one was new.

    Does nothing while there is a second Python thread, whose products would lose their threads, nor where the user has
    set `OPENBLAS_THREAD_TIMEOUT`.
    """
    if not _usable or SPIN in os.environ or len(sys._current_frames()) > 1:
        return False
    new = [(path, library) for path, library in _loaded("openblas") if path not in _shortened and _has_threads(library)]
    os.putenv(SPIN, SPIN_EXPONENT)  # not os.environ, which children inherit
    for path, library in new:
        library.openblas_read_env()
        library.blas_thread_shutdown_()
        _shortened.add(path)
    os.unsetenv(SPIN)
    return bool(new)


def _has_threads(library: Any) -> bool:
    """True if an OpenBLAS has threads of its own (not OpenMP's) and the functions to end them."""
    names = [f"{prefix}openblas_get_parallel{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_")]
    kind = next((found for name in names if (found := getattr(library, name, None))), None)
    complete = hasattr(library, "openblas_read_env") and hasattr(library, "blas_thread_shutdown_")
    return kind is not None and complete and kind() == 1


def _loaded(name: str) -> list[tuple[str, Any]]:
    """The paths of the libraries in this process whose file names contain `name`, each with the library."""
    import ctypes

    lines = (system_file("/proc/self/maps") or "").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if name in line.rpartition("/")[2]}
    libraries = []
    for path in sorted(path for path in paths if ".so" in path):
        with contextlib.suppress(OSError):  # its file was replaced while the program ran
            # PyDLL: no other Python thread starts a product meanwhile.
            libraries.append((path, ctypes.PyDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)))
    return libraries


def unknown_threads() -> list[int]:
    """The ids of the threads that Python neither started nor runs in: those of OpenMP, OpenBLAS and the like."""
    known = {thread.native_id for thread in threading.enumerate()}
    return [tid for tid in thread_ids() or () if tid not in known]


def cpu_seconds(tids: Iterable[int]) -> float:
    """The CPU time that these threads of this process have used since they were started."""
    seconds = 0.0
    for tid in tids:
        with contextlib.suppress(OSError):  # it has ended
            seconds += time.clock_gettime((~tid << 3) | 6)  # the kernel's number for the clock of a thread
    return seconds


class SpinningThreads:
    """Ends the threads of the caller that spin while the `num_workers` worker processes of a vector env step envs.

    `review` is called once in a few rounds. It engages this object where other threads of the process use CPU time;
    then `before_round` is called before each round, and `after_round` when its answers are there. The first rounds
    measure what threads unknown to Python use beside spare CPUs. If that is worth it, OpenBLAS's spin is shortened, or
    else the OpenMP pool is released before each round, until a later sample finds nothing to end, or rounds that take
    no less time: beside programs that compute, new threads wait for a CPU.
    """

    def __init__(self, num_workers: int) -> None:
        self._spare = max(0, usable_cpus() - num_workers)
        self.engaged = False
        self.rounds = 0
        """Before how many the pool was released."""
        self._others = time.process_time() - time.thread_time()
        self._pause = self._helpless = 0
        self._sample()

    def stats(self) -> dict[str, Any]:
        """The entries that it adds to `stats()` of the vector env."""
        active = self.engaged and self._round > SAMPLED
        return {"openmp_active": active, "openmp_rounds": self.rounds, "openblas_shortened": bool(_shortened)}

    def _sample(self) -> None:
        self._round = 0
        self._began: tuple[float, list[int], float] | None = None
        self._begins: list[float] = []
        self._seconds = self._spun = 0.0

    def review(self, rounds: int) -> None:
        """Called after each so many rounds while it is not engaged."""
        others = time.process_time() - time.thread_time()
        used, self._others = others - self._others, others
        self._pause -= 1
        if self._pause < 0 and used > WORTH * rounds:
            self.engaged = True
            self._sample()

    def before_round(self) -> None:
        """Measure the round, or release the pool."""
        self._round += 1
        if self._round <= 2 * SAMPLED + 1:
            self._begins.append(time.perf_counter())
        if self._round <= SAMPLED:
            threads = unknown_threads()
            self._began = time.perf_counter(), threads, cpu_seconds(threads)
        else:
            threads = unknown_threads() if self._round == SAMPLED + 1 else []
            self.rounds += release_pool()
            if threads and len(unknown_threads()) >= len(threads):
                self._fail()

    def after_round(self) -> None:
        """Decide once all rounds of the sample are over, and sample again after a while."""
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
        if self._spun - self._spare * self._seconds < WORTH * SAMPLED:
            self._pause, self.engaged = PAUSE, False
        elif shorten_openblas_spin():
            self._sample()
        elif not can_release():
            self._fail()

    def _is_faster(self) -> bool:
        """True if a round, and the caller's work until the next, takes less time since the pool is released."""
        begins = self._begins
        seconds = [after - before for before, after in pairwise(begins)]
        before, released = sorted(seconds[:SAMPLED]), sorted(seconds[SAMPLED:])
        return released[SAMPLED // 2] < before[SAMPLED // 2]

    def _fail(self) -> None:
        """Stop for a while: threads take CPUs that workers lack, and nothing ends them."""
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
            f"{share:.1f} CPUs, which the workers lack: {_pools()}. They spin after each parallel operation. Set "
            "OPENBLAS_NUM_THREADS=1 or OMP_WAIT_POLICY=passive before Python starts, or call torch.set_num_threads(1) "
            "around the rollout"
        )


def _pools() -> str:
    """The thread pools of this process, where threadpoolctl is installed."""
    try:
        from threadpoolctl import threadpool_info  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return "probably those of OpenMP or OpenBLAS (threadpoolctl, if installed, names them)"
    pools = [f"{p['internal_api']} with {p['num_threads']} threads" for p in threadpool_info() if p["num_threads"] > 1]
    return ", ".join(pools) or "of a library that threadpoolctl does not know"
