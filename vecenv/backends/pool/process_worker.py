"""`ProcessPool`: pool of worker processes on this machine, each with a handle (`ProcessWorker`)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from vecenv.backends.ipc.messages import Channel
from vecenv.backends.memory.shared_memory import LargeData
from vecenv.backends.pool.preloading import preloaded_server
from vecenv.backends.pool.start_methods import ONE_THREAD, check_method, parent_fds, start_process
from vecenv.backends.pool.worker_handle import TIME_TO_END, WorkerHandle, stack_of_process
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.backends.worker.main import main as worker_main
from vecenv.backends.worker.worker_setup import WorkerArgs, pickle_env_fns
from vecenv.errors import warn_caller
from vecenv.portability import allowed_cpus, binds_to_cpus, pidfd

SOCKET_BUFFER = 1 << 16
CUT_OFF = (
    "closed its connection without ending, so vecenv killed it (the env closed the file descriptors of its process, or "
    "called os.exec?)"
)

LAUNCHED: weakref.WeakSet[ProcessWorker] = weakref.WeakSet()
"""Workers whose channels a forked child closes."""


def _close_inherited() -> None:
    """Close a forked child's copies of the channels, which would keep workers running without the parent."""
    for worker in list(LAUNCHED):
        worker.close_ends()
    LAUNCHED.clear()


os.register_at_fork(after_in_child=_close_inherited)


class ProcessWorker(WorkerHandle):
    def __init__(self, index: int, ids: range) -> None:
        super().__init__(index, ids)
        self.process: Any = None
        self._pipes: tuple[int, ...] = ()
        self._pidfd: int | None = None
        self._is_child = False

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def launch(self, pool: ProcessPool, args: WorkerArgs) -> None:
        ours, theirs = socket.socketpair()
        enlarge_buffers(ours, theirs)
        self.channel = Channel(ours)
        LAUNCHED.add(self)
        pool.complete(args)
        args.socket = theirs
        self._is_child, self.cut_off = args.method != "forkserver", False
        name = f"vecenv-worker-{self.index}"
        try:
            self.process = start_process(args.method, worker_main, (args,), name, pool.preloaded)
            self.launched = self.alive = True
        except BaseException:  # if the process has started, closing the channel ends it
            self.close_ends()
            raise
        finally:
            theirs.close()  # so that the channel hangs up when the worker exits
        self._pipes = parent_fds(self.process)
        if self._is_child:
            # Processes of an env may keep the channel and the sentinel open after the worker's exit. The pidfd still
            # reports the exit.
            self._pidfd = pidfd(self.pid)

    def close_ends(self) -> None:
        self.channel.close()
        pipes, self._pipes = self._pipes, ()
        for fd in pipes:
            os.close(fd)

    def fds(self) -> list[int]:
        return [self.channel.fileno(), self.process.sentinel, *([] if self._pidfd is None else [self._pidfd])]

    def clean_up(self) -> None:
        if not self.has_ended(TIME_TO_END):
            self.cut_off = True
            self.kill()
        # multiprocessing closes these descriptors. A later `close_ends` could close other files with the same numbers.
        self._pipes = ()
        self.channel.close()
        self.kill_group()
        self.has_ended(1.0)
        if self._pidfd is not None:
            pidfd, self._pidfd = self._pidfd, None
            os.close(pidfd)
        self.alive = False

    def seems_ended(self) -> bool:
        poller = select.poll()
        for fd in self.fds()[1:]:
            poller.register(fd, select.POLLIN)
        return self.channel.hung_up(0.0) or bool(poller.poll(0))

    def kill(self) -> None:
        self.kill_group()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)
        self.has_ended(1.0)

    def kill_group(self) -> None:
        # macOS refuses (PermissionError) if all processes in the group have ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def has_ended(self, timeout: float) -> bool:
        if not self._is_child:
            self.process.join(timeout)  # the forkserver reports the end
            return not self.process.is_alive()
        # If the worker has closed its end of the sentinel, `join` blocks despite the timeout. So use the pidfd or poll.
        if self._pidfd is not None:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            return bool(poller.poll(timeout * 1000))
        deadline = time.monotonic() + timeout
        while not self._is_gone():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.001)
        return True

    def _is_gone(self) -> bool:
        if self.process.exitcode is not None:
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:  # its exit status was collected outside of vecenv
            return True
        return False

    def discard(self) -> None:
        with contextlib.suppress(ValueError):  # the process was killed, but still exists
            self.process.close()

    def stack(self) -> str:
        return stack_of_process(self.stacks, self.pid)

    def cause(self) -> str:
        exitcode = self.process.exitcode
        return CUT_OFF if self.cut_off and exitcode in (None, -signal.SIGKILL) else exit_in_words(exitcode)


class ProcessPool(WorkerPool):
    worker_type = ProcessWorker

    def __init__(
        self, start_timeout: float, step_timeout: float | None, context: str | None = None, affinity: bool = False
    ) -> None:
        super().__init__(start_timeout, step_timeout)
        self._method = check_method(context)
        self.pickles = self._method != "fork"
        self._affinity = affinity and binds_to_cpus()
        if affinity and not self._affinity:
            warn_caller("affinity=True has no effect: this system cannot bind processes to CPUs")
        self.preloaded: Any = None
        """Server that has imported the modules of the env_fns for all workers, or `None`."""

    def pickle_env_fns(self, env_fns: Sequence[Callable[[], Any]]) -> list[Any]:
        file = LargeData()
        self.own_fd(file.descriptor.fd)
        pickled = pickle_env_fns(env_fns, file)
        self.large = file.descriptor if file.size else None
        if self._method == "forkserver":
            modules = frozenset[str]().union(*(env_fn.modules for env_fn in pickled))
            self.preloaded = preloaded_server(modules, _environ(), self.start_timeout)
        return pickled

    def complete(self, args: WorkerArgs) -> None:
        """Add the arguments of a process."""
        args.method = self._method
        args.starter = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        if self._method == "forkserver":  # a forkserver has the environment of its own start
            args.setup.environ = _environ()
        if cpus := sorted(allowed_cpus() or ()) if self._affinity else []:
            args.setup.affinity = {cpus[args.place % len(cpus)]}


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
    if exitcode == 1:
        return "exited with code 1 (after an error that it printed, or the env called os._exit?)"
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
