"""Module that the forkserver imports: loads the worker's code, and kills the workers when the server ends.

The server ends with the parent. It can act even while a worker is stuck in native code, so it kills the process groups
of the workers, including processes of their envs.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys

_fork = os.fork
_workers: set[int] = set()
"""Pids of all processes that the server has forked, including ended processes."""


def _noted_fork() -> int:
    pid = _fork()
    if pid:
        _workers.add(pid)
    else:  # a worker; its forks are not recorded
        os.fork = _fork
        _workers.clear()
    return pid


def record_forks() -> None:
    """Record the workers that this process forks from now on."""
    os.fork = _noted_fork


def kill_workers() -> None:
    """Kill the workers and the processes of their envs."""
    for pid in _workers:
        # ChildProcessError: the worker was reaped, so its pid may belong to a different process.
        with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
            os.waitpid(pid, os.WNOHANG)
            os.killpg(pid, signal.SIGKILL)


# Other processes that import this module, for example documentation tools, keep their signal handlers.
if any("multiprocessing.forkserver import main" in argument for argument in sys.orig_argv):
    # The server must outlive the parent for a moment. So it must not receive signals that a terminal or scheduler sends
    # to the group, or that kill the group of a worker with vector envs.
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    atexit.register(kill_workers)
    record_forks()
    # Workers' garbage collectors then skip the loaded objects, which would also copy memory pages.
    gc.collect()
    gc.freeze()
