"""`WorkerHandle`: the parent's side of one worker, which survives the worker's restarts."""

from __future__ import annotations

import os
import pickle
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import Failure
from vecenv.backends.memory.shared_memory import A_CALL, A_ROUND, DOING, ELSEWHERE, PROGRESS, SENDING
from vecenv.backends.worker.worker_setup import WorkerArgs
from vecenv.errors import VectorEnvError, WorkerDiedError, WorkerTimeoutError

STACK_TIMEOUT = 0.3
"""Seconds to wait for a worker to write its stack."""
IDLE_TEXTS = {SENDING: "sending what its envs returned", ELSEWHERE: "running its envs"}
"""Activity of a worker when it ended, where no single env was in use."""

Reason = Callable[[int], VectorEnvError]
"""Makes the error of an env, by its id, whose worker the parent has ended."""


class Watched(ABC):
    """The host of the envs `ids`, a process, an actor or a thread; `line` has its numbers (see `Control`)."""

    line: Any
    reports_progress = True
    """False if `line` changes only when an answer arrives."""

    def __init__(self, index: int, ids: range) -> None:
        self.index, self.ids = index, ids
        self.start, self.stop = ids.start, ids.stop
        self.alive = False
        """True if its answers are used."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Its name in warnings."""

    @property
    @abstractmethod
    def ending(self) -> str:
        """The measure taken because an env hung, as part of an error text."""

    @abstractmethod
    def stack(self) -> str:
        """The Python stack that it is at."""

    def is_silent(self) -> bool:
        """Return whether its host does not answer."""
        return False


class WorkerHandle(Watched):
    """A process or an actor, its channel, and what it has reported.

    When a worker ends, a new one takes its place in the same object. Subclasses know what a worker is: a process, an
    actor.
    """

    channel: Any
    """A `messages.Channel`, or what has the methods of its parent's end, none of which blocks."""
    stacks: int
    """The file to which it may write its stack."""
    on_this_node = True
    """True if it shares memory with this process."""

    def __init__(self, index: int, ids: range) -> None:
        super().__init__(index, ids)
        self.ready: list[EnvReport] | Failure | None = None
        """The report of the worker on its envs; None until they are made."""
        self.served = False
        """True if any of the workers was ever ready."""
        self.problems: list[str] | None = None
        """Problems in closing its envs; None until it has closed them."""
        self.reason: Reason | None = None
        """The reason why the parent killed it, if it did."""

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
        return f"worker {self.where}"

    @property
    def ending(self) -> str:
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
    def seems_ended(self) -> bool:
        """Return whether the worker has ended. Another thread may ask: nothing is changed."""

    @abstractmethod
    def kill(self) -> None:
        """End the worker by force, with all that its envs started; returns once it is gone."""

    @abstractmethod
    def clean_up(self) -> None:
        """After the end of the worker: close and free what belonged to it; `alive` changes last. Idempotent."""

    def discard(self) -> None:
        """Called last, when the pool is closed."""

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

    def death(self, env_id: int) -> VectorEnvError:
        """The error of an env whose worker has ended."""
        if self.reason is not None:
            error = self.reason(env_id)
        else:
            doing = self.line[DOING]
            running = self.start + self.line[PROGRESS] % len(self.ids) if doing in (A_ROUND, A_CALL) else None
            at = f"while {IDLE_TEXTS.get(doing, 'idle')}" if running is None else f"while running env {running}"
            if self.ready is None:
                at = "while constructing its envs"
            others = f", which also hosted envs {[i for i in self.ids if i != env_id]}" if len(self.ids) > 1 else ""
            advice = f"; the envs of other workers are intact. reset({env_id}) starts it again." if self.served else ""
            error = WorkerDiedError(f"the worker of env {env_id} ({self.where}{others}) {self.cause()} {at}{advice}")
            error.bystander = running is not None and running != env_id
        error.env_id, error.env_ids, error.pid = env_id, tuple(self.ids), self.pid
        return error


def hung(ending: str, hung_id: int, limit: float, stack: str) -> Reason:
    """The reason that a worker was lost: its env `hung_id` did not return for `limit` seconds."""

    def error_of(env_id: int) -> VectorEnvError:
        subject = f"env {env_id}" if env_id == hung_id else f"env {env_id} is lost because env {hung_id}"
        error = WorkerTimeoutError(
            f"{subject} has been busy for more than step_timeout={limit} s; {ending}; "
            f"reset({env_id}) starts it again. Env {hung_id} was at\n{stack}"
        )
        error.bystander = env_id != hung_id
        return error

    return error_of


def silent(title: str, ending: str, limit: float) -> Reason:
    """The reason that a worker was lost: its host does not answer."""

    def error_of(env_id: int) -> VectorEnvError:
        return WorkerTimeoutError(
            f"the host of env {env_id} ({title}) does not answer, and step_timeout={limit} s is over; {ending}; "
            f"reset({env_id}) starts it again, on a host that answers"
        )

    return error_of


def stack_of_process(stacks: int, pid: int) -> str:
    """The Python stack of a worker, which it writes to `stacks` by itself even while it is stuck in native code."""
    return written_stack(stacks, partial(os.kill, pid, signal.SIGUSR1))


def written_stack(stacks: int, ask: Callable[[], object]) -> str:
    """The stack that a worker or thread writes to the file `stacks` once `ask` has sent it a signal."""
    before = os.fstat(stacks).st_size
    try:
        ask()
    except ProcessLookupError:
        return "(the worker has ended)"
    deadline = time.monotonic() + STACK_TIMEOUT
    size = before
    while time.monotonic() < deadline:
        # No event reports that a file has grown, so it is polled: briefly, and only once an env hangs.
        time.sleep(0.01)
        grown = os.fstat(stacks).st_size
        if grown == size > before:
            break
        size = grown
    text = os.pread(stacks, size - before, before).decode(errors="replace")
    return text or "(the worker did not write its stack; is it stopped?)"
