"""System calls that only Linux has. If a function returns `None` or False, the caller uses a fallback.

If `VECENV_PORTABLE=1` is set before Python starts, these calls are disabled, to test the fallbacks.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PORTABLE = os.environ.get("VECENV_PORTABLE", "") not in ("", "0")
UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
"""Arguments of `mmap.mmap`. From Python 3.13 on, a mapping then keeps no duplicate of the file descriptor."""
_os: Any = os
_fcntl: Any = fcntl


def _call(name: str) -> Callable[..., Any] | None:
    """Return a function of `os`, or `None` if missing. Not cached, because tests set `PORTABLE`."""
    return None if PORTABLE else getattr(os, name, None)


def eventfd() -> int | None:
    create = _call("eventfd")
    return None if create is None else create(0, _os.EFD_CLOEXEC | _os.EFD_NONBLOCK)


def memfd(name: str) -> int | None:
    create = _call("memfd_create")
    return None if create is None else create(name, _os.MFD_CLOEXEC | _os.MFD_ALLOW_SEALING)


def seal_size(fd: int) -> None:
    if not PORTABLE and hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _fcntl.F_SEAL_SHRINK | _fcntl.F_SEAL_GROW)


def allocate(fd: int, size: int) -> bool:
    """Reserve the first `size` bytes of a file. Return False if the system cannot. Raises OSError without room."""
    reserve = _call("posix_fallocate")
    if reserve is not None:
        reserve(fd, 0, size)
    return reserve is not None


def pidfd(pid: int) -> int | None:
    open_child = _call("pidfd_open")
    try:
        return None if open_child is None else int(open_child(pid))
    except OSError:  # refused by an old kernel or a sandbox
        return None


def has_pidfds() -> bool:
    return _call("pidfd_open") is not None


def signal_at_end_of_starter(number: int) -> bool:
    """Let the kernel send signal `number` (0: no signal) to this process when the thread that started it ends."""
    if not signals_at_end_of_starter():
        return False
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, number)
    return True


def signals_at_end_of_starter() -> bool:
    return not PORTABLE and sys.platform == "linux"


def polls_for_hangup() -> bool:
    """Return True if `poll` with the event mask 0 reports a hang-up (not on macOS)."""
    return not PORTABLE and sys.platform != "darwin"


def allowed_cpus() -> set[int] | None:
    ask = _call("sched_getaffinity")
    return None if ask is None else ask(0)


def allow_cpus(cpus: set[int]) -> None:
    """Restrict this process to `cpus`. Call only if `binds_to_cpus()`."""
    _os.sched_setaffinity(0, cpus)


def binds_to_cpus() -> bool:
    return _call("sched_setaffinity") is not None


def system_file(path: str) -> str | None:
    with contextlib.suppress(OSError):
        return None if PORTABLE else Path(path).read_text(errors="replace")
    return None


def thread_ids() -> list[int] | None:
    if not PORTABLE and os.path.isdir("/proc/self/task"):
        return [int(name) for name in os.listdir("/proc/self/task")]
    return None


def path_of_descriptor(fd: int) -> str | None:
    """Return a path of an open file or folder, or `None`. In this process, the path stays valid after a rename."""
    if not PORTABLE and os.path.isdir("/proc/self/fd"):
        return f"/proc/self/fd/{fd}"
    return None


IN_ORDER = not PORTABLE and platform.machine() in ("x86_64", "AMD64")
"""True if the processor keeps the order of writes and of reads, so that only a read after a write needs a fence."""
