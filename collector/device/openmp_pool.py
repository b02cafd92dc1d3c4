"""The threads that OpenMP keeps for the next operation of torch, and that spin for milliseconds after each."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from collector.device.tensors import torch

SOFT = 1
"""`omp_pause_soft`: settings, such as numbers of threads, stay as they are."""
FORKED_NOT_EXECUTED = 0x40
"""`PF_FORKNOEXEC` of Linux's `sched.h`."""


def _is_forked() -> bool:
    """Whether this process was forked and runs the same program still, or the system does not say."""
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return True
    return bool(int(stat.rpartition(")")[2].split()[6]) & FORKED_NOT_EXECUTED)


def _find_pause() -> Any:
    """`omp_pause_resource_all` of the libgomp that torch uses, or None."""
    if _is_forked():
        return None
    library = ctypes.CDLL(torch._C.__file__)  # which also finds the names of the libraries that torch is linked with
    # LLVM's and Intel's runtimes would pause the pools of all threads, also of those that are computing.
    return None if hasattr(library, "kmp_set_blocktime") else getattr(library, "omp_pause_resource_all", None)


_pause = _find_pause()


def _forget_pause() -> None:
    global _pause
    _pause = None


# In a forked process the call waits for ever for the threads of an inherited pool, which are only in its parent.
os.register_at_fork(after_in_child=_forget_pause)


def release_pool() -> None:
    """End the calling thread's pool; its next operation on several threads makes a new one, in about 40 us.

    Does nothing where the OpenMP runtime is not libgomp, or this process was forked.
    """
    if _pause is not None:
        _pause(SOFT)
