"""Module that the forkserver imports: loads the worker's code, and kills the workers when the server ends.

The server ends with the parent. It can act even while a worker is stuck in native code, so it kills the workers'
process groups.
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


def _noted_fork() -> int:
    pid = _fork()
    if pid:
        _workers.add(pid)
    else:
        os.fork = _fork
        _workers.clear()
    return pid


def record_forks() -> None:
    os.fork = _noted_fork


def kill_workers() -> None:
    for pid in _workers:
        # ChildProcessError: the worker was reaped, so its pid may belong to a different process.
        with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
            os.waitpid(pid, os.WNOHANG)
            os.killpg(pid, signal.SIGKILL)


# A process that imports this module and is not the server keeps its signal handlers.
if any("multiprocessing.forkserver import main" in argument for argument in sys.orig_argv):
    # The server must outlive the parent for a moment. In its own group, it does not receive signals for the parent's
    # group or for the group of a worker with vector envs.
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    atexit.register(kill_workers)
    record_forks()
    # Workers' garbage collectors then skip the loaded objects, which would also copy memory pages.
    gc.collect()
    gc.freeze()
