"""WorkerHandle: the parent's side of one worker process, and of those that replace it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
from collections.abc import Mapping
from typing import Any

from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import Failure
from vecenv.backends.ipc.messages import Channel
from vecenv.backends.pool.start_methods import parent_fds, start_process
from vecenv.backends.worker.main import main as worker_main
from vecenv.backends.worker.worker_args import WorkerArgs
from vecenv.errors import VectorEnvError, WorkerDiedError, WorkerTimeoutError
from vecenv.portability import pidfd

SOCKET_BUFFER = 1 << 16

_parent_fds: set[int] = set()
"""Our ends of all channels of this process, of every vector env, and the pipes of multiprocessing."""
_inherited_fds: set[int] = set()
"""In a forked process: those of the original at that moment. A forked worker closes them."""


def _forked() -> None:
    """In a forked copy of the process: all channels so far are inherited, none is its own yet."""
    _inherited_fds.clear()
    _inherited_fds.update(_parent_fds)
    _parent_fds.clear()


os.register_at_fork(after_in_child=_forked)


class WorkerHandle:
    """The process that hosts the envs `start` .. `stop - 1`, its channel, and what it has reported.

    The same object stands for all the processes that take over from one another after a death.
    """

    def __init__(self, index: int, ids: range) -> None:
        self.index, self.ids = index, ids
        self.start, self.stop = ids.start, ids.stop
        self.process: Any = None
        self.channel: Channel = None  # type: ignore[assignment]
        self._pipes: tuple[int, ...] = ()
        self._pidfd: int | None = None
        self.alive = False
        self.ready: list[EnvReport] | Failure | None = None
        """What it reported once its envs were made."""
        self.served = False
        """Whether any of the processes has been ready."""
        self.problems: list[str] | None = None
        """What went wrong in closing its envs, once it has closed them."""
        self.reason: Hung | Torn | None = None
        """Why the parent killed it, if it did."""

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    @property
    def title(self) -> str:
        """What it is, for a warning."""
        return f"worker pid {self.pid}"

    @property
    def ending(self) -> str:
        """What becomes of it if one of its envs hangs."""
        return f"the worker (pid {self.pid}, envs {list(self.ids)}) was killed"

    def launch(self, args: WorkerArgs) -> None:
        """Start the process, with a new channel."""
        ours, theirs = socket.socketpair()
        enlarge_buffers(ours, theirs)
        self.channel, self.ready, self.reason, self.problems = Channel(ours), None, None, None
        _parent_fds.add(ours.fileno())
        args.socket = theirs
        if args.method == "fork":
            args.parent_fds = _inherited_fds  # not those of now: until the fork other threads may close and open some
        try:
            self.process = start_process(args.method, worker_main, (args,), f"vecenv-worker-{self.index}")
        except BaseException:  # a process that was started nevertheless ends with its channel
            _parent_fds.discard(ours.fileno())
            ours.close()
            raise
        finally:
            theirs.close()  # so that the end of the worker is the end of the stream
        self._pipes = parent_fds(self.process)
        _parent_fds.update(self._pipes)
        if args.method != "forkserver":
            # A process that the env forked may hold the other two open beyond the end of the worker.
            self._pidfd = pidfd(self.pid)
        self.alive = True

    def own(self, by_id: Mapping[int, Any]) -> dict[int, Any]:
        """The entries of `by_id` for the envs of this worker, by their place in its block."""
        return {i - self.start: by_id[i] for i in self.ids if i in by_id}

    def pickle_own(self, by_id: Mapping[int, Any]) -> bytes:
        """`own(by_id)` pickled; empty bytes for no entries."""
        mine = self.own(by_id)
        return pickle.dumps(mine) if mine else b""

    def fds(self) -> list[int]:
        """To poll: the channel, and what becomes readable when the process ends."""
        return [self.channel.fileno(), self.process.sentinel, *([] if self._pidfd is None else [self._pidfd])]

    def bury(self) -> None:
        """Close our ends, reap the process, end what its envs left running. A second call does nothing."""
        self.alive = False
        _parent_fds.difference_update(self._pipes, (self.channel.fileno(),))
        self._pipes = ()  # the system will reuse their numbers
        self.channel.close()
        self.kill_group()
        self.process.join(1.0)
        if self._pidfd is not None:
            pidfd, self._pidfd = self._pidfd, None
            os.close(pidfd)

    def kill(self) -> None:
        """Kill the process and all that its envs started; returns once it is gone."""
        self.kill_group()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.join(1.0)

    def kill_group(self) -> None:
        """Kill the process group that the worker leads, if there is one. macOS refuses if all have ended already."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def death(self, env_id: int, running: int | None, idle: str = "idle") -> VectorEnvError:
        """The error of an env because its worker has ended: it was using env `running`, or was `idle`."""
        if self.reason is not None:
            error = self.reason.error(env_id)
        else:
            error = WorkerDiedError(self._obituary(env_id, running, idle))
            error.bystander = running is not None and running != env_id
        error.env_id, error.env_ids, error.pid = env_id, tuple(self.ids), self.pid
        return error

    def _obituary(self, env_id: int, running: int | None, idle: str) -> str:
        others = f", which also hosted envs {[i for i in self.ids if i != env_id]}" if len(self.ids) > 1 else ""
        doing = f"while {idle}" if running is None else f"while running env {running}"
        if self.ready is None:
            doing = "while constructing its envs"
        hope = f"; the envs of other workers are intact. reset({env_id}) starts it again." if self.served else ""
        return f"the worker of env {env_id} (pid {self.pid}{others}) {_cause(self.process.exitcode)} {doing}{hope}"


