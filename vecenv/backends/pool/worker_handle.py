"""WorkerHandle: the parent's side of one worker, and of those that replace it."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import Failure
from vecenv.backends.ipc.messages import Frame
from vecenv.backends.worker.worker_setup import WorkerArgs
from vecenv.errors import VectorEnvError, WorkerDiedError, WorkerTimeoutError


class ParentChannel(Protocol):
    """The parent's end of the frames between it and a worker; none of its methods blocks (see `messages.Channel`)."""

    ended: bool

    def fileno(self) -> int: ...

    def post(self, kind: int, number: int, *parts: bytes | memoryview) -> bool: ...

    def flush(self) -> bool: ...

    def receive(self) -> None: ...

    def take(self) -> Frame | None: ...

    def close(self) -> None: ...


class WorkerHandle(ABC):
    """Host of the envs `start` .. `stop - 1`, its channel, and what it has reported.

    When a worker ends, a new one takes its place in the same object. Subclasses know what a worker is: a process, an
    actor.
    """

    channel: ParentChannel
    line: Any
    """Its line of the control page."""
    on_this_node = True
    """True if it shares memory with this process."""

    def __init__(self, index: int, ids: range) -> None:
        self.index, self.ids = index, ids
        self.start, self.stop = ids.start, ids.stop
        self.alive = False
        self.ready: list[EnvReport] | Failure | None = None
        """The report of the worker on its envs; None until they are made."""
        self.served = False
        """True if any of the workers was ever ready."""
        self.problems: list[str] | None = None
        """Problems in closing its envs; None until it has closed them."""
        self.reason: Hung | Torn | None = None
        """Why the parent killed it, if it did."""

    @property
    @abstractmethod
    def launched(self) -> bool:
        """True if there ever was a worker."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The process of its envs, None where it is not known."""

    @property
    def where(self) -> str:
        """The place of its envs, as part of an error text."""
        return f"pid {self.pid}"

    @property
    def title(self) -> str:
        """The worker's name in warnings."""
        return f"worker {self.where}"

    @property
    def ending(self) -> str:
        """The measure taken because an env hung, as part of an error text."""
        return f"the worker ({self.where}, envs {list(self.ids)}) was killed"

    @abstractmethod
    def launch(self, args: WorkerArgs) -> None:
        """Start the worker, with a new channel; returns before its envs are made."""

    @abstractmethod
    def fds(self) -> list[int]:
        """The descriptors to poll: the channel's, and those that become readable when the worker ends."""

    @abstractmethod
    def has_ended(self, timeout: float) -> bool:
        """True if the worker has ended; waits up to `timeout` seconds for that."""

    @abstractmethod
    def kill(self) -> None:
        """End the worker by force, with all that its envs started; returns once it is gone."""

    @abstractmethod
    def clean_up(self) -> None:
        """After the end of the worker: close and free what belonged to it. Idempotent."""

    def discard(self) -> None:  # noqa: B027  most have nothing to do
        """Called last, when the pool is closed."""

    @abstractmethod
    def stack(self, stacks: int) -> str:
        """The Python stack of the worker, which may write it to the file `stacks`."""

    @abstractmethod
    def cause(self) -> str:
        """The end of the worker, in words that follow "the worker"."""

    def own(self, by_id: Mapping[int, Any]) -> dict[int, Any]:
        """The entries of `by_id` for the envs of this worker, by their place in its block."""
        return {i - self.start: by_id[i] for i in self.ids if i in by_id}

    def pickle_own(self, by_id: Mapping[int, Any]) -> bytes:
        """`own(by_id)` pickled; empty bytes for no entries."""
        mine = self.own(by_id)
        return pickle.dumps(mine) if mine else b""

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
        return f"the worker of env {env_id} ({self.where}{others}) {self.cause()} {doing}{advice}"


Watched = WorkerHandle | Callable[[], None]
"""A descriptor that a pool polls belongs to a worker, or to a function to call."""


class Launcher(ABC):
    """Launches the workers of a pool; each kind of worker has its own."""

    forked = False
    """True if workers inherit the program's objects, so that env_fns need not be pickled."""

    @abstractmethod
    def default_num_workers(self, n: int, eager: bool) -> int:
        """Number of workers of `n` envs if the user asks for no number."""

    @abstractmethod
    def open(self, num_workers: int, watch: Callable[[int, Watched], None]) -> None:
        """Called before the first worker is launched. Raises if there cannot be so many.

        `watch` has the pool poll a further descriptor (see `WorkerPool.watch`).
        """

    @abstractmethod
    def handle(self, index: int, ids: range) -> WorkerHandle:
        """A handle for a worker that is yet to be launched."""

    @abstractmethod
    def complete(self, args: WorkerArgs) -> None:
        """Fill in what depends on the kind of the workers."""

    def late_text(self, late: Sequence[WorkerHandle], start_timeout: float) -> str:
        """The error text for workers whose envs were not made in time."""
        ids = [i for worker in late for i in worker.ids]
        return (
            f"envs {ids} were not constructed within start_timeout={start_timeout} s; pass a larger one if they need it"
        )

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Called when all workers have ended."""


class Hung:
    """The reason that a worker was lost: its env `env_id` did not return for `limit` seconds. `ending` is as in
    `Watched`.
    """

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
    """The reason that a worker was killed: an interrupt (Ctrl-C) fell between two parts of a message to or from it."""

    def __init__(self, worker: WorkerHandle) -> None:
        self._where = worker.where

    def error(self, env_id: int) -> WorkerDiedError:
        """The error for one of the envs of the worker."""
        return WorkerDiedError(
            f"the worker of env {env_id} ({self._where}) was killed because an interrupt cut off a message to "
            f"or from it; reset({env_id}) starts it again."
        )
