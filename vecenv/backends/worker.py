"""The life of a worker process: take off, construct the envs, serve rounds, close.

Whatever happens to the parent, the worker does not outlive it: a thread waits for the parent's end, and the kernel
kills the worker if its own starter ends (for envs that hold the interpreter lock). The worker leads a process group,
so that what its envs started ends too.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import os
import pickle
import select
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any

import cloudpickle
import numpy as np

from vecenv.backends import arena as box
from vecenv.backends import channel as ch
from vecenv.backends.channel import Channel, Frame
from vecenv.backends.control import A_CALL, A_ROUND, BUSY_NS, DOING, NOTHING, PROGRESS, Control
from vecenv.backends.failure import Failure, capture
from vecenv.backends.generators import seed_generators
from vecenv.backends.host import EnvHost, EnvReport, PaceMeter
from vecenv.backends.launch import Descriptor
from vecenv.backends.layout import Layout
from vecenv.backends.luggage import Luggage
from vecenv.backends.rows import RENEWED, Extra


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
    luggage: Luggage
    seeds: tuple[bytes, bytes]
    """Of the global random generators, numpy's and Python's."""
    server: type[Server]
    link: Any
    """What the kind of backend needs besides."""
    starter: int
    """The parent, if its main thread starts the worker; else 0."""
    socket: Any = None
    parent_fds: tuple[int, ...] = ()
    """Descriptors of the parent that a forked worker has to close: it would keep other workers' channels open."""
    line: Any = None
    """The worker's line of the control page, once it is mapped."""


class Server(ABC):
    """Serves rounds in a worker; one for each kind of process backend."""

    def __init__(self, boot: Boot, host: EnvHost, link: Channel) -> None:
        self.host = host
        self.link = link
        self.first_id = boot.first_id
        self.count = boot.count
        self.eager = boot.eager
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
        self.line[DOING] = A_ROUND
        round(*args)
        self.line[DOING] = NOTHING
        self.line[BUSY_NS] += time.perf_counter_ns() - begin

    def run(self, ops: bytes, action: np.ndarray | None, payload: Callable[[int, int], Any]) -> dict[int, Extra]:
        """`EnvHost.run`, measured at first: what counts is the time in the envs, not that in which the parent reads."""
        if not self._pace.measuring:
            return self.host.run(ops, action, payload)
        self._pace.start()
        extras = self.host.run(ops, action, payload)
        if (note := self._pace.stop()) is not None:
            self.link.write(ch.NOTE, 0, pickle.dumps(note))
        return extras

    def handle(self, frame: Frame) -> bool:
        """Do what a frame other than a round asks for; returns True if it was CLOSE."""
        if frame.kind == ch.CALL:
            self.line[DOING] = A_CALL
            reply = self._call(*cloudpickle.loads(frame.payload))
            self.line[DOING] = NOTHING
            self.link.write(ch.REPLY, frame.number, reply)
        elif frame.kind == ch.RESEND:
            blobs = {j: _dumps_or_none(extra) for j, extra in self.last_extras.items()}
            self.link.write(ch.REPLY, frame.number, pickle.dumps(blobs))
        elif frame.kind == ch.CLOSE:
            problems = self.host.close()
            self.link.write(ch.CLOSED, 0, pickle.dumps(problems))
            return True
        return False

    def extras_payload(self, extras: dict[int, Extra]) -> bytes:
        """The pickle of what of the extras has to be sent, empty where that is nothing.

        One that cannot be pickled becomes a failure of its env alone.
        """
        sent = {j: extra for j, extra in extras.items() if extra is not RENEWED}
        if not sent:
            return b""
        self.last_extras.update(sent)
        try:
            return dumps(sent)
        except BaseException:
            for j, extra in sent.items():
                try:
                    dumps(extra)
                except BaseException as error:
                    sent[j] = extras[j] = Extra(failure=self._not_sent(j, error))
            return dumps(sent)

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
            if op & box.PLAIN == box.STEP_OBJECT:
                name, what = "step", "action"
            told = TypeError(f"the {what} for env {env_id} cannot be read in the worker: {_told(error)}")
            return capture(told, env_id, name, local=False)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def answer_of(extra: Extra | None) -> int:
    """What goes into the post box of an env that has done what was asked."""
    if extra is None:
        return box.DONE
    if extra is RENEWED:
        return box.DONE_FINAL
    return box.DONE_EXTRA if extra.final is None else box.DONE_EXTRA_FINAL


