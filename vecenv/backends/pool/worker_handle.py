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
"""The parent's ends of the channels and multiprocessing pipes of all workers that this process has started."""
_inherited_fds: set[int] = set()
"""In a forked process: what `_parent_fds` was in the original at the fork. A forked worker closes them."""


def _inherit_fds() -> None:
    """In a forked copy of the process: the descriptors so far are those of the original's workers."""
    _inherited_fds.clear()
    _inherited_fds.update(_parent_fds)
    _parent_fds.clear()


os.register_at_fork(after_in_child=_inherit_fds)


class WorkerHandle:
    """The process that hosts the envs `start` .. `stop - 1`, its channel, and what it has reported.

    When a process dies, a new one takes its place in the same object.
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
        """What the worker reported when its envs were made; None until then."""
        self.served = False
        """Whether any of the processes was ever ready."""
        self.problems: list[str] | None = None
        """What went wrong in closing its envs; None until it has closed them."""
        self.reason: Hung | Torn | None = None
        """Why the parent killed it, if it did."""

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    @property
    def title(self) -> str:
        """The worker's name in warnings."""
        return f"worker pid {self.pid}"

    @property
    def ending(self) -> str:
        """What was done with the worker because an env hung, as part of an error text."""
        return f"the worker (pid {self.pid}, envs {list(self.ids)}) was killed"

    def launch(self, args: WorkerArgs) -> None:
        """Start the process, with a new channel."""
        ours, theirs = socket.socketpair()
        enlarge_buffers(ours, theirs)
        self.channel, self.ready, self.reason, self.problems = Channel(ours), None, None, None
        _parent_fds.add(ours.fileno())
        args.socket = theirs
        if args.method == "fork":
            args.parent_fds = _inherited_fds  # filled at the fork, until which other threads may open and close some
        try:
            self.process = start_process(args.method, worker_main, (args,), f"vecenv-worker-{self.index}")
        except BaseException:  # if the process was started nevertheless, it ends when its channel closes
            _parent_fds.discard(ours.fileno())
            ours.close()
            raise
        finally:
            theirs.close()  # so that the end of the worker is the end of the stream
        self._pipes = parent_fds(self.process)
        _parent_fds.update(self._pipes)
        if args.method != "forkserver":
            # A process that an env has forked may keep the channel and the sentinel open after the worker has ended.
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
        """The descriptors to poll: the channel, and those that become readable when the process ends."""
        return [self.channel.fileno(), self.process.sentinel, *([] if self._pidfd is None else [self._pidfd])]

    def clean_up(self) -> None:
        """After the end of the process: close our ends, reap it, kill what its envs left running. Idempotent."""
        self.alive = False
        _parent_fds.difference_update(self._pipes, (self.channel.fileno(),))
        self._pipes = ()  # the system reuses their numbers
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
        """Kill the process group that the worker leads, if any. macOS refuses if all its processes have ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def death(self, env_id: int, running: int | None, idle: str = "idle") -> VectorEnvError:
        """The error of an env whose worker has ended while it used env `running`; None: while it was `idle`."""
        if self.reason is not None:
            error = self.reason.error(env_id)
        else:
            error = WorkerDiedError(self._death_text(env_id, running, idle))
            error.bystander = running is not None and running != env_id
        error.env_id, error.env_ids, error.pid = env_id, tuple(self.ids), self.pid
        return error

    def _death_text(self, env_id: int, running: int | None, idle: str) -> str:
        others = f", which also hosted envs {[i for i in self.ids if i != env_id]}" if len(self.ids) > 1 else ""
        doing = f"while {idle}" if running is None else f"while running env {running}"
        if self.ready is None:
            doing = "while constructing its envs"
        advice = f"; the envs of other workers are intact. reset({env_id}) starts it again." if self.served else ""
        return f"the worker of env {env_id} (pid {self.pid}{others}) {_cause(self.process.exitcode)} {doing}{advice}"


def enlarge_buffers(*ends: socket.socket) -> None:
    """Enlarge socket buffers that are small, such as the 8 KiB of macOS."""
    for end in ends:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            if end.getsockopt(socket.SOL_SOCKET, option) < SOCKET_BUFFER:
                end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)


class Hung:
    """Why a worker was lost: its env `env_id` did not return for `limit` seconds. `ending` is as in `Watched`."""

    def __init__(self, ending: str, env_id: int, limit: float, stack: str) -> None:
        self._env_id, self._limit, self._stack, self._ending = env_id, limit, stack, ending

    def error(self, env_id: int) -> WorkerTimeoutError:
        """The error for one of the envs of the worker."""
        subject = f"env {env_id}" if env_id == self._env_id else f"env {env_id} is lost because env {self._env_id}"
        error = WorkerTimeoutError(
            f"{subject} has been busy for more than step_timeout={self._limit} s; {self._ending}; "
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
        return "ended (its exit status was collected outside of vecenv)"
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
        "SIGBUS": " (an access to memory that no longer exists)",
    }
    return f"was killed by {name}{hints.get(name, '')}"
