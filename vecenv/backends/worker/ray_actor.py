"""`EnvActor`: the Ray actor that runs some envs of a vector env. The driver (parent) calls the actor's methods:

driver                                   actor
------                                   -----
start(WorkerArgs)            ->          on the driver's node: connect to the driver's socket, serve like a worker
                                         process until the envs are closed, return `None`.
                                         Elsewhere: make the envs, return the READY message (frame).
frame(SETUP, ROUND, CALL...) ->          elsewhere only: serve the frame, return the frames of the answer
report()                     ->          elsewhere only: return no frames; the call fails if the actor has ended
"""

from __future__ import annotations

import array
import contextlib
import faulthandler
import itertools
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from vecenv import ray_cluster
from vecenv.backends.ipc.messages import CLOSE, CLOSED, SETUP, Channel, Frame
from vecenv.backends.ipc.serialization import loads_apart, receive_descriptors
from vecenv.backends.memory.shared_memory import BUSY_NS, LINE, MEMORY, PROGRESS, RESETS
from vecenv.backends.memory.state_copies import Changes, StateCopies
from vecenv.backends.worker.main import construct, live
from vecenv.backends.worker.worker_setup import PickledEnvFn, WorkerArgs
from vecenv.seeds import seed_generators

CONNECT_TIMEOUT = 2.0
"""Seconds. An actor that cannot connect to the driver (in a container) works as if on a remote node."""
HANDSHAKE_TIMEOUT = 60.0
HELLO = struct.Struct("<I32s")


class DriverAddress(NamedTuple):
    node: str
    socket: str
    token: bytes


class Bundle(NamedTuple):
    frames: list[tuple[int, int, bytes]]
    progress: int
    busy_ns: int
    resets: int
    memory: int
    changes: Changes


PART = 96_000
"""Bytes per part of an answer. Each part is a separate result of the call, because Ray sends up to 100 KB per
result directly (`max_direct_call_object_size`). Larger results pass through object stores, which takes longer.
"""
MOST_PARTS = 64
"""Maximum number of parts. Ray sends at most 10 MB per answer directly (`task_rpc_inlined_bytes_limit`)."""


