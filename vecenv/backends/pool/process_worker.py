"""Pool of worker processes on this machine, and the handle of a worker process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import weakref
from collections.abc import Sequence
from typing import Any, cast

from vecenv.backends.ipc.messages import Channel
from vecenv.backends.pool.preloading import preloaded_server
from vecenv.backends.pool.start_methods import ONE_THREAD, check_method, parent_fds, start_process
from vecenv.backends.pool.worker_handle import WorkerHandle, stack_of_process
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.backends.system_limits import check_descriptors, default_num_workers
from vecenv.backends.worker.main import main as worker_main
from vecenv.backends.worker.worker_setup import WorkerArgs
from vecenv.errors import warn_caller
from vecenv.portability import allowed_cpus, binds_to_cpus, pidfd

SOCKET_BUFFER = 1 << 16
FDS_PER_WORKER = 7  # channel, sentinel, the worker's watch pipe, wakeup, pidfd (or a pipe's other end), two at start
FDS_BESIDES = 24

_launched: weakref.WeakSet[ProcessWorker] = weakref.WeakSet()


def _close_inherited() -> None:
    """Close the parent's pipe ends in a forked copy of the process, which may live longer than the parent.

    A worker ends when its channel closes.
    """
    for worker in list(_launched):
        worker.close_ends()
    _launched.clear()


os.register_at_fork(after_in_child=_close_inherited)


class ProcessWorker(WorkerHandle):
    def __init__(self, index: int, ids: range) -> None:
        super().__init__(index, ids)
        self.process: Any = None
        self.server: Any = None
        self._pipes: tuple[int, ...] = ()
        self._pidfd: int | None = None

    @property
    def launched(self) -> bool:
        return self.process is not None

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def launch(self, args: WorkerArgs) -> None:
        ours, theirs = socket.socketpair()
        enlarge_buffers(ours, theirs)
        self.channel = Channel(ours)
        _launched.add(self)
        args.socket = theirs
        try:
            self.process = start_process(args.method, worker_main, (args,), f"vecenv-worker-{self.index}", self.server)
            self.alive = True
        except BaseException:  # if the process has started, it ends when the channel closes
            self.close_ends()
            raise
        finally:
            theirs.close()  # so that the stream ends with the worker
        self._pipes = parent_fds(self.process)
        if args.method != "forkserver":
            # An env's process may hold channel and sentinel open after the end of the worker.
            self._pidfd = pidfd(self.pid)

    def close_ends(self) -> None:
        self.channel.close()
        pipes, self._pipes = self._pipes, ()
        for fd in pipes:
            os.close(fd)

    def fds(self) -> list[int]:
        return [self.channel.fileno(), self.process.sentinel, *([] if self._pidfd is None else [self._pidfd])]

    def clean_up(self) -> None:
        self._pipes = ()  # multiprocessing closes them; the system reuses their numbers
        self.channel.close()
        self.kill_group()
        self.process.join(1.0)
        if self._pidfd is not None:
            pidfd, self._pidfd = self._pidfd, None
            os.close(pidfd)
        self.alive = False

    def seems_ended(self) -> bool:
        poller = select.poll()
        channel, *others = self.fds()
        poller.register(channel, 0)  # only the hang-up
        for fd in others:
            poller.register(fd, select.POLLIN)
        return bool(poller.poll(0))

    def kill(self) -> None:
        self.kill_group()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.join(1.0)

    def kill_group(self) -> None:
        """Kill the process group of the worker. macOS refuses if all its processes have ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def has_ended(self, timeout: float) -> bool:
        self.process.join(timeout)
        return not self.process.is_alive()

    def discard(self) -> None:
        with contextlib.suppress(ValueError):  # killed, but the process still exists
            self.process.close()

    def stack(self) -> str:
        return stack_of_process(self.stacks, self.pid)

    def cause(self) -> str:
        return exit_in_words(self.process.exitcode)


class ProcessPool(WorkerPool):
    def __init__(self, context: str | None, affinity: bool) -> None:
        super().__init__()
        self._method = check_method(context)
        self.forked = self._method == "fork"
        self._affinity = affinity

    def default_num_workers(self, n: int, eager: bool) -> int:
        return default_num_workers(n, eager)

    def prepare(self, num_workers: int) -> None:
        check_descriptors(FDS_PER_WORKER * num_workers + FDS_BESIDES, f"{num_workers} workers")
        if self._affinity and not binds_to_cpus():
            self._affinity = False
            warn_caller("affinity=True has no effect: this system does not bind processes to CPUs")

    def handle(self, index: int, ids: range) -> ProcessWorker:
        return ProcessWorker(index, ids)

    def preload(self, env_fns: Sequence[Any]) -> None:
        if self._method == "forkserver":
            modules = frozenset[str]().union(*(env_fn.modules for env_fn in env_fns))
            server = preloaded_server(modules, _environ(), self.start_timeout)
            for worker in self.workers:
                cast(ProcessWorker, worker).server = server

    def complete(self, args: WorkerArgs) -> None:
        args.method = self._method
        args.starter = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        if self._method == "forkserver":  # the forkserver has the environment of its start
            args.setup.environ = _environ()
        if cpus := sorted(allowed_cpus() or ()) if self._affinity else []:
            args.setup.affinity = {cpus[args.index % len(cpus)]}


def _environ() -> dict[str, str]:
    return {**dict.fromkeys(ONE_THREAD, "1"), **os.environ}


def enlarge_buffers(*ends: socket.socket) -> None:
    for end in ends:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            if end.getsockopt(socket.SOL_SOCKET, option) < SOCKET_BUFFER:
                end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)


def exit_in_words(exitcode: int | None) -> str:
    if exitcode is None:
        return "ended (its exit status was collected outside of vecenv)"
    if exitcode == 255:
        return "exited with code 255"
    if exitcode >= 0:
        return f"exited with code {exitcode} (the env called os._exit?)"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-exitcode}"
    hints = {
        "SIGKILL": " (often the kernel, out of memory)",
        "SIGSEGV": " (a crash in native code)",
        "SIGBUS": " (an access to memory that no longer exists)",
    }
    return f"was killed by {name}{hints.get(name, '')}"
