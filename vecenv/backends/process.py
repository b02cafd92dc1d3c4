"""ProcessBackend: what the backends with worker processes share. Start, handshake, events, calls, restart, the watchdog, close.

    parent                                   worker w (envs start .. stop - 1)
    ------                                   ---------------------------------
    start_process(Boot)          ->          take off, unpickle the env_fns, call each once
                                 <-  READY   a report of each env, or the failure of a constructor
    common_layout, reserve
    SETUP layout                 ->          map the arena, serve
    ... rounds and calls ...
    CLOSE                        ->          close the envs, exit

Death is an event: every wait polls the sentinels of the processes together with their channels.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from vecenv.backends import arena as box
from vecenv.backends import channel as ch
from vecenv.backends.arena import Arena, anonymous_file
from vecenv.backends.base import Backend
from vecenv.backends.channel import Channel, Frame
from vecenv.backends.control import BUSY_NS, CALLS, PROGRESS, Control
from vecenv.backends.failure import Failure
from vecenv.backends.host import EnvReport
from vecenv.backends.launch import Descriptor, check_method, start_process
from vecenv.backends.layout import Layout
from vecenv.backends.rows import Extra
from vecenv.backends.watchdog import Watchdog
from vecenv.backends.worker import Boot, Luggage, Server, dumps
from vecenv.backends.worker import main as worker_main
from vecenv.errors import WorkerDiedError, WorkerTimeoutError

_parent_fds: set[int] = set()
"""Our ends of all channels of this process, of every vector env: a forked worker closes them."""


class Worker:
    """The parent's side of one worker process, and of those that replace it."""

    def __init__(self, index: int, start: int, stop: int) -> None:
        self.index, self.start, self.stop = index, start, stop
        self.ids = range(start, stop)
        self.process: Any = None
        self.channel: Channel = None  # type: ignore[assignment]
        self.alive = False
        self.replies: dict[int, bytes] = {}
        self.ready: list[EnvReport] | Failure | None = None
        self.problems: list[str] | None = None
        self.reason: BaseException | None = None
        """Why we ended it, if we did."""

    @property
    def pid(self) -> int:
        return int(self.process.pid)


