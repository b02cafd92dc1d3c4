"""`RayPool`: pool of workers that are Ray actors, each with a handle (`RayWorker`)."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import signal
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

from vecenv import ray_cluster
from vecenv.backends.ipc.messages import CLOSED, Channel, Frame
from vecenv.backends.ipc.serialization import dumps_apart
from vecenv.backends.ipc.waiting import wakeup_fds
from vecenv.backends.memory.shared_memory import BUSY_NS, DOING, ELSEWHERE, MEMORY, NOTHING, PROGRESS, RESETS
from vecenv.backends.memory.shared_state import SharedState
from vecenv.backends.memory.state_copies import StateMerger
from vecenv.backends.pool.start_methods import search_path
from vecenv.backends.pool.worker_handle import WorkerHandle, hung, stack_of_process
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.backends.worker.ray_actor import HELLO, DriverAddress, EnvActor, joined, peer_of, results_for
from vecenv.backends.worker.worker_setup import WorkerArgs


class CallChannel:
    """Parent's end of a channel to an actor, like `Channel`. Each frame is sent as a call of the actor.

    The channel handles results in the order of calls. `call(method, *args, results=1)` returns a future with a
    `Bundle`, the parts of a `Bundle`, or `None` after the actor has closed the envs. All workers share `states`.
    """

    def __init__(self, call: Callable[..., Future[Any]], line: Any, states: Sequence[SharedState] = ()) -> None:
        self._call, self._line, self._states = call, line, StateMerger(states)
        self.results = 1
        """Number of results per call of `frame` (see `ray_actor.split`)."""
        self._read, self._write = wakeup_fds()
        os.set_blocking(self._read, False)
        self._lock = threading.Lock()
        self._calls: deque[Future[Any]] = deque()
        self._frames: deque[Frame] = deque()
        self._open = True
        self.ended = False
        self.error: BaseException | None = None
        """Exception of a failed call, by which Ray reports the end of an actor."""

    def fileno(self) -> int:
        return self._read

    def start(self, method: str, *args: Any, results: int = 1) -> None:
        future = self._call(method, *args, results=results)
        self._calls.append(future)
        future.add_done_callback(self._wake)

    def _wake(self, _: Any) -> None:
        """Wake the parent. A thread of Ray calls this, maybe after `close`, when the descriptor may be reused."""
        with self._lock:
            if self._open:
                os.write(self._write, (1).to_bytes(8, "little"))

    def post(self, kind: int, number: int, *parts: bytes | memoryview) -> bool:
        self._line[DOING] = ELSEWHERE
        results = self.results
        self.start("frame", kind, number, b"".join(parts), self._states.news(), results, results=results)
        return True

    def flush(self) -> bool:
        return True

    def receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
        while not self.ended and self._calls and self._calls[0].done():
            try:
                bundle = self._calls[0].result()
            except Exception as error:
                self.error, self.ended = error, True
                return
            if isinstance(bundle, list):
                bundle = joined(bundle)
            if bundle is None:
                self.ended = True
                return
            self._line[PROGRESS], self._line[BUSY_NS] = bundle.progress, bundle.busy_ns
            self._line[RESETS], self._line[MEMORY] = bundle.resets, bundle.memory
            self._states.merge(bundle.changes)
            for frame in bundle.frames:
                self._frames.append(Frame(*frame))
                self.ended = self.ended or frame[0] == CLOSED
            self._calls.popleft()
            if not self._calls:
                self._line[DOING] = NOTHING

    def take(self) -> Frame | None:
        return self._frames.popleft() if self._frames else None

    def await_end(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the oldest pending call, and return `ended`.

        For an actor on this node, this call is `start`, which lasts until the envs are closed.
        """
        if not self.ended and self._calls and wait([self._calls[0]], timeout).done:
            self.receive()
        return self.ended

    def seems_ended(self) -> bool:
        """Return True if the oldest pending call has failed, or has returned because the envs are closed.

        An idle actor on another node has no pending call, so ask it. A later `seems_ended` has the answer.
        """
        if not (self._calls or self.ended):
            self.start("report")
        first = next(iter(tuple(self._calls)), None)
        return self.ended or (
            first is not None and first.done() and (first.exception() is not None or first.result() is None)
        )

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                for fd in {self._read, self._write}:
                    os.close(fd)
        # Ray's callbacks of pending calls keep this object alive, so drop its contents.
        self._line = None
        self._calls.clear()
        self._frames.clear()


