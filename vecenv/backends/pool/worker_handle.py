"""`WorkerHandle`: starts, watches and ends a worker from the parent. The handle survives restarts."""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import Failure, one_of
from vecenv.backends.memory.shared_memory import A_CALL, A_ROUND, DOING, ELSEWHERE, NOTHING, PROGRESS, SENDING
from vecenv.backends.worker.worker_setup import WorkerArgs
from vecenv.errors import RESTARTS, VectorEnvError, WorkerDiedError, WorkerTimeoutError, how_to_reset

STACK_TIMEOUT = 0.3
TIME_TO_END = 0.5
"""Seconds that a worker may take to end after it has closed its channel. Then vecenv kills the worker."""
IDLE_TEXTS = {SENDING: "sending what its envs returned", ELSEWHERE: "running its envs"}
Reason = Callable[[int], VectorEnvError]
"""Function that returns the error to raise for an env id, after the parent has killed the worker."""


class Watched(ABC):
    """Process, actor or thread that runs the envs `ids`. `line` has numbers about progress (see `Control`)."""

    line: Any
    reports_progress = True
    """True if the worker updates `line`. False if the parent does so when an answer arrives."""

    def __init__(self, index: int, ids: range) -> None:
        self.index, self.ids = index, ids
        self.start, self.stop = ids.start, ids.stop
        self.alive = False

    @property
    @abstractmethod
    def title(self) -> str:
        """Name in warnings."""

    @property
    @abstractmethod
    def ending(self) -> str:
        """Part of a timeout's error text, such as "the worker ... was killed"."""

    @abstractmethod
    def stack(self) -> str:
        """Return the current Python stack."""

    def is_silent(self) -> bool:
        return False


class WorkerHandle(Watched):
    channel: Any
    """`messages.Channel`, or an object with the same non-blocking methods for the parent."""
    stacks: int
    wakeup: Any = None
    """`Wakeup` of a worker that sleeps on shared memory."""
    launched = False
    """True if a worker was ever started."""
    cut_off = False
    """True if the worker was killed because it has closed its channel, but has not ended."""
    on_this_node = True
    """True if the worker shares memory with this process."""

    def __init__(self, index: int, ids: range) -> None:
        super().__init__(index, ids)
        self.ready: list[EnvReport] | Failure | None = None
        """Reports of the envs, the failure of a constructor, or `None` if the envs are not made yet."""
        self.served = False
        self.place = index
        """Index of the block of envs."""
        self.hosted: Sequence[int] = ids
        """Ids of the envs that the worker serves: `ids`, or a part of `ids` while the worker is replaced."""
        self.problems: list[str] | None = None
        self.reason: Reason | None = None

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Process id, or `None` if unknown."""

    @property
    def where(self) -> str:
        return f"pid {self.pid}"

    @property
    def title(self) -> str:
        return f"worker {self.where}"

    @property
    def ending(self) -> str:
        return f"the worker ({self.where}, envs {list(self.ids)}) was killed"

    @abstractmethod
    def launch(self, pool: Any, args: WorkerArgs) -> None:
        """Start a worker of `pool` with a new channel. Returns before the envs are made."""

    @abstractmethod
    def fds(self) -> list[int]:
        """Return the channel's descriptor, and descriptors that become readable when the worker ends."""

    @abstractmethod
    def has_ended(self, timeout: float) -> bool:
        """Return True if the worker ends within `timeout` seconds."""

    @abstractmethod
    def seems_ended(self) -> bool:
        """Return True if the worker has ended. Any thread may call this, so change no state that a call uses."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the worker, including the group of a worker process. On this node, wait a few seconds for its end."""

    @abstractmethod
    def clean_up(self) -> None:
        """Free the resources of an ended worker, then set `alive` to False. May be called twice."""

    def discard(self) -> None:
        """Free the resources that `clean_up` keeps, when the pool closes."""

    @abstractmethod
    def cause(self) -> str:
        """Describe the end of the worker, in words that follow "the worker"."""

    def take_block_of(self, other: WorkerHandle) -> None:
        """Prepare to replace `other`, which still serves the envs."""
        self.ids, self.start, self.stop, self.place = other.ids, other.start, other.stop, other.place
        self.hosted = []

    def own(self, by_id: Mapping[int, Any]) -> dict[int, Any]:
        return {i - self.start: by_id[i] for i in self.hosted if i in by_id}

    def death(self, env_id: int) -> VectorEnvError:
        if self.reason is not None:
            error = self.reason(env_id)
        else:
            doing = self.line[DOING]
            running = self.start + self.line[PROGRESS] % len(self.ids) if doing in (A_ROUND, A_CALL) else None
            at = f"while {IDLE_TEXTS.get(doing, 'idle')}" if running is None else f"while running env {running}"
            if self.ready is None:
                at = "while constructing its envs"
            others = f", which also ran envs {[i for i in self.hosted if i != env_id]}" if len(self.hosted) > 1 else ""
            advice = f"; the envs of other workers are intact. {how_to_reset(env_id, RESTARTS)}." if self.served else ""
            error = WorkerDiedError(f"the worker of env {env_id} ({self.where}{others}) {self.cause()} {at}{advice}")
            error.bystander = running is not None and running != env_id
        error.env_id, error.env_ids, error.pid = env_id, tuple(self.hosted), self.pid
        return error