def dumps(value: Any) -> bytes:
    """Pickle; with cloudpickle where the faster one cannot (classes and functions of the user's script)."""
    try:
        return pickle.dumps(value, protocol=5)
    except RecursionError:
        raise
    except Exception:
        return cloudpickle.dumps(value)


def _dumps_or_none(value: Any) -> bytes | None:
    try:
        return dumps(value)
    except BaseException:
        return None


def main(boot: Boot) -> None:
    """Entry point of the process."""
    _take_off(boot)
    link = Channel(boot.socket)
    boot.line = Control(boot.workers, boot.control.fd).line(boot.index)
    try:
        _live(boot, link)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone; the watch ends this process
    finally:
        _end_children()


def _live(boot: Boot, link: Channel) -> None:
    boot.luggage.unpack()
    host = EnvHost(boot.luggage.makers, boot.first_id, local=False)
    host.progress = boot.line[PROGRESS : PROGRESS + 1]
    reports = host.construct()
    link.write(ch.READY, 0, pickle.dumps(_pickled_reports(reports, boot.first_id)))
    if isinstance(reports, Failure):
        return
    server = boot.server(boot, host, link)
    frame = link.read()
    if frame.kind == ch.SETUP:
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


def _take_off(boot: Boot) -> None:
    """Become a process of its own: group, signals, the watch for the parent's end."""
    for fd in boot.parent_fds:
        os.close(fd)
    if (alive := forkserver._forkserver._forkserver_alive_fd) is not None:  # type: ignore[attr-defined]
        # Held open by a worker, it would keep the forkserver running after the parent is gone.
        os.close(alive)
        forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if boot.method == "fork":
        atexit._clear()  # the parent's exit functions are not ours
    faulthandler.register(signal.SIGUSR1, file=boot.stacks.fd, all_threads=True)
    threading.Thread(target=_watch_parent, args=(boot.socket,), name="vecenv-parent-watch", daemon=True).start()
    if boot.method == "forkserver" or boot.starter:
        _signal_at_end_of_starter(signal.SIGKILL)
    if boot.method != "forkserver" and boot.starter:
        if os.getppid() != boot.starter:  # it ended before we asked to be told
            os.killpg(0, signal.SIGKILL)
        _start_guard()
    seed_generators(boot.seeds)


def _watch_parent(sock: Any) -> None:
    """Wait for the end of the parent: nobody else holds the other end of our channel."""
    poller = select.poll()
    poller.register(sock, 0)  # nothing but the hang-up
    poller.poll()
    os.killpg(0, signal.SIGKILL)


def _signal_at_end_of_starter(number: int) -> None:
    """Have the kernel signal this process when what started it ends: also while an env holds the interpreter lock.

    The forkserver ends with the parent. Where the parent itself starts workers, it is the end of the starting *thread*
    that counts for the kernel, so that this is for its main thread only.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, number)


def _start_guard() -> None:
    """Start a process that outlives this one for a moment, to kill what the envs have started.

    Without the forkserver, which does that, nobody else is left when the kernel kills this process.
    """
    worker = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if os.fork() == 0:
        os.closerange(3, 1 << 16)  # held open here, they would hide the end of the worker
        _signal_at_end_of_starter(signal.SIGTERM)
        if os.getppid() == worker:
            signal.sigwait({signal.SIGTERM})
        os.killpg(0, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _end_children() -> None:
    """End what the envs started and left running in our process group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