HELLO_TIMEOUT = 1.0
END_TIMEOUT = 2.0
"""Seconds that Ray may take to end an actor on this node."""
CAUSE_TIMEOUT = 1.0


class RayWorker(WorkerHandle):
    """Handle of an actor. Frames travel by calls, or through a socket if the actor is on this node."""

    def __init__(self, index: int, ids: range) -> None:
        super().__init__(index, ids)
        self._step_timeout: float | None = None
        self._actor: Any = None
        self._place: Future[Any] | None = None
        self._peer, self._peer_node = 0, ""
        self.fds_to_send: list[int] = []
        self._calls: CallChannel
        self._hang = ""
        """Key under which the actor records a hang (see `HangGuard`)."""

    def _where_it_is(self) -> tuple[int, str] | None:
        """Return pid and node of the actor, if known. Its socket may show the pid before Ray answers."""
        place = self._place
        if place is None or not place.done() or place.exception() is not None:
            return (self._peer, self._peer_node) if self._peer else None
        found: tuple[int, str] = place.result()
        return found

    @property
    def pid(self) -> int | None:
        place = self._where_it_is()
        return None if place is None else place[0]

    @property
    def where(self) -> str:
        place = self._where_it_is()
        return "an actor that has not started" if place is None else f"pid {place[0]} on node {place[1]}"

    def launch(self, pool: RayPool, args: WorkerArgs) -> None:
        self._step_timeout = pool.step_timeout
        self._peer, self.on_this_node, self.reports_progress = 0, False, False
        args.setup.paths = search_path()  # to find modules if the nodes share a file system
        blob, self.fds_to_send = dumps_apart(args)
        actor = self._actor = ray_cluster.make_actor(EnvActor, pool.options, self.start, len(self.ids))
        self.launched = True

        def call(method: str, *arguments: Any, results: int = 1) -> Future[Any]:
            return ray_cluster.call_actor(getattr(actor, method), results, *arguments)

        self._place = call("place")
        self.channel = self._calls = CallChannel(call, self.line, args.setup.states)
        self.alive = True
        self._hang = secrets.token_hex(16)
        self._calls.start("start", self.index, blob, pool.address, pool.step_timeout, self._hang, pool.common)

    def expect(self, size: int) -> None:
        self._calls.results = results_for(size)

    def connected(self, sock: socket.socket, peer: int, node: str) -> None:
        """Switch to frames through a socket, because the actor, with the process id `peer`, is on this node."""
        self.channel, self._peer, self._peer_node = Channel(sock), peer, node
        self.on_this_node = self.reports_progress = True

    def fds(self) -> list[int]:
        return [self._calls.fileno()]

    def has_ended(self, timeout: float) -> bool:
        return self._calls.await_end(timeout)

    def seems_ended(self) -> bool:
        return self._calls.seems_ended() or (self.on_this_node and bool(self._peer) and self.channel.hung_up(0.0))

    def kill(self) -> None:
        ray_cluster.end_actor(self._actor)
        # Wait for the end, because late writes into shared memory would look like answers of the restarted worker.
        if self.on_this_node and not self.channel.hung_up(END_TIMEOUT) and self._peer:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._peer, signal.SIGKILL)
            self.channel.hung_up(END_TIMEOUT)

    def clean_up(self) -> None:
        if self.alive and self.reason is None and self.problems is None:
            self._calls.await_end(CAUSE_TIMEOUT)
            self._read_hang()
        self.channel.close()
        self._calls.close()
        ray_cluster.end_actor(self._actor)
        self.alive = False

    def _read_hang(self) -> None:
        limit = self._step_timeout
        if limit is not None and not self.on_this_node and (found := ray_cluster.get_record(self._hang)):
            ray_cluster.remove_record(self._hang)
            place, _, stack = found.partition(" ")
            self.reason = hung(self.ending, [self.start + int(place)], limit, stack)

    def stack(self) -> str:
        if self._peer:
            return stack_of_process(self.stacks, self._peer)
        return f"(not read from another machine or container: `ray stack` on the node of {self.where} prints it)"

    def is_silent(self) -> bool:
        place = self._where_it_is()
        return place is not None and not self.on_this_node and ray_cluster.is_silent(place[1])

    def cause(self) -> str:
        error = self._calls.error
        if error is None:
            return "ended"
        return f"ended ({ray_cluster.missing_package(error) or ray_cluster.reason_of(error)})"