def results_for(size: int) -> int:
    return 1 if size <= PART else 1 + min(MOST_PARTS, -(-size // PART))


def split(bundle: Bundle, results: int) -> list[Any]:
    """Return the bundle with sizes in place of payloads, and then the joined payloads in `results - 1` parts."""
    data = memoryview(b"".join(payload for _, _, payload in bundle.frames))
    ends = [PART * k for k in range(results - 1)] + [max(len(data), PART * (results - 1))]
    frames: Any = [(kind, number, len(payload)) for kind, number, payload in bundle.frames]
    return [bundle._replace(frames=frames), *(bytes(data[i:j]) for i, j in itertools.pairwise(ends))]


def joined(results: Sequence[Any]) -> Bundle:
    """Undo `split`."""
    bundle: Bundle = results[0]
    data, start, frames = b"".join(results[1:]), 0, []
    for kind, number, size in cast("list[tuple[int, int, int]]", bundle.frames):
        frames.append((kind, number, data[start : start + size]))
        start += size
    return bundle._replace(frames=frames)


class Outbox:
    """Actor's end of a channel. Collects frames for the result of a call."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, bytes]] = []

    def write(self, kind: int, number: int, *parts: bytes | memoryview) -> None:
        self.frames.append((kind, number, b"".join(parts)))


class EnvActor:
    """Ray actor. Calls run one after the other, in the main thread."""

    def __init__(self, first: int = 0, count: int = 1) -> None:
        self._ids = first, first + count - 1

    def __repr__(self) -> str:
        """Return the actor's name in Ray's dashboard and logs."""
        return "EnvActor(envs {} to {})".format(*self._ids)

    def place(self) -> tuple[int, str]:
        return os.getpid(), ray_cluster.own_node()[1]

    def start(
        self,
        index: int,
        blob: bytes,
        address: DriverAddress,
        step_timeout: float | None,
        hang: str,
        common: np.ndarray | None = None,
    ) -> Bundle | None:
        """Make the envs. On the driver's node, also serve them.

        `blob`: pickled WorkerArgs. `step_timeout`, `hang`: arguments of `HangGuard`. `common`: pickle of all env_fns,
        or `None` if `blob` has them.
        """
        sock = connect_to_driver(address, index)
        if sock is not None:
            with contextlib.suppress(EOFError, ConnectionError):  # the driver has ended
                _live_beside_driver(blob, sock, common)
            sock.close()
            return None
        args = _complete(loads_apart(blob, ()), common)
        self._args = args  # keeps shared states alive
        self._copies = StateCopies(args.setup.states)
        seed_generators(args.seeds)
        self._line = memoryview(array.array("q", [0] * LINE))
        self._outbox = Outbox()
        self._host, server = construct(args, args.server.remote, self._outbox, self._line)
        self._server: Any = server
        self._guard = HangGuard(self._line, len(args.setup.env_fns), step_timeout, hang)
        return self._bundle()

    def report(self) -> Bundle:
        return self._bundle()

    def frame(
        self, kind: int, number: int, payload: bytes, news: Sequence[Any] = (), results: int = 1
    ) -> Bundle | list[Any]:
        """Serve a frame. If a constructor failed, the driver sends only CLOSE, to close the envs made before.

        `news`: shared states that have changed elsewhere. `results`: see `split`.
        """
        self._copies.replace(news)
        with self._guard if kind != CLOSE else contextlib.nullcontext():  # the driver limits `close`
            bundle = self._serve(kind, number, payload)
        return bundle if results == 1 else split(bundle, results)

    def _serve(self, kind: int, number: int, payload: bytes) -> Bundle:
        if self._server is None:
            self._outbox.write(CLOSED, 0, pickle.dumps(self._host.close()))
            return self._bundle()
        if kind == SETUP:
            self._server.bind(pickle.loads(payload))
        else:
            self._server.serve_frame(Frame(kind, number, payload))
        return self._bundle(is_last=kind == CLOSE)

    def _bundle(self, is_last: bool = False) -> Bundle:
        frames, self._outbox.frames = self._outbox.frames, []
        progress, busy_ns, resets, memory = (self._line[place] for place in (PROGRESS, BUSY_NS, RESETS, MEMORY))
        return Bundle(frames, progress, busy_ns, resets, memory, self._copies.changes(is_last))


class HangGuard:
    """Context manager that ends this process if one of `count` envs takes more than `limit` seconds to return.

    The guard first stores the env's index and stack in the Ray cluster under `key`, because a hanging call cannot
    return a result.
    """

    def __init__(self, line: memoryview, count: int, limit: float | None, key: str) -> None:
        self._line, self._count, self._limit, self._key = line, count, limit, key
        self._main = threading.get_ident()
        self._is_inside, self._calls = False, 0
        if limit is not None:
            threading.Thread(target=self._watch, args=(limit,), daemon=True).start()

    def __enter__(self) -> None:
        self._calls += 1
        self._is_inside = True

    def __exit__(self, *exception: object) -> None:
        self._is_inside = False

    def _watch(self, limit: float) -> None:
        seen, spent, at = None, 0.0, time.monotonic()
        while True:
            time.sleep(limit / 10)
            found, now = (self._line[PROGRESS], self._calls if self._is_inside else None), time.monotonic()
            # Count at most half the limit per check (see `Watchdog`).
            spent = spent + min(now - at, limit / 2) if found == seen and self._is_inside else 0.0
            seen, at = found, now
            if spent >= limit:
                stack = "".join(traceback.format_stack(sys._current_frames()[self._main]))
                ray_cluster.put_record(self._key, f"{self._line[PROGRESS] % self._count} {stack}")
                os._exit(1)


def connect_to_driver(address: DriverAddress, index: int) -> socket.socket | None:
    """Return a socket to the driver, or `None` if the driver is on another node or out of reach."""
    if address.node != ray_cluster.own_node()[0] or not address.socket:
        return None
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(CONNECT_TIMEOUT)
        sock.connect(address.socket)
        sock.sendall(HELLO.pack(index, address.token))
    except OSError:
        sock.close()
        return None
    return sock


def _complete(args: WorkerArgs, common: np.ndarray | None) -> WorkerArgs:
    if common is not None:
        for env_fn in args.setup.env_fns:
            assert isinstance(env_fn, PickledEnvFn)
            env_fn.blob = common.data
    return args


def _live_beside_driver(blob: bytes, sock: socket.socket, common: np.ndarray | None) -> None:
    args = _complete(loads_apart(blob, _received(sock)), common)
    # Copies of the socket in processes of envs would hide the end of this process from the driver.
    os.register_at_fork(after_in_child=sock.close)
    faulthandler.register(signal.SIGUSR1, file=args.stacks.fd, all_threads=True)
    seed_generators(args.seeds)
    live(args, Channel(sock))


def _received(sock: socket.socket) -> Sequence[int]:
    sock.settimeout(HANDSHAKE_TIMEOUT)
    fds = receive_descriptors(sock)
    sock.settimeout(None)
    return fds


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Return the peer's pid (0 if in a different pid namespace) and user id."""
    if sys.platform != "linux":  # drivers listen only on Linux
        return 0, -1
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