def suspects_of(worker: Watched, ids: Sequence[int]) -> Sequence[int]:
    """Return the env that a worker runs. If `line` does not tell, return `ids`, the possible envs."""
    if worker.line[DOING] in (NOTHING, ELSEWHERE):
        return ids
    return [worker.start + worker.line[PROGRESS] % len(worker.ids)]


def hung(ending: str, suspects: Sequence[int], limit: float, stack: str) -> Reason:
    def error_of(env_id: int) -> VectorEnvError:
        subject = one_of(suspects) if [env_id] == list(suspects) else f"env {env_id} is lost because {one_of(suspects)}"
        error = WorkerTimeoutError(
            f"{subject} has been busy for more than step_timeout={limit} s; {ending}; "
            f"{how_to_reset(env_id, RESTARTS)}. {one_of(suspects).capitalize()} was at\n{stack}"
        )
        error.bystander = env_id not in suspects
        return error

    return error_of


def silent(title: str, ending: str, limit: float) -> Reason:
    def error_of(env_id: int) -> VectorEnvError:
        return WorkerTimeoutError(
            f"the node of env {env_id} ({title}) does not answer, and step_timeout={limit} s is over; {ending}; "
            f"{how_to_reset(env_id, RESTARTS)}, on a node that answers"
        )

    return error_of


def stack_of_process(stacks: int, pid: int) -> str:
    """Return the stacks of a worker's threads. The thread that runs the envs comes first."""
    threads = written_stack(stacks, partial(os.kill, pid, signal.SIGUSR1)).strip("\n").split("\n\n")
    shown = [each for each in threads if " in _watch_parent\n" not in each] or threads
    return "\n\n".join(sorted(shown, key=lambda each: not each.startswith("Current thread")))


def written_stack(stacks: int, ask: Callable[[], object]) -> str:
    """Return the stack that a worker writes to the file `stacks` after `ask` has sent it a signal."""
    before = os.fstat(stacks).st_size
    try:
        ask()
    except ProcessLookupError:
        return "(the worker has ended)"
    deadline = time.monotonic() + STACK_TIMEOUT
    size = before
    while time.monotonic() < deadline:
        # Poll, because no event reports that a file has grown.
        time.sleep(0.01)
        grown = os.fstat(stacks).st_size
        if grown == size > before:
            break
        size = grown
    text = os.pread(stacks, size - before, before).decode(errors="replace")
    return text or "(the worker did not write its stack; is it stopped?)"
