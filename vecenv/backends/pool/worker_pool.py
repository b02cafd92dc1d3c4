"""`WorkerPool`: starts workers, receives their messages (frames), detects deaths, and closes the workers.

parent                                   worker w (envs start .. stop - 1)
------                                   ---------------------------------
launch(WorkerArgs)           ->          bootstrap, unpickle the env_fns (unless forked), call each once
                             <-  READY   spaces and other data of each env, or the failure of a constructor
SETUP layout                 ->          map the arena, serve
... rounds (steps, resets) and calls ...
CLOSE                        ->          close the envs, exit
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import Failure, read_value
from vecenv.backends.host.own_process import hint_at_own_process
from vecenv.backends.ipc import messages
from vecenv.backends.ipc.messages import Frame
from vecenv.backends.ipc.serialization import PICKLED, Descriptor
from vecenv.backends.ipc.waiting import fence, wakeup_fds
from vecenv.backends.memory.shared_memory import DOING, FRAMES, MEMORY, NOTHING, RESETS, Control, anonymous_file
from vecenv.backends.memory.shared_state import pickled_by_name
from vecenv.backends.pool.worker_handle import TIME_TO_END, Reason, WorkerHandle
from vecenv.backends.system_limits import blocks_of, open_standard_streams
from vecenv.backends.worker.reporting import Reporting
from vecenv.backends.worker.round_server import RoundServer
from vecenv.backends.worker.worker_setup import (
    WorkerArgs,
    WorkerSetup,
    check_imports,
    registered_envs,
    running_files,
)
from vecenv.ctrl_c import sigint_deferred
from vecenv.errors import WorkerTimeoutError
from vecenv.seeds import worker_seeds

LONGEST_POLL = 3600.0
MOST_STATES = 200
"""A worker receives a file descriptor per state, and the system limits the number."""


class PoolOwner(Protocol):
    """Backend that a pool serves until `WorkerPool.close`."""

    @property
    def server(self) -> type[RoundServer]:
        """Class that serves rounds in the workers."""

    def worker_args(self, worker: WorkerHandle) -> Any:
        """Return the transport's arguments for a worker that starts."""

    def on_frame(self, worker: WorkerHandle, frame: Frame) -> None:
        """Handle a frame of a worker."""

    def on_loss(self, worker: WorkerHandle) -> None:
        """Handle the end of a worker."""


