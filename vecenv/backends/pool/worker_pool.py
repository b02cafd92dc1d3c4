"""Workers: the processes of a backend, from start to close, and everything that they send.

    parent                                   worker w (envs start .. stop - 1)
    ------                                   ---------------------------------
    start_process(Boot)          ->          take off, unpickle the env_fns (unless forked), call each once
                                 <-  READY   a report of each env, or the failure of a constructor
    common_layout, reserve
    SETUP layout                 ->          map the arena, serve
    ... rounds and calls ...
    CLOSE                        ->          close the envs, exit

Death is an event: every wait polls the sentinels of the processes together with their channels.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenv.backends.base import Backend
from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import Failure, read_value
from vecenv.backends.ipc import messages
from vecenv.backends.ipc.control_block import BUSY_NS, DOING, NOTHING, Control
from vecenv.backends.ipc.messages import Frame
from vecenv.backends.memory.shared_memory import anonymous_file
from vecenv.backends.pool.cpu_placement import Placement
from vecenv.backends.pool.start_methods import ONE_THREAD, Descriptor, check_method
from vecenv.backends.pool.watchdog import Hung, Watchdog
from vecenv.backends.pool.worker_handle import WorkerProcess
from vecenv.backends.shield import shield
from vecenv.backends.system_limits import check_descriptors
from vecenv.backends.worker.main import Boot, Server
from vecenv.backends.worker.rng_seeds import worker_seeds
from vecenv.backends.worker.worker_setup import WorkerSetup, pickle_env_fn, registered_by_user
from vecenv.errors import ClosedError, WorkerTimeoutError

FDS_PER_WORKER = 7  # channel, sentinel, what it watches, bell, its pidfd, and two more while it starts
FDS_BESIDES = 24
LONGEST_POLL = 3600.0
START_TIMEOUT = 120.0


class Workers(Backend):
    """The worker processes of a backend; what travels to and from them in a round is a subclass's business.

    `context` is the start method, `start_timeout` the seconds that all constructors together may take, `step_timeout`
    the seconds after which an env counts as hung, `affinity` whether each worker is bound to one CPU.
    """

    server: type[Server]
    _waited_for = False
    """Whether a call sleeps until envs have answered."""

    def __init__(
        self,
        context: str | None = None,
        start_timeout: float = START_TIMEOUT,
        step_timeout: float | None = None,
        affinity: bool = False,
    ) -> None:
        super().__init__()
        self._method = check_method(context)
        self._forked = self._method == "fork"
        self._start_timeout = start_timeout
        self._affinity = affinity
        self.workers: list[WorkerProcess] = []
        self._by_fd: dict[int, WorkerProcess] = {}
        self._poller = select.poll()
        self._closing = False
        self._notes: list[str] = []
        self._own_fds: list[int] = []
        self.watchdog = Watchdog(self, step_timeout)

    # Start.

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int, eager: bool) -> list[EnvReport]:
        self._makers = [env_fn if self._forked else pickle_env_fn(i, env_fn) for i, env_fn in enumerate(env_fns)]
        check_descriptors(FDS_PER_WORKER * num_workers + FDS_BESIDES, f"{num_workers} workers")
        self.raise_shield()
        self._eager = eager
        n = len(env_fns)
        self.num_workers = num_workers
        self.control = Control(num_workers)
        self._placement = None if self._affinity or eager or num_workers == 1 else Placement(self.control)
        self.own_fd(self.control.fd)
        self.stacks = self.own_fd(anonymous_file("vecenv-stacks"))
        bounds = np.linspace(0, n, num_workers + 1).round().astype(int).tolist()
        self.workers = [WorkerProcess(w, bounds[w], bounds[w + 1]) for w in range(num_workers)]
        self._worker_of = np.repeat(np.arange(num_workers), np.diff(bounds))
        registered = self._registered()
        for worker in self.workers:
            self._launch(worker, registered)
        self._await_ready(self.workers)
        return [report for worker in self.workers for report in worker.ready]  # type: ignore[union-attr]

    def own_fd(self, fd: int) -> int:
        """Close `fd` at the end."""
        self._own_fds.append(fd)
        return fd

    def _registered(self) -> list[bytes]:
        """What workers are told of gymnasium's registry, as it is now."""
        return [] if self._forked else registered_by_user()

    def _launch(self, worker: WorkerProcess, registered: list[bytes]) -> None:
        line = self.control.line(worker.index)
        line[DOING] = NOTHING
        self.watchdog.forget(worker)
        cpus = sorted(os.sched_getaffinity(0)) if self._affinity else []
        setup = WorkerSetup(
            makers=self._makers[worker.start : worker.stop],
            # The environment of the forkserver is as old as the forkserver.
            environ={**dict.fromkeys(ONE_THREAD, "1"), **os.environ} if self._method == "forkserver" else None,
            registered=registered,
            affinity={cpus[worker.index % len(cpus)]} if cpus else None,
        )
        boot = Boot(
            index=worker.index,
            workers=self.num_workers,
            first_id=worker.start,
            count=len(worker.ids),
            eager=self._eager,
            method=self._method,
            control=Descriptor(self.control.fd),
            stacks=Descriptor(self.stacks),
            setup=setup,
            seeds=worker_seeds(worker.index),
            server=self.server,
            starter=os.getpid() if threading.current_thread() is threading.main_thread() else 0,
            shared=self._shared_parts(worker),
        )
        with shield:  # to start a process takes its time, but Ctrl-C has to wait for that anyway
            worker.launch(boot)
            for fd in worker.fds():
                self._by_fd[fd] = worker
                self._poller.register(fd, select.POLLIN)

    @abstractmethod
    def _shared_parts(self, worker: WorkerProcess) -> Any:
        """What the server in the worker needs to be started with."""

    def _await_ready(self, workers: Sequence[WorkerProcess]) -> None:
        """Wait until all have reported; raises for the first constructor that failed or is late."""
        deadline = time.monotonic() + self._start_timeout
        while True:
            for worker in workers:
                if isinstance(worker.ready, Failure):
                    raise worker.ready.exception(worker.pid)
                if not worker.alive:  # also once it has reported
                    raise worker.death(worker.start, None)
            late = [i for worker in workers if worker.ready is None for i in worker.ids]
            if not late:
                return
            if time.monotonic() >= deadline:
                raise WorkerTimeoutError(
                    f"envs {late} were not constructed within start_timeout={self._start_timeout} s"
                )
            self._handle(self._events(deadline))

    # What is sent.

    def _post(self, worker: WorkerProcess, kind: int, number: int, *parts: bytes | memoryview) -> None:
        """Send a frame that the worker reads while it serves."""
        self._post_frame(worker, kind, number, *parts)

    def _post_frame(self, worker: WorkerProcess, kind: int, number: int, *parts: bytes | memoryview) -> None:
        """Send a frame; what does not fit goes out while we wait for the answer."""
        if not worker.channel.post(kind, number, *parts):
            self._poller.modify(worker.channel.fileno(), select.POLLIN | select.POLLOUT)

    # Events.

    def poll_until(
        self,
        done: Callable[[], bool],
        deadline: float | None,
        owing: Callable[[], Sequence[WorkerProcess]] | None = None,
    ) -> None:
        """Handle events until `done()` or the deadline, and now and then look for workers that hang."""
        if self._waited_for:
            raise RuntimeError("another call waits for this vector env: one at a time may use it")
        look = self.watchdog.start()
        self._waited_for = True
        try:
            while not done():
                events = self._events(look if deadline is None else min(look, deadline))
                if self._closing:  # by another thread, or by the handler of a signal
                    raise ClosedError("the vector env was closed while this call waited for its envs")
                self._handle(events)
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    return
                if now >= look:
                    look = self.watchdog.look(owing() if owing else self._owing())
        finally:
            self._waited_for = False

    def _owing(self) -> list[WorkerProcess]:
        """The workers of envs that have yet to answer."""
        return [worker for worker in self.workers if self._pending(worker)]

    def _events(self, deadline: float) -> Sequence[tuple[int, int]]:
        """What happens until the deadline."""
        # The system takes no wait of a month: whoever waits looks again.
        return self._poll(min(max(0.0, deadline - time.monotonic()), LONGEST_POLL) * 1000)

    def _poll(self, timeout: float) -> Sequence[tuple[int, int]]:
        try:
            return self._poller.poll(timeout)
        except RuntimeError:  # another thread waits, and will see what there is
            return ()

    def _handle(self, events: Sequence[tuple[int, int]]) -> None:
        """Handle what `poll` has found."""
        with shield:
            # Found out first: the end of a worker, which several of its descriptors may tell, makes them nobody's.
            for worker, fd, event in [(self._by_fd.get(fd), fd, event) for fd, event in events]:
                if worker is None:
                    self._on_wakeup()
                elif worker.alive and fd == worker.channel.fileno():
                    self._on_channel(worker, event)
                elif worker.alive:
                    self._on_end(worker)

    def _on_wakeup(self) -> None:
        """What was found is neither a channel nor a sentinel: the parent's wakeup (Shmem)."""

    def _on_channel(self, worker: WorkerProcess, event: int) -> None:
        if event & select.POLLOUT and worker.channel.flush():
            self._poller.modify(worker.channel.fileno(), select.POLLIN)
        worker.channel.receive()
        self._handle_frames(worker)
        if worker.channel.ended and worker.alive:
            self._unregister(worker.channel.fileno())  # the sentinel follows, unless the env closed our descriptor
            worker.process.join(0.1)
            if not worker.process.is_alive():
                self._on_end(worker)
            elif not self._closing:
                self.kill(worker, None)

    def _handle_frames(self, worker: WorkerProcess) -> None:
        while (frame := worker.channel.take()) is not None:
            self._on_frame(worker, frame)

    def _on_frame(self, worker: WorkerProcess, frame: Frame) -> None:
        if frame.kind == messages.ANSWERS:
            self._on_answers(worker, frame)
        elif frame.kind == messages.REPLY:
            self._on_reply(worker, frame)
        elif frame.kind == messages.READY:
            worker.ready = _read_reports(worker, pickle.loads(frame.payload))
            worker.served = worker.served or not isinstance(worker.ready, Failure)
        elif frame.kind == messages.NOTE:
            more = min(len(self._makers), self.num_workers * len(worker.ids))
            self._notes.append(f"{pickle.loads(frame.payload)}. Pass num_workers={more} to give each its own worker.")
        elif frame.kind == messages.CLOSED:
            worker.problems = pickle.loads(frame.payload)

    @abstractmethod
    def _on_answers(self, worker: WorkerProcess, frame: Frame) -> None:
        """An ANSWERS frame has arrived."""

    @abstractmethod
    def _on_reply(self, worker: WorkerProcess, frame: Frame) -> None:
        """A REPLY frame has arrived."""

    # The end of a worker.

    def _on_end(self, worker: WorkerProcess) -> None:
        """The process has ended: take what it still sent, and settle what it did not answer."""
        if not worker.alive:
            return
        worker.channel.receive()
        self._handle_frames(worker)
        self._unregister(*worker.fds())
        worker.bury()
        self._on_loss(worker)

    @abstractmethod
    def _pending(self, worker: WorkerProcess) -> list[int]:
        """The envs of a worker that were asked something and have not answered in full."""

    @abstractmethod
    def _on_loss(self, worker: WorkerProcess) -> None:
        """A worker has ended: its envs are lost, and what it owes is answered by that."""

    def _unregister(self, *fds: int) -> None:
        for fd in fds:
            if self._by_fd.pop(fd, None) is not None:
                self._poller.unregister(fd)

    def kill(self, worker: WorkerProcess, reason: Hung | None) -> None:
        """End a worker by force, and handle its end as of now; `reason` says why, where a step took too long."""
        worker.reason = reason
        worker.kill()
        with shield:
            self._on_end(worker)

    def look(self) -> None:
        if events := self._poll(0):
            self._handle(events)

    def busy_time(self) -> list[float]:
        return [self.control.line(worker.index)[BUSY_NS] / 1e9 for worker in self.workers]

    def pid(self, env_id: int) -> int | None:
        return self.workers[int(self._worker_of[env_id])].pid

    # Close.

    def close(self, timeout: float) -> list[str]:
        self._closing = True
        # One of its own: a call may be waiting in the other, in another thread or where a signal has interrupted it.
        self._poller = select.poll()
        for fd in self._by_fd:
            self._poller.register(fd, select.POLLIN)
        started = [worker for worker in self.workers if worker.process is not None]
        try:
            problems = self._stop(started, time.monotonic() + timeout)
        finally:  # also after a Ctrl-C, which waits for nobody
            with shield:
                for worker in started:
                    if worker.alive:
                        self.kill(worker, None)
                    with contextlib.suppress(ValueError):  # killed, and not gone yet
                        worker.process.close()
                for fd in self._own_fds:
                    os.close(fd)
            self.lower_shield()
            # The memory goes with the last view of it that the caller holds, not with this object.
            self.__dict__.clear()
            self._closing = True
        return problems + [problem for worker in started for problem in worker.problems or []]

    def _stop(self, workers: Sequence[WorkerProcess], deadline: float) -> list[str]:
        """Ask the workers to close, and kill those that have not by the deadline, with a line for each."""
        asked = []
        for worker in workers:
            if worker.alive and worker.ready is None:
                self.kill(worker, None)
            elif worker.alive:
                self._post(worker, messages.CLOSE, 0)
                asked.append(worker)
        while any(worker.alive for worker in workers) and time.monotonic() < deadline:
            self._handle(self._events(deadline))
        killed = [worker for worker in workers if worker.alive]
        for worker in killed:
            self.kill(worker, None)
        return [
            f"the worker of envs {list(w.ids)} (pid {w.pid}) "
            + ("did not close in time and was killed" if w in killed else "ended before its envs had closed")
            for w in asked
            if self._closing and w.problems is None and not isinstance(w.ready, Failure)
        ]


def _read_reports(worker: WorkerProcess, blobs: Sequence[bytes]) -> list[EnvReport] | Failure:
    reports = [read_value(blob, worker.start + j, "__init__") for j, blob in enumerate(blobs)]
    return next((report for report in reports if isinstance(report, Failure)), reports)
