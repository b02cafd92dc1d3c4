"""Start worker processes by fork, forkserver or spawn, without importing the user's `__main__`.

vecenv sends env functions by cloudpickle, so that scripts need no `if __name__ == "__main__":` guard. vecenv's *plain
forkserver* has imported numpy and gymnasium, so that workers start in milliseconds and share memory pages.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from multiprocessing import (
    context,
    forkserver,
    popen_fork,
    popen_forkserver,
    popen_spawn_posix,
    process,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from typing import Any

from vecenv.backends.worker.worker_setup import leave_forkserver

START_METHODS = ("fork", "forkserver", "spawn")
DEFAULT_METHOD = "forkserver"
ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
PRELOAD = ["vecenv.backends.worker.forkserver_preload"]

_process: Any = process
_util: Any = util

_start_lock = threading.Lock()
_server: Any = forkserver.ForkServer()


def check_method(method: str | None) -> str:
    if method is None:
        return DEFAULT_METHOD
    if method not in START_METHODS:
        raise ValueError(f"context must be one of {START_METHODS} or None, got {method!r}")
    return method


def start_process(
    method: str, target: Callable[..., None], args: tuple[Any, ...], name: str, server: Any = None
) -> process.BaseProcess:
    """Start a process that runs `target(*args)`. Returns when the process exists, possibly before it runs.

    The caller holds `sigint_deferred`, because an interrupted start would leave a process without a handle.
    `server`: `PreloadedServer` that forks the process. If `None` or ended, the plain forkserver forks the process.
    """
    popen: Any = {"fork": popen_fork.Popen, "forkserver": partial(_ForkServerPopen, server), "spawn": _SpawnPopen}
    popen = popen[method]
    worker: Any = process.BaseProcess(target=target, args=args, name=name, daemon=False)  # envs may start processes
    worker._start_method = method
    if method != "fork":
        resource_tracker.ensure_running()  # before SIGINT is blocked below, because this call unblocks SIGINT
    # The new process inherits the mask. It must not see SIGINT before it has set its own handler.
    with _start_lock, _one_blas_thread(), _sigint_blocked():
        # `start()` raises in a daemonic process. It would also make multiprocessing end or join the worker at exit,
        # even in forked copies of this process.
        worker._popen = popen(worker)
        worker._sentinel = worker._popen.sentinel
    return worker


def parent_fds(worker: process.BaseProcess) -> tuple[int, ...]:
    """Return the parent's descriptors of the pipes by which parent and worker notice each other's end."""
    popen: Any = worker._popen  # type: ignore[attr-defined]
    return tuple(popen.finalizer._args)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _one_blas_thread() -> AbstractContextManager[None]:
    return _environment({name: "1" for name in ONE_THREAD if name not in os.environ})


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def search_path() -> list[str]:
    return [path or _process.ORIGINAL_DIR for path in sys.path]


def _preparation(name: str) -> dict[str, Any]:
    preparation = {
        "name": name,
        "authkey": process.current_process().authkey,
        "sys_path": search_path(),
        "sys_argv": sys.argv,
        "orig_dir": _process.ORIGINAL_DIR,
    }
    with suppress(FileNotFoundError):  # the working directory was removed
        preparation["dir"] = os.getcwd()
    return preparation


def _pickled(popen: Any, process_object: process.BaseProcess) -> bytes:
    preparation, body = io.BytesIO(), io.BytesIO()
    context.set_spawning_popen(popen)
    try:
        reduction.dump(process_object, body)
        reduction.dump(_preparation(process_object.name), preparation)
    finally:
        context.set_spawning_popen(None)
    return preparation.getvalue() + body.getvalue()


def _ensure_server() -> None:
    default: Any = context._default_context
    chosen = default._actual_context
    _server.set_forkserver_preload(PRELOAD)
    vars(sys.modules["__main__"]).setdefault(
        "__spec__", None
    )  # as in any script; pdb of Python 3.11 and 3.12 removes it
    # The server must find the same modules as this process. A file in the working directory must not hide a library.
    with _environment({"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(search_path())}):
        _server.ensure_running()
    # Starting the server sets multiprocessing's default start method. Undo this, because the user may still set it.
    default._actual_context = chosen


def _discard_server() -> None:
    global _server, _start_lock
    leave_forkserver(_server)
    _server, _start_lock = forkserver.ForkServer(), threading.Lock()


os.register_at_fork(after_in_child=_discard_server)


class _ForkServerPopen(popen_forkserver.Popen):
    _fds: list[int]

    def __init__(self, server: Any, process_obj: process.BaseProcess) -> None:
        self._server = server
        super().__init__(process_obj)

    def _launch(self, process_obj: process.BaseProcess) -> None:
        data = _pickled(self, process_obj)
        self.sentinel, write_end = self._connect(self._fds)
        # Keep a copy of `write_end` until this process ends, because on macOS the worker ends when this pipe hangs up.
        kept = os.dup(write_end)
        self.finalizer = util.Finalize(self, _util.close_fds, (kept, self.sentinel))
        # BrokenPipeError: the worker has ended, which the pool notices later.
        with suppress(BrokenPipeError), open(write_end, "wb", closefd=True) as stream:
            stream.write(data)
        self.pid = forkserver.read_signed(self.sentinel)

    def _connect(self, fds: list[int]) -> Any:
        if self._server is not None:
            try:
                return self._server.connect_to_new_process(fds)
            except OSError:
                self._server = None
        _ensure_server()
        return _server.connect_to_new_process(fds)


class _SpawnPopen(popen_spawn_posix.Popen):
    _fds: list[int]

    def _launch(self, process_obj: process.BaseProcess) -> None:
        tracker = resource_tracker.getfd()
        assert tracker is not None
        self._fds.append(tracker)
        data = _pickled(self, process_obj)
        self.sentinel, child_write = os.pipe()
        child_read, write_end = os.pipe()
        command = spawn.get_command_line(tracker_fd=tracker, pipe_handle=child_read)
        self._fds.extend([child_read, child_write])
        self.finalizer = util.Finalize(self, _util.close_fds, (self.sentinel, write_end))
        self.pid = _util.spawnv_passfds(spawn.get_executable(), command, self._fds)
        os.close(child_read)
        os.close(child_write)
        with suppress(BrokenPipeError), open(write_end, "wb", closefd=False) as stream:
            stream.write(data)
