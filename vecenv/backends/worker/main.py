"""The life of a worker process: take off, construct the envs, serve rounds, close.

Whatever happens to the parent, the worker does not outlive it: a thread waits for the parent's end, and the kernel
kills the worker if its own starter ends (for envs that hold the interpreter lock). The worker leads a process group,
so that what its envs started ends too.
"""

from __future__ import annotations

import gc
import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from vecenv.backends.host.env_host import EnvHost, EnvReport
from vecenv.backends.host.failure import Failure, capture
from vecenv.backends.host.row_writer import RENEWED, Extra
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.control_block import A_CALL, A_ROUND, BUSY_NS, DOING, NOTHING, PROGRESS, SENDING, Control
from vecenv.backends.ipc.messages import Channel, Frame
from vecenv.backends.ipc.serialization import dumps, dumps_or_none
from vecenv.backends.memory.layout import Layout
from vecenv.backends.pool.start_methods import Descriptor
from vecenv.backends.worker.blocking_envs import PaceMeter
from vecenv.backends.worker.bootstrap import bootstrap, end_children
from vecenv.backends.worker.worker_setup import WorkerSetup


@dataclass
class Boot:
    """What a worker is started with."""

    index: int
    workers: int
    first_id: int
    count: int
    eager: bool
    method: str
    control: Descriptor
    stacks: Descriptor
    setup: WorkerSetup
    seeds: tuple[bytes, bytes]
    """Of the global random generators, numpy's and Python's."""
    server: type[Server]
    shared: Any
    """What the kind of backend needs besides."""
    starter: int
    """The parent, if its main thread starts the worker; else 0."""
    socket: Any = None
    parent_fds: Collection[int] = ()
    """Descriptors of the parent that a forked worker has to close: it would keep other workers' channels open."""
    line: Any = None
    """The worker's line of the control page, once it is mapped."""


