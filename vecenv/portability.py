"""What Linux has and other systems lack, asked for here alone: None or False means that the caller takes its fallback.

`VECENV_PORTABLE=1` in the environment, set before Python starts, hides all of it in every process, so that what runs on
a Mac can be tested on Linux. `VECENV_PORTABLE_LOG` names a file to which each fallback that is taken appends a line,
"name<TAB>pid"; `FALLBACKS` has the names.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PORTABLE = os.environ.get("VECENV_PORTABLE", "") not in ("", "0")
_os: Any = os
_fcntl: Any = fcntl

FALLBACKS = {
    "eventfd": "wake-ups go through a pipe",
    "memfd_create": "shared memory is an unlinked file in the temporary folder, without seals",
    "posix_fallocate": "the free space of the file system is checked instead of being reserved",
    "pidfd_open": "children of a worker close its channel, so that the channel's end is the worker's",
    "prctl": "a guard process watches the parent for its worker; the forkserver kills its own workers",
    "poll": "the end of the parent is the end of multiprocessing's pipe, because poll cannot wait for a hang-up alone",
    "sched_getaffinity": "all CPUs count as usable",
    "sched_setaffinity": "affinity=True warns that it has no effect; placement is left to the system",
    "/proc": "the machine's memory counts as available",
    "/sys": "there are no control groups, so no limits of theirs",
    "memory order": "fences order what processes write and read",
}


def _missing(name: str) -> None:
    """Note that a fallback is taken."""
    if log := os.environ.get("VECENV_PORTABLE_LOG"):
        # One short write to a file opened for appending: lines of several processes do not mix.
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(file, f"{name}\t{os.getpid()}\n".encode())
        os.close(file)


def _call(name: str) -> Callable[..., Any] | None:
    """The function of `os`, looked up when it is used."""
    found: Callable[..., Any] | None = None if PORTABLE else getattr(os, name, None)
    if found is None:
        _missing(name)
    return found


def eventfd() -> int | None:
    """A new eventfd that does not block."""
    create = _call("eventfd")
    return None if create is None else create(0, _os.EFD_CLOEXEC | _os.EFD_NONBLOCK)


def memfd(name: str) -> int | None:
    """A new unnamed file in memory, to be sealed."""
    create = _call("memfd_create")
    return None if create is None else create(name, _os.MFD_CLOEXEC | _os.MFD_ALLOW_SEALING)


def seal_size(fd: int) -> None:
    """Forbid every process to change the size of a file in memory; there are no seals without memfd."""
    if not PORTABLE and hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _fcntl.F_SEAL_SHRINK | _fcntl.F_SEAL_GROW)


def allocate(fd: int, size: int) -> bool:
    """Reserve the first `size` bytes of a file, or return False: OSError where there is no room."""
    reserve = _call("posix_fallocate")
    if reserve is not None:
        reserve(fd, 0, size)
    return reserve is not None


def pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the child ends."""
    open_child = _call("pidfd_open")
    try:
        return None if open_child is None else int(open_child(pid))
    except OSError:  # the kernel is older than Python, or a sandbox refuses
        return None


def has_pidfds() -> bool:
    """Whether the parent of this process watches it by a pidfd."""
    return _call("pidfd_open") is not None


def signal_at_end_of_starter(number: int) -> bool:
    """Have the kernel signal this process when the thread that started it ends, or return False."""
    if not signals_at_end_of_starter():
        _missing("prctl")
        return False
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, number)
    return True


def signals_at_end_of_starter() -> bool:
    """Whether the kernel does so."""
    return not PORTABLE and sys.platform == "linux"


def polls_for_hangup() -> bool:
    """Whether `poll` reports the hang-up of a socket that is polled for nothing else.

    A Mac's never does for 0, and for POLLHUP it stops to look once data has arrived.
    """
    if PORTABLE or sys.platform == "darwin":
        _missing("poll")
        return False
    return True


def allowed_cpus(pid: int = 0) -> set[int] | None:
    """The CPUs on which a process may run."""
    ask = _call("sched_getaffinity")
    return None if ask is None else ask(pid)


def allow_cpus(pid: int, cpus: set[int]) -> None:
    """Have a process run on these CPUs; to be called only where `allowed_cpus` knows any."""
    _os.sched_setaffinity(pid, cpus)


def binds_to_cpus() -> bool:
    """Whether `allow_cpus` works here."""
    return _call("sched_setaffinity") is not None


def system_file(path: str) -> str | None:
    """The text of a file by which the kernel speaks, in /proc or /sys."""
    if not PORTABLE:
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            pass
    _missing("/" + path.split("/")[1])
    return None


def _writes_in_order() -> bool:
    if PORTABLE or platform.machine() not in ("x86_64", "AMD64"):
        _missing("memory order")
        return False
    return True


IN_ORDER = _writes_in_order()
"""Whether processors of this kind write in the order of the program and read in the order of the program. Only what
they write before they read may be seen after it, without a fence."""