class ProcessBackend(Backend):
    """Blocks of envs in worker processes.

    `context` is the start method, `start_timeout` the seconds that all constructors together may take, `step_timeout` the seconds after
    which an env counts as hung, `affinity` whether each worker is bound to one CPU.
    """

    server: type[Server]

    def __init__(
        self,
        context: str | None = None,
        start_timeout: float = 120.0,
        step_timeout: float | None = None,
        affinity: bool = False,
    ) -> None:
        super().__init__()
        self._method = check_method(context)
        self._start_timeout = start_timeout
        self._affinity = affinity
        self.workers: list[Worker] = []
        self._by_fd: dict[int, tuple[Worker, bool]] = {}
        self._poller = select.poll()
        self._number = 0
        self._closing = False
        self._own_fds: list[int] = []
        self.watchdog = Watchdog(self, step_timeout)

    # Start.

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int, eager: bool) -> list[EnvReport]:
        self._makers = [_packed(i, env_fn) for i, env_fn in enumerate(env_fns)]
        self._eager = eager
        n = len(env_fns)
        self.num_workers = num_workers
        self.control = Control(num_workers)
        self.own_fd(self.control.fd)
        self.stacks = self.own_fd(anonymous_file("vecenv-stacks"))
        bounds = np.linspace(0, n, num_workers + 1).round().astype(int).tolist()
        self.workers = [Worker(w, bounds[w], bounds[w + 1]) for w in range(num_workers)]
        self._worker_of = np.repeat(np.arange(num_workers), np.diff(bounds))
        for worker in self.workers:
            self._launch(worker)
        self._await_ready(self.workers)
        return [report for worker in self.workers for report in worker.ready]  # type: ignore[union-attr]

    def own_fd(self, fd: int) -> int:
        """Close `fd` at the end."""
        self._own_fds.append(fd)
        return fd

    def _launch(self, worker: Worker) -> None:
        ours, theirs = socket.socketpair()
        worker.channel, worker.ready, worker.reason, worker.problems = Channel(ours), None, None, None
        _parent_fds.add(ours.fileno())
        self.control.line(worker.index)[CALLS] = 0
        boot = Boot(
            index=worker.index, workers=self.num_workers, first_id=worker.start, count=len(worker.ids), eager=self._eager, socket=theirs,
            control=Descriptor(self.control.fd), stacks=Descriptor(self.stacks),
            parent_fds=tuple(_parent_fds) if self._method == "fork" else (), payload=cloudpickle.dumps(self._luggage(worker)),
            serve=self.server, link=self._link(worker), method=self._method,
        )  # fmt: skip
        try:
            worker.process = start_process(self._method, worker_main, (boot,), f"vecenv-worker-{worker.index}")
        finally:
            theirs.close()  # so that the end of the worker is the end of the stream
        worker.alive = True
        for fd, is_sentinel in ((ours.fileno(), False), (worker.process.sentinel, True)):
            self._by_fd[fd] = worker, is_sentinel
            self._poller.register(fd, select.POLLIN)

    def _luggage(self, worker: Worker) -> Luggage:
        cpus = sorted(os.sched_getaffinity(0)) if self._affinity else []
        return Luggage(
            makers=self._makers[worker.start : worker.stop],
            environ=dict(os.environ)
            if self._method == "forkserver"
            else None,  # the server's own is as old as the server
            registered=_registered_by_user(),
            affinity={cpus[worker.index % len(cpus)]} if cpus else None,
        )

    @abstractmethod
    def _link(self, worker: Worker) -> Any:
        """What the server in the worker needs to be started with."""

    def _await_ready(self, workers: Sequence[Worker]) -> None:
        """Wait until all have reported; raises for the first constructor that failed, and WorkerTimeoutError after `start_timeout`."""
        deadline = time.monotonic() + self._start_timeout
        while any(worker.ready is None for worker in workers):
            for worker in workers:
                if isinstance(worker.ready, Failure):
                    raise worker.ready.exception(worker.pid)
                if worker.ready is None and not worker.alive:
                    raise self._death(worker, "constructing its envs")
            if time.monotonic() >= deadline:
                late = [i for worker in workers if worker.ready is None for i in worker.ids]
                raise WorkerTimeoutError(
                    f"envs {late} were not constructed within start_timeout={self._start_timeout} s"
                )
            self._poll(deadline)
        for worker in workers:
            if isinstance(worker.ready, Failure):
                raise worker.ready.exception(worker.pid)

    def bind(self, layout: Layout) -> Arena:
        self._layout = layout
        self._n = len(self._makers)
        self.arena = self._reserve(layout)
        self._mail = memoryview(self.arena.mail)
        for worker in self.workers:
            worker.channel.post(ch.SETUP, 0, pickle.dumps(layout))
        return self.arena

    @abstractmethod
    def _reserve(self, layout: Layout) -> Arena:
        """The parent's arena."""

    # Rounds.

    def encode(self, payloads: Mapping[int, Any]) -> dict[int, bytes]:
        encoded = {}
        for i, payload in payloads.items():
            try:
                encoded[i] = dumps(payload)
            except Exception as error:
                raise TypeError(f"the action or argument for env {i} cannot be sent to its worker: {error}") from error
        return encoded

    def _load_extras(self, worker: Worker, payload: bytes, expected: set[int]) -> None:
        """Take the extras of a worker's round, or of the envs `expected`. One that cannot be read here fails its env only."""
        try:
            extras = pickle.loads(payload)
        except KeyboardInterrupt:
            raise
        except BaseException:
            extras = self._extras_one_by_one(worker, expected)
        for j, extra in extras.items():
            self._extras[worker.start + j] = extra

    def _extras_one_by_one(self, worker: Worker, expected: set[int]) -> dict[int, Extra]:
        """Have the extras sent again, each pickled alone."""
        reply = self._ask([(worker, ch.RESEND, b"")])[0]
        extras = {}
        for j, blob in (pickle.loads(reply) if reply else {}).items():
            if j not in expected:
                continue
            try:
                extras[j] = pickle.loads(blob)
            except BaseException as error:
                env_id = worker.start + j
                text = f"what env {env_id} returned (info or observation) cannot be read here: {type(error).__name__}: {error}"
                extras[j] = Extra(failure=Failure(env_id, "step", "TypeError", text, "", error=TypeError(text)))
        return extras

    # Calls.

    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> list[Any | Failure]:
        blobs = {i: dumps(a) for i, a in zip(ids, args, strict=True)}
        asked = []
        for w in sorted({int(self._worker_of[i]) for i in ids}):
            worker = self.workers[w]
            mine = {i - worker.start: blobs[i] for i in ids if i in worker.ids}
            asked.append((worker, ch.CALL, pickle.dumps((op, mine))))
        values: dict[int, Any] = {}
        for (worker, _, _), reply in zip(asked, self._ask(asked), strict=True):
            if reply is not None:
                values |= {worker.start + j: value for j, (_, value) in cloudpickle.loads(reply).items()}
        for i in ids:
            if i not in values:
                values[i] = died_failure(i, op, self.lost[i])
        return [values[i] for i in ids]

    def _ask(self, requests: Sequence[tuple[Worker, int, bytes]]) -> list[bytes | None]:
        """Post a request to each worker and wait for the replies; None where the worker died instead."""
        numbers = []
        for worker, kind, payload in requests:
            self._number += 1
            numbers.append(self._number)
            if worker.alive:
                self._post(worker, kind, self._number, payload)
        asked = [(worker, number) for (worker, _, _), number in zip(requests, numbers, strict=True)]

        def owing() -> list[Worker]:
            return [worker for worker, number in asked if worker.alive and number not in worker.replies]

        self.poll_until(lambda: not owing(), None, owing)
        return [worker.replies.pop(number, None) for worker, number in asked]

    def _post(self, worker: Worker, kind: int, number: int, *parts: bytes | memoryview) -> None:
        """Send a frame; what does not fit goes out while we wait for the answer."""
        if not worker.channel.post(kind, number, *parts):
            self._poller.modify(worker.channel.fileno(), select.POLLIN | select.POLLOUT)
        self.control.line(worker.index)[CALLS] += 1
        self._wake(worker)

    def _wake(self, worker: Worker) -> None:
        """A frame is under way."""

    # Events.

    def poll_until(
        self, done: Callable[[], bool], deadline: float | None, owing: Callable[[], Sequence[Worker]] | None = None
    ) -> None:
        """Handle events until `done()` or the deadline, and now and then look whether a worker that owes an answer hangs."""
        look = self.watchdog.start()
        while not done():
            self._poll(look if deadline is None else min(look, deadline))
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return
            if now >= look:
                look = self.watchdog.look(
                    owing() if owing else [worker for worker in self.workers if self._pending(worker)]
                )

    def _poll(self, deadline: float | None) -> None:
        """Wait for events until the deadline (None: without end), and handle them."""
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        for fd, event in self._poller.poll(timeout):
            worker, is_sentinel = self._by_fd.get(fd, (None, False))
            if worker is None:
                self._on_signal(fd)
            elif is_sentinel:
                self._on_end(worker)
            elif worker.alive:
                self._on_channel(worker, event)

    def _on_signal(self, fd: int) -> None:
        """Something that is neither a channel nor a sentinel."""

    def _on_channel(self, worker: Worker, event: int) -> None:
        if event & select.POLLOUT and worker.channel.flush():
            self._poller.modify(worker.channel.fileno(), select.POLLIN)
        for frame in worker.channel.receive():
            self._on_frame(worker, frame)
        if worker.channel.ended and worker.alive:
            self._poller.unregister(
                worker.channel.fileno()
            )  # the sentinel follows, unless the env closed our descriptor
            self._by_fd.pop(worker.channel.fileno())
            worker.process.join(0.1)
            if worker.process.is_alive() and not self._closing:
                self.kill(worker, None)

    def _on_frame(self, worker: Worker, frame: Frame) -> None:
        if frame.kind == ch.ANSWERS:
            self._on_answers(worker, frame)
        elif frame.kind == ch.REPLY:
            worker.replies[frame.number] = frame.payload
        elif frame.kind == ch.READY:
            worker.ready = cloudpickle.loads(frame.payload)
        elif frame.kind == ch.NOTE:
            count = len(worker.ids)
            text = f"{pickle.loads(frame.payload)}. Pass num_workers={min(self._n, self.num_workers * count)} to give each its own worker."
            warnings.warn(text, RuntimeWarning, stacklevel=5)
        elif frame.kind == ch.CLOSED:
            worker.problems = pickle.loads(frame.payload)

    @abstractmethod
    def _on_answers(self, worker: Worker, frame: Frame) -> None:
        """An ANSWERS frame has arrived."""

    # The end of a worker.

    def _on_end(self, worker: Worker) -> None:
        """The process has ended: take what it still sent, fail what it did not answer, remember that its envs are lost."""
        if not worker.alive:
            return
        for frame in worker.channel.receive():
            self._on_frame(worker, frame)
        worker.alive = False
        self._forget(worker)
        if self._closing or worker.ready is None or isinstance(worker.ready, Failure):
            return
        pending = self._pending(worker)
        running = worker.start + self.control.line(worker.index)[PROGRESS] % len(worker.ids)
        error = worker.reason or self._death(worker, f"running env {running}" if pending else "idle")
        for i in worker.ids:
            self.lost[i] = error
        for i in pending:
            self.answer(i, Extra(failure=died_failure(i, "step", error)))

    def _pending(self, worker: Worker) -> list[int]:
        """The envs of a worker that were asked something and have not answered in full."""
        return [
            i
            for i in worker.ids
            if box.IDLE < self._mail[i] < box.DONE or (self._mail[i] == box.DONE_EXTRA and i not in self._extras)
        ]

    def _forget(self, worker: Worker) -> None:
        """Close the parent's ends, reap the process, end what its envs left running."""
        for fd in (worker.channel.fileno(), worker.process.sentinel):
            if self._by_fd.pop(fd, None) is not None:
                self._poller.unregister(fd)
        _parent_fds.discard(worker.channel.fileno())
        worker.channel.close()
        worker.process.join(1.0)
        _kill_group(worker.pid)

    def _death(self, worker: Worker, doing: str) -> WorkerDiedError:
        ids = list(worker.ids)
        which = f"env {ids[0]}" if len(ids) == 1 else f"envs {ids}"
        error = WorkerDiedError(
            f"the worker of {which} (pid {worker.pid}) {_cause(worker.process.exitcode)} while {doing}; "
            f"the other envs are intact. reset({ids if len(ids) > 1 else ids[0]}) starts it again."
        )
        error.env_id, error.env_ids, error.pid = ids[0], tuple(ids), worker.pid
        return error

    def kill(self, worker: Worker, reason: BaseException | None) -> None:
        """End a worker by force, and handle its end as of now; `reason` is the error to give for its envs."""
        worker.reason = reason
        _kill_group(worker.pid)
        _signal(worker.pid, signal.SIGKILL)
        worker.process.join(1.0)
        self._on_end(worker)

    def restart(self, env_id: int) -> None:
        worker = self.workers[int(self._worker_of[env_id])]
        if not worker.alive:
            self._launch(worker)
            try:
                self._await_ready([worker])
            except BaseException:
                self._stop([worker], time.monotonic())
                raise
            worker.channel.post(ch.SETUP, 0, pickle.dumps(self._layout))
        for i in worker.ids:
            self.lost.pop(i, None)
            self._mail[i] = box.IDLE
            self._extras.pop(i, None)

    def busy_time(self) -> list[float]:
        return [self.control.line(worker.index)[BUSY_NS] / 1e9 for worker in self.workers]

    def pid(self, env_id: int) -> int | None:
        return self.workers[int(self._worker_of[env_id])].pid

    # Close.

    def close(self, timeout: float) -> list[str]:
        self._closing = True
        started = [worker for worker in self.workers if worker.process is not None]
        problems = self._stop(started, time.monotonic() + timeout)
        for worker in started:
            problems += worker.problems or []
            worker.process.close()
        for fd in self._own_fds:
            os.close(fd)
        self._own_fds.clear()
        return problems

    def _stop(self, workers: Sequence[Worker], deadline: float) -> list[str]:
        """Ask the workers to close, then kill those that have not ended by the deadline. Returns a line for each that was killed."""
        for worker in workers:
            if worker.alive:
                self._post(worker, ch.CLOSE, 0)
        while any(worker.alive for worker in workers) and time.monotonic() < deadline:
            self._poll(deadline)
        killed = [worker for worker in workers if worker.alive]
        for worker in killed:
            self.kill(worker, None)
        return [
            f"the worker of envs {list(w.ids)} (pid {w.pid}) did not close in time and was killed"
            for w in killed
            if self._closing
        ]