class Server(ABC):
    """Serves rounds in a worker; one for each kind of process backend."""

    def __init__(self, boot: Boot, host: EnvHost, channel: Channel) -> None:
        self.host = host
        self.channel = channel
        self.first_id = boot.first_id
        self.count, self.everyone = boot.count, range(boot.count)
        self.one_by_one = boot.eager and boot.count > 1
        self.line = boot.line
        self._pace = PaceMeter(boot.count)
        self.last_extras: dict[int, Extra] = {}  # of each env

    @abstractmethod
    def bind(self, layout: Layout) -> None:
        """The layout is known."""

    @abstractmethod
    def serve(self) -> None:
        """Serve until a CLOSE frame has been handled."""

    def timed(self, round: Callable[..., None], *args: Any) -> None:
        """Do a round, and account for the time that it took."""
        begin = time.perf_counter_ns()
        round(*args)
        self.line[DOING] = NOTHING
        self.line[BUSY_NS] += time.perf_counter_ns() - begin

    def measured(self, run: Callable[..., Any], *args: Any) -> Any:
        """What `run` returns, measured at first: what counts is the time in the envs, not that in which the parent
        reads.
        """
        self.line[DOING] = A_ROUND
        if not self._pace.measuring:
            return run(*args)
        self._pace.start()
        result = run(*args)
        if (note := self._pace.stop()) is not None:
            self.channel.write(messages.NOTE, 0, pickle.dumps(note))
        return result

    def run_block(
        self,
        asked: bytes,
        action: np.ndarray | None,
        payload: Callable[[int, int], Any],
        answer: Callable[[Sequence[int], dict[int, Extra]], None],
    ) -> None:
        """Do what the status bytes ask for and answer: for all at once, or for each env as soon as it is done."""
        done = (
            self.everyone
            if opcodes.all_ask(asked)
            else [j for j, op in enumerate(asked) if opcodes.IDLE < op < opcodes.DONE]
        )
        if not self.one_by_one:
            if done:
                answer(done, self.measured(self.host.run, asked, action, payload))
            return
        for j in done:
            extra = self.measured(self.host.run_one, j, asked[j], action, payload)
            answer([j], {} if extra is None else {j: extra})

    def handle(self, frame: Frame) -> bool:
        """Do what a frame other than a round asks for; returns True if it was CLOSE."""
        if frame.kind == messages.CALL:
            self.line[DOING] = A_CALL
            reply = self._call(*cloudpickle.loads(frame.payload))
            self.line[DOING] = NOTHING
            self.channel.write(messages.REPLY, frame.number, reply)
        elif frame.kind == messages.RESEND:
            blobs = {j: dumps_or_none(extra) for j, extra in self.last_extras.items()}
            self.channel.write(messages.REPLY, frame.number, pickle.dumps(blobs))
        elif frame.kind == messages.CLOSE:
            problems = self.host.close()
            self.channel.write(messages.CLOSED, 0, pickle.dumps(problems))
            return True
        return False

    def extras_payload(self, extras: dict[int, Extra]) -> bytes:
        """The pickle of what of the extras has to be sent, empty where that is nothing.

        One that cannot be pickled becomes a failure of its env alone.
        """
        sent = {j: extra for j, extra in extras.items() if extra is not RENEWED}
        if not sent:
            return b""
        self.line[DOING] = SENDING
        try:
            payload = dumps(sent)
        except BaseException:
            for j, extra in sent.items():
                try:
                    dumps(extra)
                except BaseException as error:
                    sent[j] = extras[j] = Extra(failure=self._not_sent(j, error))
            payload = dumps(sent)
        self.last_extras.update(sent)  # as they are: what could not be sent is not asked for again
        return payload

    def _not_sent(self, j: int, error: BaseException) -> Failure:
        env_id = self.first_id + j
        told = TypeError(f"what env {env_id} returned (info or observation) cannot be sent: {_told(error)}")
        told.__cause__ = error
        return capture(told, env_id, "step", local=False)

    def _call(self, op: str, blobs: dict[int, bytes]) -> bytes:
        """Run an operation on envs: the pickle of {j: the pickle of its value or Failure}."""
        results: dict[int, bytes] = {}
        for j, blob in blobs.items():
            try:
                results[j] = dumps(self.host.call(j, op, pickle.loads(blob)))
            except BaseException as error:
                env_id = self.first_id + j
                told = TypeError(f"{op} on env {env_id}: what was passed or is returned cannot be sent: {_told(error)}")
                results[j] = dumps(capture(told, env_id, op, local=False))
        return pickle.dumps(results)

    def load_payload(self, j: int, op: int, blob: bytes) -> Any:
        """An action or arguments that travelled pickled; a Failure if they cannot be read here."""
        try:
            return pickle.loads(blob)
        except BaseException as error:
            env_id, name, what = self.first_id + j, "reset", "arguments"
            if op & opcodes.PLAIN == opcodes.STEP_OBJECT:
                name, what = "step", "action"
            told = TypeError(f"the {what} for env {env_id} cannot be read in the worker: {_told(error)}")
            return capture(told, env_id, name, local=False)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def answer_of(extra: Extra | None) -> int:
    """What goes into the status byte of an env that has done what was asked."""
    if extra is None:
        return opcodes.DONE
    if extra is RENEWED:
        return opcodes.DONE_FINAL
    return opcodes.DONE_EXTRA if extra.final is None else opcodes.DONE_EXTRA_FINAL


def main(boot: Boot) -> None:
    """Entry point of the process."""
    bootstrap(boot)
    channel = Channel(boot.socket)
    boot.line = Control(boot.workers, boot.control.fd).line(boot.index)
    try:
        _live(boot, channel)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone; the watch ends this process
    finally:
        end_children()


def _live(boot: Boot, channel: Channel) -> None:
    boot.setup.unpack()
    host = EnvHost(boot.setup.makers, boot.first_id, local=False)
    host.progress = boot.line[PROGRESS : PROGRESS + 1]
    reports = host.construct()
    channel.write(messages.READY, 0, pickle.dumps(_pickled_reports(reports, boot.first_id)))
    if isinstance(reports, Failure):
        host.close()  # after the report: an env that hangs in it must not hide why
        return
    server = boot.server(boot, host, channel)
    frame = channel.read()
    if frame.kind == messages.SETUP:
        server.bind(pickle.loads(frame.payload))
        gc.collect()
        gc.freeze()  # what was made so far stays: the collector need not look at it again in the middle of a step
        server.serve()
    else:
        server.handle(frame)


def _pickled_reports(reports: list[EnvReport] | Failure, first_id: int) -> list[bytes]:
    """Each report pickled alone, so that one that cannot be is the failure of its env."""
    if isinstance(reports, Failure):
        return [dumps(reports)]
    blobs = []
    for j, report in enumerate(reports):
        try:
            blobs.append(dumps(report))
        except BaseException as error:
            told = TypeError(
                f"what env {first_id + j} says of itself (spaces, metadata, spec) cannot be sent: {_told(error)}"
            )
            blobs.append(dumps(capture(told, first_id + j, "__init__", local=False)))
    return blobs
