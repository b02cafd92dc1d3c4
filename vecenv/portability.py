"""System calls that only Linux has. A result of None or False tells the caller to use its fallback.

`VECENV_PORTABLE=1` in the environment, set before Python starts, hides them in every process, so that the fallbacks of
macOS can be tested on Linux; docs/explanation/design.md lists them.
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
_os: Any = os
_fcntl: Any = fcntl


def _call(name: str) -> Callable[..., Any] | None:
    """The function of `os`, or None; looked up at each use, so that tests can set `PORTABLE`."""
    return None if PORTABLE else getattr(os, name, None)


def eventfd() -> int | None:
    """A new eventfd that does not block."""
    create = _call("eventfd")
    return None if create is None else create(0, _os.EFD_CLOEXEC | _os.EFD_NONBLOCK)


def memfd(name: str) -> int | None:
    """A new unnamed file in memory, to be sealed."""
    create = _call("memfd_create")
    return None if create is None else create(name, _os.MFD_CLOEXEC | _os.MFD_ALLOW_SEALING)


def seal_size(fd: int) -> None:
    """Forbid all processes to change the size of a file in memory; without memfd this does nothing."""
    if not PORTABLE and hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _fcntl.F_SEAL_SHRINK | _fcntl.F_SEAL_GROW)


def allocate(fd: int, size: int) -> bool:
    """Reserve the first `size` bytes of a file, or return False. Raises OSError if there is no room for them."""
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
    """True if the parent of this process watches it by a pidfd."""
    return _call("pidfd_open") is not None


def signal_at_end_of_starter(number: int) -> bool:
    """Have the kernel signal this process when the thread that started it ends, or return False."""
    if not signals_at_end_of_starter():
        return False
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, number)
    return True


def signals_at_end_of_starter() -> bool:
    """True if the kernel can signal a process when the thread that started it ends."""
    return not PORTABLE and sys.platform == "linux"


def polls_for_hangup() -> bool:
    """True if `poll` reports the hang-up of a socket that is polled for nothing else.

    That of macOS never does for the event mask 0, and for POLLHUP it stops doing so once data has arrived.
    """
    return not PORTABLE and sys.platform != "darwin"


def allowed_cpus(pid: int = 0) -> set[int] | None:
    """The CPUs on which a process may run."""
    ask = _call("sched_getaffinity")
    return None if ask is None else ask(pid)


def allow_cpus(pid: int, cpus: set[int]) -> None:
    """Restrict a process to these CPUs; only where `binds_to_cpus()`."""
    _os.sched_setaffinity(pid, cpus)


def binds_to_cpus() -> bool:
    """True if `allow_cpus` works here."""
    return _call("sched_setaffinity") is not None


def system_file(path: str) -> str | None:
    """The text of a file of the kernel, in /proc or /sys."""
    with contextlib.suppress(OSError):
        return None if PORTABLE else Path(path).read_text(errors="replace")
    return None


def thread_ids() -> list[int] | None:
    """The ids of the threads of this process, in whatever library they were started."""
    if not PORTABLE and os.path.isdir("/proc/self/task"):
        return [int(name) for name in os.listdir("/proc/self/task")]
    return None


def path_of_descriptor(fd: int) -> str | None:
    """A path that leads to an open file or folder, whatever has its name by then; it is valid in this process."""
    if not PORTABLE and os.path.isdir("/proc/self/fd"):
        return f"/proc/self/fd/{fd}"
    return None


IN_ORDER = not PORTABLE and platform.machine() in ("x86_64", "AMD64")
"""True if the processor does its writes in program order, and its reads too. Only a write before a read may become
visible after it, which a fence prevents."""