class RayPool(WorkerPool):
    """Pool of actors. `options`: see `ray_cluster.actor_options`."""

    worker_type = RayWorker

    def __init__(self, start_timeout: float, step_timeout: float | None = None, **options: Any) -> None:
        super().__init__(start_timeout, step_timeout)
        self._arguments = options
        self.options: dict[str, Any] = {}
        self._cluster: ray_cluster.RayCluster | None = None
        self._listener: socket.socket | None = None
        self._token = b""
        self.common: Any = None
        """Reference to one pickle of all env_fns in Ray's object store, or `None` (see `pickle_env_fns`)."""
        self.address: DriverAddress
        self.node: str

    def _connect(self) -> None:
        if self._cluster is None:
            self._cluster = ray_cluster.connect()
            self.options = ray_cluster.actor_options(**self._arguments)

    def default_num_workers(self, n: int, eager: bool) -> int:
        self._connect()
        return max(1, min(n, ray_cluster.free_places(self.options)))

    def prepare(self, num_workers: int) -> None:
        self._connect()
        self._token = secrets.token_bytes(32)
        name = ""
        if sys.platform == "linux":
            name = f"\0vecenv-{secrets.token_hex(8)}"
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(name)
            self._listener.listen(num_workers)
            self._listener.setblocking(False)
            self.watch(self._listener.fileno(), self._accept)
        node_id, self.node = ray_cluster.own_node()
        self.address = DriverAddress(node_id, name, self._token)

    def pickle_env_fns(self, env_fns: Sequence[Callable[[], Any]]) -> list[Any]:
        """If all env_fns have one pickle, put it into Ray's object store."""
        found = super().pickle_env_fns(env_fns)
        if found[0].place is None:
            return found
        self.common = ray_cluster.put_bytes(found[0].blob)
        return [replace(env_fn, blob=b"") for env_fn in found]

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        pid, uid = peer_of(sock)
        worker = self._greeted(sock) if uid == os.getuid() else None
        if worker is None:
            sock.close()
            return
        worker.connected(sock, pid, self.node)
        self.watch(sock.fileno(), worker)

    def _greeted(self, sock: socket.socket) -> RayWorker | None:
        sock.settimeout(HELLO_TIMEOUT)
        try:
            index, token = HELLO.unpack(sock.recv(HELLO.size, socket.MSG_WAITALL))
            worker = self.workers[index]
            assert isinstance(worker, RayWorker)
            if not hmac.compare_digest(token, self._token) or not worker.alive:
                return None
            socket.send_fds(sock, [b"."], worker.fds_to_send)
        except (OSError, struct.error, IndexError):  # not a worker, or gone
            return None
        sock.setblocking(True)
        return worker

    def late_text(self, late: Sequence[WorkerHandle]) -> str:
        waiting = sum(worker.pid is None for worker in late)  # actors that Ray has not started
        if not waiting:
            return super().late_text(late)
        return ray_cluster.unscheduled(waiting, len(self.workers), self.options, self.start_timeout)

    def close(self, timeout: float) -> list[str]:
        try:
            return super().close(timeout)
        finally:
            if self._listener is not None:
                self._listener.close()
            self.common = None
            if self._cluster is not None:
                self._cluster.release()
