"""Module that the forkserver imports. When the forkserver ends, it kills the process groups of its workers.

The forkserver ends with the parent, but a worker that is stuck in native code cannot end itself. A parent that is
interrupted in a request does not end the forkserver.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import signal
import sys
from multiprocessing import reduction
from typing import Any

_fork = os.fork
_recvfds: Any = reduction.recvfds
_workers: set[int] = set()


def _noted_fork() -> int:
    pid = _fork()
    if pid:
        _workers.add(pid)
    else:
        os.fork, vars(reduction)["recvfds"] = _fork, _recvfds
        _workers.clear()
    return pid


def _recvfds_of_request(*args: Any) -> Any:
    """Receive the descriptors of a request. Raise the error that the forkserver ignores if there are none.

    Without this, a parent that an exception interrupts before it sends them would end the forkserver. Python 3.14
    ignores EOFError too.
    """
    try:
        return _recvfds(*args)
    except EOFError:
        raise ConnectionAbortedError(errno.ECONNABORTED, "an interrupted request") from None


def record_forks() -> None:
    """Record the workers that this process forks, and survive interrupted requests. Its children do neither."""
    os.fork, vars(reduction)["recvfds"] = _noted_fork, _recvfds_of_request


def kill_workers() -> None:
    for pid in _workers:
        # ChildProcessError: the worker was reaped. Its pid may belong to a different process, so do not kill.
        with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
            os.waitpid(pid, os.WNOHANG)
            os.killpg(pid, signal.SIGKILL)


# In other processes, the import changes no signal handlers.
if any("multiprocessing.forkserver import main" in argument for argument in sys.orig_argv):
    # The server must outlive the parent to kill workers. In its own group, it gets no signals for the parent's group.
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    atexit.register(kill_workers)
    record_forks()
    # The workers' garbage collectors skip frozen objects, so that the memory pages stay shared.
    gc.collect()
    gc.freeze()
