"""Interpreter lock (GIL) of free-threaded Python: its state, the import that turned it on, and stacks of threads."""

from __future__ import annotations

import faulthandler
import importlib.machinery
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

from vecenv.backends.memory.shared_memory import anonymous_file
from vecenv.backends.pool.worker_handle import written_stack
from vecenv.errors import warn_caller


def _always() -> bool:
    return True


has_gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", _always)
"""Return True if the interpreter lock is on. The import of a module that needs the lock turns it on permanently."""

gil_modules: list[str] = []
"""Name of the extension module that turned the interpreter lock on, if any. `warn_of_gil` appends "", to warn once."""


def _watched(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_module(self: Any, spec: Any) -> Any:
        before = has_gil()
        module = create(self, spec)
        if has_gil() and not before:
            gil_modules.append(spec.name)
        return module

    return create_module


def warn_of_gil() -> None:
    if gil_modules and gil_modules[-1]:
        warn_caller(
            f"importing {gil_modules[0]!r} has turned the interpreter lock on, so envs in threads take turns: use "
            "ShmemVectorEnv for envs that compute in Python, or install a release of the imported library that "
            "supports free-threaded Python"
        )
        gil_modules.append("")


if not has_gil():
    # Record the module's name during its import, because Python does not keep this name.
    _loader: Any = importlib.machinery.ExtensionFileLoader
    _loader.create_module = _watched(_loader.create_module)

STACK_SIGNAL = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2
"""Signal that makes a thread write its stack. Used only without the interpreter lock."""
_stacks: list[int] = []
_lock = Lock()


def stack_of_thread(ident: int) -> str:
    """Return the Python stack of the thread `ident`. If there is none, return the reason in brackets.

    Without the interpreter lock, frames of another thread may change while they are read. Therefore, the thread writes
    its own stack in a signal handler. The handler stays installed, because the signal may arrive late.
    """
    if has_gil():
        frame = sys._current_frames().get(ident)
        return "(the thread has ended)" if frame is None else "".join(traceback.format_stack(frame))
    with _lock:
        if not _stacks:
            if signal.getsignal(STACK_SIGNAL) is not signal.SIG_DFL:
                return f"(no stack, because the program has a handler for signal {STACK_SIGNAL}, which vecenv needs)"
            _stacks.append(anonymous_file("stacks"))
            faulthandler.register(STACK_SIGNAL, file=_stacks[0], all_threads=False)
        return written_stack(_stacks[0], partial(signal.pthread_kill, ident, STACK_SIGNAL))
