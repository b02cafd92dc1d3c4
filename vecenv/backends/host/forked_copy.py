"""`end_copy`: ends a copy of this process that an env's method has forked, when the copy leaves the method.

The copy would otherwise continue in the worker's loop, write into shared memory, and answer in place of the worker.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

_mark: list[bool] = []


def copy_mark() -> list[bool]:
    """Return a list that is empty in this process, and not in copies that are forked from now on.

    Testing the list is faster than `os.getpid()`, which is a system call.
    """
    return _mark


def _mark_copy() -> None:
    global _mark
    _mark.append(True)
    _mark = []  # hosts of this copy must not end it


os.register_at_fork(after_in_child=_mark_copy)


def end_copy(error: BaseException | None = None) -> NoReturn:
    """End this process like a program that returns, or that raises `error`.

    Exit functions and `finally` blocks do not run, because they belong to the worker.
    """
    status = 1
    try:
        status = _status(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _status(error: BaseException | None) -> int:
    """Return the exit status after `error`, and print the error as Python does at the end of a program."""
    code = error.code if isinstance(error, SystemExit) else error
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    if isinstance(code, BaseException):
        sys.stderr.write(f"The process {os.getpid()}, which an env has forked, ended with an exception:\n")
        traceback.print_exception(code)
    else:
        sys.stderr.write(f"{code}\n")
    return 1
