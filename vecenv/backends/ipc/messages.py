"""`Channel`: send framed messages between the parent and one worker over a socket pair.

    frame = length u64 | kind u8 | number u64 | payload

The worker's end blocks. The parent's end never does: what cannot be sent at once waits in a buffer until `flush`, and
`receive` reads what has arrived. So no message, however large, can make the two wait for each other.

An interrupt in the parent (see `vecenv.engine.mark`) may lose a frame, but never a part of one: bytes pass between the
socket and the buffers within one call of C. SYNC then finds the end of what was under way: the worker answers it after
all frames before it, and with its number, so that answers to frames of an earlier epoch are known.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections import deque
from typing import Any, NamedTuple, Protocol

from vecenv.backends.ipc.waiting import SpinWait

HEADER = struct.Struct("<QBQ")
CHUNK = 1 << 18
IN_ONE_CALL = deque[Any](maxlen=0).extend
"""Consumes an iterator. With one of C, such as `map` of methods of C, no interrupt falls into it."""
ONE_CHUNK, DONT_WAIT = (CHUNK,), (socket.MSG_DONTWAIT,)
NOTHING: tuple[bytes, deque[int]] = b"", deque(maxlen=0)
GONE_ON_A_MAC = (errno.ENOTCONN, errno.EPROTOTYPE)
"""Errors of macOS, besides EPIPE, when the other end closes while we send."""

# Worker to parent.
READY = 1  # the reports, or the failure of a constructor
ANSWERS = 2  # of a round: rows and extras (Subproc), or the extras alone (Shmem)
REPLY = 3  # to a CALL, with its number
WARNING = 4  # a warning for the user
CLOSED = 5  # the envs are closed; a list of problems
SYNCED = 7  # to a SYNC, with its number
INFO_SCHEMA = 6  # how infos lie in the info rows of the block that have the frame's number
# Parent to worker.
SETUP = 16  # the layout
ROUND = 17  # opcodes and actions (Subproc)
PAYLOADS = 18  # actions and arguments that do not fit the arena (Shmem)
CALL = 19  # run an operation on envs
CLOSE = 20
SYNC = 21  # answer after all frames before it; its number is the epoch, its payload how many were announced


class Frame(NamedTuple):
    """One message."""

    kind: int
    number: int
    payload: bytes | bytearray


class WorkerChannel(Protocol):
    """The worker's end, as far as rounds and calls need it."""

    def write(self, kind: int, number: int, *parts: bytes | memoryview) -> None:
        """Send a frame."""


class Channel:
    """One end; `sock` belongs to it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._in = bytearray()
        self._out: tuple[bytes, deque[int]] = NOTHING
        """The bytes that are being sent, and how many of them each call of `send` has taken."""
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
        if self._out[0]:
            frame = b"".join((self._unsent(), frame))
        sent = deque[int]()
        self._out = frame, sent
        if size < CHUNK and not self.ended:
            try:
                sent.extend(map(self._sock.send, (frame,), DONT_WAIT))
            except OSError:  # full, or the worker is gone: as `flush` finds out
                return self.flush()
            if sent[0] == len(frame):  # nearly always
                self._out = NOTHING
                return True
        return self.flush()

    def _unsent(self) -> memoryview:
        data, sent = self._out
        return memoryview(data)[sum(sent) :]

    def flush(self) -> bool:
        """Send what is waiting; returns True if nothing is left."""
        while not self.ended and (unsent := self._unsent()):
            try:
                self._out[1].extend(map(self._sock.send, (unsent[:CHUNK],), DONT_WAIT))
            except BlockingIOError:
                return False
            except OSError:  # the worker is gone: its sentinel reports the rest
                self.ended = True
        self._out = NOTHING
        return True

    def receive(self) -> None:
        """Read what has arrived, without waiting; `take` returns the frames."""
        while not self.ended:
            size = len(self._in)
            try:
                IN_ONE_CALL(map(self._in.extend, map(self._sock.recv, ONE_CHUNK, DONT_WAIT)))
            except BlockingIOError:
                return
            except OSError:
                self.ended = True
            read = len(self._in) - size
            self.ended = self.ended or not read
            if read < CHUNK:
                return

    def take(self) -> Frame | None:
        """The first complete frame of those that have arrived."""
        if len(self._in) < HEADER.size:
            return None
        size, kind, number = HEADER.unpack_from(self._in)
        end = HEADER.size + size
        if len(self._in) < end:
            return None
        payload = self._in[HEADER.size : end]
        del self._in[:end]
        return Frame(kind, number, payload)
