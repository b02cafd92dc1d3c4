"""`Channel`: send framed messages between the parent and one worker over a socket pair.

    frame = length u64 | kind u8 | number u64 | payload

The worker's end blocks. The parent's end never does: what cannot be sent at once waits in a buffer until `flush`, and
`receive` reads what has arrived. So no message, however large, can make the two wait for each other.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from typing import NamedTuple, Protocol

from vecenv.backends.ipc.waiting import SpinWait

HEADER = struct.Struct("<QBQ")
CHUNK = 1 << 18
GONE_ON_A_MAC = (errno.ENOTCONN, errno.EPROTOTYPE)
"""Errors of macOS, besides EPIPE, when the other end closes while we send."""

# Worker to parent.
READY = 1  # the reports, or the failure of a constructor
ANSWERS = 2  # of a round: rows and extras (Subproc), or the extras alone (Shmem)
REPLY = 3  # to a CALL, with its number
WARNING = 4  # a warning for the user
CLOSED = 5  # the envs are closed; a list of problems
INFO_SCHEMA = 6  # how infos lie in the info rows of the block that have the frame's number
# Parent to worker.
SETUP = 16  # the layout
ROUND = 17  # opcodes and actions (Subproc)
PAYLOADS = 18  # actions and arguments that do not fit the arena (Shmem)
CALL = 19  # run an operation on envs
CLOSE = 20


class Frame(NamedTuple):
    """One message."""

    kind: int
    number: int
    payload: bytes


class WorkerChannel(Protocol):
    """The worker's end, as far as rounds and calls need it."""

    def write(self, kind: int, number: int, *parts: bytes | memoryview) -> None:
        """Send a frame."""


class Channel:
    """One end; `sock` belongs to it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._in = bytearray()
        self._out = bytearray()
        self.ended = False
        """The other end is gone."""

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    # The worker's end.

    def write(self, kind: int, number: int, *parts: bytes | memoryview) -> None:
        """Send a frame; blocks until the parent has room for it."""
        size = sum(map(len, parts))
        try:
            self._sock.sendall(b"".join((HEADER.pack(size, kind, number), *parts)))
        except OSError as error:
            if error.errno in GONE_ON_A_MAC:
                raise BrokenPipeError(error.errno, error.strerror) from error
            raise

    def read(self, looking: SpinWait | None = None) -> Frame:
        """Return the next frame: look for it, if with `looking`, then block. EOFError when the parent is gone."""
        while (frame := self.take()) is None:
            if looking is not None and looking.until(self._has_arrived):
                continue
            chunk = b"" if self.ended else self._sock.recv(CHUNK)
            if not chunk:
                raise EOFError("the parent closed the channel")
            self._in += chunk
        return frame

    def _has_arrived(self) -> bool:
        size = len(self._in)
        self.receive()
        return len(self._in) > size

    # The parent's end.

    def post(self, kind: int, number: int, *parts: bytes | memoryview) -> bool:
        """Send a frame, or as much of it as there is room for; returns True if all of it went."""
        size = sum(map(len, parts))
        frame = b"".join((HEADER.pack(size, kind, number), *parts))
        sent = 0
        if not self._out and not self.ended and size < CHUNK:
            with contextlib.suppress(OSError):  # full, or the worker is gone: as `flush` finds out
                sent = self._sock.send(frame, socket.MSG_DONTWAIT)
        if sent == len(frame):  # nearly always
            return True
        self._out += frame[sent:]
        return self.flush()

    def flush(self) -> bool:
        """Send what is waiting; returns True if nothing is left."""
        while self._out and not self.ended:
            try:
                sent = self._sock.send(memoryview(self._out)[:CHUNK], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:  # the worker is gone: its sentinel reports the rest
                self.ended = True
                break
            del self._out[:sent]
        if self.ended:
            self._out.clear()
        return True

    def receive(self) -> None:
        """Read what has arrived, without waiting; `take` returns the frames."""
        while not self.ended:
            try:
                chunk = self._sock.recv(CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self.ended = True
            self._in += chunk
            if len(chunk) < CHUNK:
                return

    def take(self) -> Frame | None:
        """The first complete frame of those that have arrived."""
        if len(self._in) < HEADER.size:
            return None
        size, kind, number = HEADER.unpack_from(self._in)
        end = HEADER.size + size
        if len(self._in) < end:
            return None
        payload = bytes(memoryview(self._in)[HEADER.size : end])
        del self._in[:end]
        return Frame(kind, number, payload)
