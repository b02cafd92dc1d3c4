"""`Vitals`: counts the episodes and the memory of a worker, so that the parent can replace the worker in time."""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

from vecenv.backends.memory.shared_memory import MEMORY, PAGE, RESETS
from vecenv.portability import system_file

INTERVAL = 0.1
"""Seconds between two measurements of memory."""


class Vitals:
    """Function that the host calls before each reset of an env. It writes two numbers into the worker's `line`."""

    def __init__(self, line: Any) -> None:
        self._line = line
        self._next = 0.0

    def __call__(self) -> None:
        self._line[RESETS] += 1
        if time.monotonic() >= self._next:
            self._line[MEMORY] = own_memory()
            self._next = time.monotonic() + INTERVAL


def own_memory() -> int:
    """Return the bytes of memory that would be free if this process and its children ended.

    Without Linux's /proc: the maximum size of this process so far.
    """
    own = _private_bytes("self")
    if own is None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return own + sum(_private_bytes(pid) or 0 for pid in _descendants(str(os.getpid())))


def _private_bytes(pid: str) -> int | None:
    numbers = (system_file(f"/proc/{pid}/statm") or "").split()
    return (int(numbers[1]) - int(numbers[2])) * PAGE if len(numbers) > 2 else None


def _descendants(pid: str) -> list[str]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:  # the process has ended
        return []
    children = [child for task in tasks for child in (system_file(f"/proc/{pid}/task/{task}/children") or "").split()]
    return [each for child in children for each in (child, *_descendants(child))]
