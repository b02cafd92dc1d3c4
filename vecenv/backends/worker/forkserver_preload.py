"""Imported by our forkserver: the worker's code, so that workers have it loaded, and what to do when the server ends.

The server ends with the parent. It answers even while a worker is stuck in native code, so it is the one to kill the
workers' process groups, with all that their envs have started. Imported by the servers alone.
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
"""Every process that the server has forked, those included that have ended."""


def _noted_fork() -> int:
    pid = _fork()
    if pid:
        _workers.add(pid)
    else:  # a worker: what it forks is its own
        os.fork = _fork
        _workers.clear()
    return pid


def record_forks() -> None:
    """Record the workers that this process forks from now on."""
    os.fork = _noted_fork


def kill_workers() -> None:
    """Kill what the server has forked, with all that the envs have started."""
    for pid in _workers:
        # ChildProcessError: it was reaped, so that another process may have its number.
        with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
            os.waitpid(pid, os.WNOHANG)
            os.killpg(pid, signal.SIGKILL)


# A process that imports this and is not the server (a tool that imports all modules) keeps its signal handlers.
if any("multiprocessing.forkserver import main" in argument for argument in sys.orig_argv):
    # A closed terminal or a scheduler signals the whole group, and a worker that has vector envs of its own is killed
    # with its group: the server has to outlive the parent for a moment.
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    atexit.register(kill_workers)
    record_forks()
    # The garbage collectors of workers do not scan what is loaded now, which would also copy its pages.
    gc.collect()
    gc.freeze()
