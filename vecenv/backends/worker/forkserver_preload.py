"""What our forkserver imports: the worker's code, so that workers have it loaded, and what to do when the server ends.

The server ends with the parent. It answers even while a worker is stuck in native code, so it is the one to kill the
workers' process groups, with all that their envs have started. Imported nowhere else.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
from pathlib import Path

# Loaded for the workers.
import vecenv.backends.worker.main
import vecenv.backends.worker.shmem_server
import vecenv.backends.worker.subproc_server  # noqa: F401


def _kill_workers() -> None:
    pid = os.getpid()
    with contextlib.suppress(OSError):  # a kernel without this file: the workers' own watch has to do
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(int(child), signal.SIGKILL)


# Whoever imports this without being the server (a tool that looks at all modules) keeps its signals.
if any("multiprocessing.forkserver import main" in argument for argument in sys.orig_argv):
    # A closed terminal or a scheduler signals the whole group: the server has to outlive the parent for a moment.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    atexit.register(_kill_workers)
    # What is loaded stays: collectors in workers need not look at it, which would also copy its pages.
    gc.collect()
    gc.freeze()