def died_failure(env_id: int, op: str, error: BaseException) -> Failure:
    """The failure of one env because its worker ended."""
    return Failure(env_id, op, type(error).__name__, str(error), "", error=error)


def _packed(i: int, env_fn: Callable[[], Any]) -> bytes:
    try:
        return cloudpickle.dumps(env_fn)
    except Exception as error:
        raise TypeError(
            f"env_fns[{i}] cannot be sent to a worker: {error}. Create what it refers to inside the function."
        ) from error


def _registered_by_user() -> list[bytes]:
    """The specs that somebody added to gymnasium's registry, as far as they can be pickled."""
    blobs = []
    for spec in list(gymnasium.registry.values()):
        if str(spec.entry_point).startswith(("gymnasium.", "shimmy.")):
            continue
        try:
            blobs.append(cloudpickle.dumps(spec))
        except Exception:
            continue
    return blobs


def _cause(exitcode: int | None) -> str:
    """How a process ended, in words."""
    if exitcode is None or exitcode == 255:
        return "ended (its exit status was taken by somebody else)" if exitcode is None else "exited with code 255"
    if exitcode >= 0:
        return f"exited with code {exitcode} (the env called os._exit?)"
    name = signal.Signals(-exitcode).name
    hints = {
        "SIGKILL": " (often the kernel, out of memory)",
        "SIGSEGV": " (a crash in native code)",
        "SIGBUS": " (memory that is gone)",
    }
    return f"was killed by {name}{hints.get(name, '')}"


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _kill_group(pid: int) -> None:
    """Kill the process group that the worker leads, if it exists."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