class WorkerPool(ABC):
    """Workers of a vector env. `start_timeout`: seconds for all constructors together."""

    worker_type: type[WorkerHandle]
    code = PICKLED
    forked = False

    def __init__(self, start_timeout: float) -> None:
        self.start_timeout = start_timeout
        self._owner: PoolOwner | None = None
        self.workers: list[WorkerHandle] = []
        self.worker_of = np.zeros(0, np.int64)
        self._by_fd: dict[int, WorkerHandle | Callable[[], None]] = {}
        self._poller = select.poll()
        self.closing = False
        self.spare_envs = 0
        """Number of envs per worker that have a second instance (see `SpareEnvs`)."""
        self.is_shared = False
        """True while two workers may serve envs of the same block."""
        self.extra_workers = 0
        """Number of workers that may run in addition, to replace others."""
        self._waker: tuple[int, int] | None = None
        self._own_fds: list[int] = []
        self.large: Descriptor | None = None
        """File with large data of the pickled env_fns, for all workers, also after a restart."""

    @abstractmethod
    def default_num_workers(self, n: int, eager: bool) -> int:
        """Return the default for `num_workers`."""

    @abstractmethod
    def prepare(self, num_workers: int) -> None:
        """Prepare for the first launch. Raises if the system does not allow this number of workers."""

    @abstractmethod
    def pickle_env_fns(self, env_fns: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return a `PickledEnvFn` per env, and place data that the workers share."""

    def late_text(self, late: Sequence[WorkerHandle]) -> str:
        ids, limit = [i for worker in late for i in worker.ids], self.start_timeout
        return (
            f"envs {ids} were not constructed within start_timeout={limit} s; pass a larger one for slow constructors"
        )

    def open(self, owner: PoolOwner, num_workers: int, n: int, eager: bool) -> None:
        self._owner = owner
        check_imports()
        self.prepare(num_workers)
        open_standard_streams()
        self.eager = eager
        self.control = Control(num_workers + self.extra_workers)
        self.own_fd(self.control.fd)
        self._waker = wakeup_fds()
        for fd in set(self._waker):
            self.own_fd(fd)
        self.watch(self._waker[0], _stay_awake)
        stacks = self.own_fd(anonymous_file("vecenv-stacks"))
        blocks = [*blocks_of(n, num_workers), *[range(n, n)] * self.extra_workers]
        self.workers = [self.worker_type(w, ids) for w, ids in enumerate(blocks)]
        for worker in self.workers:
            worker.line, worker.stacks = self.control.line(worker.index), stacks
        self.worker_of = np.repeat(np.arange(len(blocks)), [len(ids) for ids in blocks])

    def start(self, env_fns: Sequence[Callable[[], Any]]) -> list[EnvReport]:
        with pickled_by_name() as states:
            self._env_fns = list(env_fns) if self.forked else self.pickle_env_fns(env_fns)
        self._states = list(states.values())
        if len(states) > MOST_STATES and not self.forked:
            raise ValueError(
                f"the env functions have {len(states)} EnvCreators with a state each, at most {MOST_STATES} are "
                "allowed: use one EnvCreator for several envs"
            )
        self._reporting = None if self.forked else Reporting.of_this_process()
        registered, workers = self._registered(), self.hosts
        for worker in workers:
            self._launch(worker, registered)
        self._await_ready(workers, hints=True)
        return [report for worker in workers for report in worker.ready]  # type: ignore[union-attr]

    @property
    def hosts(self) -> list[WorkerHandle]:
        """Workers that serve envs, in the order of env ids."""
        return sorted((worker for worker in self.workers if worker.hosted), key=lambda worker: worker.place)

    def launch(self, worker: WorkerHandle) -> None:
        """Start a worker without waiting for its envs."""
        self._launch(worker, self._registered())

    def assign(self, ids: Sequence[int], worker: WorkerHandle) -> None:
        """Let `worker` serve the envs `ids` of its block."""
        for i in ids:  # a single store per env, so that an interrupt leaves each env with one worker
            self.worker_of[i] = worker.index
        fence()
        self.update_hosted()

    def update_hosted(self) -> None:
        owners = self.worker_of.tolist()
        for worker in self.workers:
            worker.hosted = [i for i in worker.ids if owners[i] == worker.index]

    def restart(self, worker: WorkerHandle, setup: bytes) -> None:
        """Restart a worker that has ended. If this fails, kill the new worker."""
        try:
            self.launch(worker)
            self._await_ready([worker], hints=False)
            self.post(worker, messages.SETUP, 0, setup)
        except BaseException:
            if worker.alive:
                self.kill(worker, None)
            raise

    def own_fd(self, fd: int) -> int:
        """Return `fd`, which `WorkerPool.close` will close."""
        self._own_fds.append(fd)
        return fd

    def watch(self, fd: int, owner: WorkerHandle | Callable[[], None]) -> None:
        """Poll `fd` in all waits. When `fd` is readable, call `owner`, or if `owner` is a worker, handle its event."""
        self._by_fd[fd] = owner
        self._poller.register(fd, select.POLLIN)

    def _registered(self) -> list[bytes]:
        return [] if self.forked else registered_envs()

    def _launch(self, worker: WorkerHandle, registered: list[bytes]) -> None:
        assert self._owner is not None
        worker.line[DOING], worker.line[RESETS], worker.line[MEMORY] = NOTHING, 0, 0
        worker.ready = worker.reason = worker.problems = None
        env_fns = self._env_fns[worker.start : worker.stop]
        args = WorkerArgs(
            index=worker.index,
            place=worker.place,
            num_workers=len(self.workers),
            first_id=worker.start,
            count=len(worker.ids),
            eager=self.eager,
            shares_block=self.extra_workers > 0,
            spare_envs=self.spare_envs,
            control=Descriptor(self.control.fd),
            stacks=Descriptor(worker.stacks),
            setup=WorkerSetup(env_fns, registered, states=self._states, large=self.large, reporting=self._reporting),
            seeds=worker_seeds(worker.index),
            server=self._owner.server,
            transport=self._owner.worker_args(worker),
            imports=running_files(self.forked),
        )
        with sigint_deferred():  # an interrupt in between would leave a process that nobody ends
            worker.launch(self, args)
            for fd in worker.fds():
                self.watch(fd, worker)

    def _await_ready(self, workers: Sequence[WorkerHandle], hints: bool) -> None:
        deadline = time.monotonic() + self.start_timeout
        while True:
            for worker in workers:
                if isinstance(worker.ready, Failure):
                    error = worker.ready.exception(worker.pid)
                    if hints and worker.ready.env_id > worker.start:
                        hint_at_own_process(error, len(self._env_fns), in_workers=True)
                    raise error
                if not worker.alive:  # possibly after READY
                    raise worker.death(worker.start)
            late = [worker for worker in workers if worker.ready is None]
            if not late:
                return
            if time.monotonic() >= deadline:
                raise WorkerTimeoutError(self.late_text(late))
            self.handle_events(self.events(deadline))

    def post(self, worker: WorkerHandle, kind: int, number: int, *parts: bytes | memoryview) -> None:
        """Send a frame. If the socket is full, later waits send the remaining bytes."""
        if not worker.channel.post(kind, number, *parts):
            self._poller.modify(worker.channel.fileno(), select.POLLIN | select.POLLOUT)

    def request(self, worker: WorkerHandle, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a frame that a serving worker reads between rounds."""
        # With shared memory, the worker watches this count, not its channel. Count before sending, so that interrupts
        # leave no frame unread.
        worker.line[FRAMES] += 1
        self.post(worker, kind, number, payload)
        if worker.wakeup is not None:
            fence()
            worker.wakeup.wake()

    def encode_own(self, worker: WorkerHandle, by_id: Mapping[int, Any]) -> bytes:
        """Encode the values of the worker's envs, by index. Return empty bytes if there are none."""
        mine = worker.own(by_id)
        return self.code.dumps(mine) if mine else b""

    def events(self, deadline: float | None) -> Sequence[tuple[int, int]]:
        """Poll until an event or `deadline` (time.monotonic; `None`: do not wait)."""
        # poll() rejects very long timeouts, so wait shorter. The caller polls in a loop.
        seconds = 0.0 if deadline is None else min(max(0.0, deadline - time.monotonic()), LONGEST_POLL)
        try:
            return self._poller.poll(seconds * 1000)
        except RuntimeError:  # another thread is polling, and handles the events
            return ()

    def handle_events(self, events: Sequence[tuple[int, int]]) -> None:
        # Look up all owners first, because handling a worker's end closes descriptors, whose numbers may be reused.
        for found, fd, event in [(self._by_fd.get(fd), fd, event) for fd, event in events]:
            if callable(found):
                found()
            elif found is not None and found.alive:
                if fd == found.channel.fileno():
                    self._on_channel(found, event)
                else:
                    self._on_end(found)

    def _on_channel(self, worker: WorkerHandle, event: int) -> None:
        if event & select.POLLOUT and worker.channel.flush():
            self._poller.modify(worker.channel.fileno(), select.POLLIN)
        self._receive(worker)
        if worker.channel.ended and worker.alive:
            self._unregister(worker.channel.fileno())  # the worker is ending, or an env closed the channel
            if worker.has_ended(TIME_TO_END):
                self._on_end(worker)
            elif not self.closing:
                worker.cut_off = True
                worker.kill()
                self._on_end(worker)

    def _receive(self, worker: WorkerHandle) -> None:
        worker.channel.receive()
        while (frame := worker.channel.take()) is not None:
            if frame.kind == messages.READY:
                blobs = enumerate(self.code.loads(frame.payload), worker.start)
                reports = [read_value(blob, i, "__init__", self.code.unpack) for i, blob in blobs]
                worker.ready = next((report for report in reports if isinstance(report, Failure)), reports)
                worker.served = worker.served or not isinstance(worker.ready, Failure)
            elif frame.kind == messages.CLOSED:
                worker.problems = self.code.loads(frame.payload)
            elif self._owner is not None:
                self._owner.on_frame(worker, frame)

    def _on_end(self, worker: WorkerHandle) -> None:
        if worker.alive:
            self._receive(worker)
            self._note_end(worker)

    def _note_end(self, worker: WorkerHandle) -> None:
        self._unregister(*[fd for fd, found in self._by_fd.items() if found is worker])
        worker.clean_up()
        if self._owner is not None:
            self._owner.on_loss(worker)

    def _unregister(self, *fds: int) -> None:
        for fd in fds:
            if self._by_fd.pop(fd, None) is not None:
                with contextlib.suppress(KeyError):  # an interrupt came before the registration
                    self._poller.unregister(fd)

    def kill(self, worker: WorkerHandle, reason: Reason | None) -> None:
        worker.reason = reason
        worker.kill()
        self._on_end(worker)

    def resume(self) -> None:
        """After an interrupt, kill workers whose kill or start was interrupted. Poll the remaining workers."""
        for worker in self.workers:
            if worker.alive and (worker.reason is not None or not isinstance(worker.ready, list)):
                self.kill(worker, worker.reason)
        self._renew_poller()

    def _renew_poller(self) -> None:
        found = {fd: owner for fd, owner in self._by_fd.items() if not isinstance(owner, WorkerHandle) or owner.alive}
        for worker in self.workers:
            if worker.alive:
                found |= {fd: worker for fd in (*worker.fds(), worker.channel.fileno()) if fd >= 0}
        poller = select.poll()
        for fd in found:
            poller.register(fd, select.POLLIN)
        self._by_fd, self._poller = found, poller

    def end_wait(self) -> None:
        self.closing = True
        if self._waker is not None:
            os.write(self._waker[1], (1).to_bytes(8, "little"))

    def close(self, timeout: float) -> list[str]:
        """Close the envs and end the workers. Return a line for each problem."""
        self.closing = True
        self._owner = None  # which holds the arena
        self.worker_of = self.worker_of.copy()
        if self._waker is not None:  # the waker stays readable, but must end only waits of other threads
            self._by_fd.pop(self._waker[0], None)
        self._renew_poller()  # another thread or an interrupted call may still use the old poller
        started = [worker for worker in self.workers if worker.launched]
        try:
            problems = self._stop(started, time.monotonic() + timeout)
        finally:  # also if Ctrl-C interrupts `_stop`
            for worker in started:
                if worker.alive:
                    self.kill(worker, None)
                worker.discard()
            own_fds, self._own_fds = self._own_fds, []
            for fd in own_fds:
                os.close(fd)
        return problems + [problem for worker in started for problem in worker.problems or []]

    def _stop(self, workers: Sequence[WorkerHandle], deadline: float) -> list[str]:
        asked = []
        for worker in workers:
            if worker.alive and worker.ready is None:
                self.kill(worker, None)
            elif worker.alive:
                self.request(worker, messages.CLOSE, 0)
                asked.append(worker)
        while any(worker.alive for worker in workers) and time.monotonic() < deadline:
            self.handle_events(self.events(deadline))
        killed = [worker for worker in workers if worker.alive]
        for worker in killed:
            self.kill(worker, None)
        return [
            f"the worker of envs {list(w.ids)} ({w.where}) "
            + ("did not close in time and was killed" if w in killed else "ended before its envs had closed")
            for w in asked
            if w.problems is None and not isinstance(w.ready, Failure)
        ]


def _stay_awake() -> None:
    """Leave the waker readable, so that later waits also return."""