def enlarge_buffers(*ends: socket.socket) -> None:
    """Enlarge buffers that are small: those of macOS take 8 KiB."""
    for end in ends:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            if end.getsockopt(socket.SOL_SOCKET, option) < SOCKET_BUFFER:
                end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)


class Hung:
    """Why a worker was lost: its env `env_id` did not return for `limit` seconds. `ending` says what became of it."""

    def __init__(self, ending: str, env_id: int, limit: float, stack: str) -> None:
        self._env_id, self._limit, self._stack, self._ending = env_id, limit, stack, ending

    def error(self, env_id: int) -> WorkerTimeoutError:
        """The error for one of the envs of the worker."""
        subject = f"env {env_id}" if env_id == self._env_id else f"env {env_id} is lost because env {self._env_id}"
        error = WorkerTimeoutError(
            f"{subject} has been busy for more than step_timeout={self._limit} s; {self._ending}, "
            f"reset({env_id}) starts it again. Env {self._env_id} was at\n{self._stack}"
        )
        error.bystander = env_id != self._env_id
        return error


class Torn:
    """Why a worker was killed: an interrupt (Ctrl-C) fell between two parts of a message to or from it."""

    def __init__(self, worker: WorkerHandle) -> None:
        self._pid = worker.pid

    def error(self, env_id: int) -> WorkerDiedError:
        """The error for one of the envs of the worker."""
        return WorkerDiedError(
            f"the worker of env {env_id} (pid {self._pid}) was killed because an interrupt cut off a message to "
            f"or from it; reset({env_id}) starts it again."
        )


def _cause(exitcode: int | None) -> str:
    """How a process ended, in words."""
    if exitcode is None:
        return "ended (its exit status was reaped elsewhere)"
    if exitcode == 255:
        return "exited with code 255"
    if exitcode >= 0:
        return f"exited with code {exitcode} (the env called os._exit?)"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:  # one of the real-time signals, which have no names
        name = f"signal {-exitcode}"
    hints = {
        "SIGKILL": " (often the kernel, out of memory)",
        "SIGSEGV": " (a crash in native code)",
        "SIGBUS": " (memory that is gone)",
    }
    return f"was killed by {name}{hints.get(name, '')}"
