"""Closing of engines: by a call, at garbage collection, or at exit."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from typing import Any, NoReturn

from vecenv.backends.backend import Backend
from vecenv.errors import NotStartedError, warn_caller

CLOSE_TIMEOUT = 5.0
"""Seconds until `close` ends workers by force."""

CALL_TIMEOUT = 1.0
"""Seconds that `close` waits for the end of a call in another thread."""

_open: weakref.WeakSet[Any] = weakref.WeakSet()


def _disable_all() -> None:
    """Disable all engines in a forked process, because the workers belong to the parent."""
    for owner in list(_open):
        owner.usable = False


os.register_at_fork(after_in_child=_disable_all)


class Lifetime:
    """Object that closes a backend in `close`, or when `owner` is dropped (with a ResourceWarning if `warns`)."""

    def __init__(self, owner: Any, backend: Backend, name: str, warns: bool) -> None:
        self.pid = os.getpid()
        self._backend: Backend | None = backend
        self._finalizer = weakref.finalize(owner, _close_dropped, backend, name if warns else None, self.pid)
        self._finalizer.atexit = False
        _open.add(owner)

    def discard(self) -> None:
        self._backend = None
        self._finalizer.detach()

    def close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is None or self._finalizer.detach() is None or self.pid != os.getpid():
            return
        for problem in backend.close(CLOSE_TIMEOUT):
            warn_caller(problem)


@atexit.register
def _end_all() -> None:
    """Close vector envs that have worker processes. Leave envs in this process open.

    This function runs after the exit functions of libraries that were imported after vecenv, and `close` of an env may
    need such a library. gymnasium's SyncVectorEnv leaves its envs open too.
    """
    for owner in list(_open):
        if not owner.usable:  # closed, or copied by a fork
            continue
        if owner.backend.hosts_here:
            owner.backend.abandon_envs(CLOSE_TIMEOUT)
            # The finalizer holds the envs. Without it, Python deletes them together with the vector env.
            owner.lifetime.discard()
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            owner.close()


def _close_dropped(backend: Backend, name: str | None, pid: int) -> None:
    """Close the backend of a garbage-collected vector env, unless this process is a forked copy."""
    if pid == os.getpid():
        backend.close(CLOSE_TIMEOUT)
        if name is not None:
            warnings.warn(f"unclosed {name}: call close() or use it in a with statement", ResourceWarning, stacklevel=2)


class NotStarted:
    """Placeholder for an engine before its start. Attributes except `closed` and `close` raise NotStartedError."""

    closed = True

    def __init__(self, name: str) -> None:
        self._name = name

    def close(self) -> None:
        """Do nothing."""

    def __getattr__(self, attribute: str) -> NoReturn:
        raise NotStartedError(f"this {self._name} has lazy=True and no envs yet: call start() or reset() first")
