"""`Channel`: framed messages between the parent and a worker over a socket pair.

    frame = length u64 | kind u8 | number u64 | payload

The worker's end blocks. The parent's end never blocks, so large messages cannot make both ends wait for each other.

Ctrl-C in the parent may lose a whole frame, but never cuts a frame, because a single C call moves bytes between socket
and buffer. After Ctrl-C, the parent sends SYNC, and discards results until the worker answers SYNCED.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
from collections import deque
from typing import Any, NamedTuple, Protocol

from vecenv.backends.ipc.waiting import SpinWait

HEADER = struct.Struct("<QBQ")
CHUNK = 1 << 18
IN_ONE_CALL = deque[Any](maxlen=0).extend
"""Consumes an iterator. Ctrl-C cannot interrupt this if the iterator runs only C code, such as `map` of C methods."""
ONE_CHUNK, DONT_WAIT = (CHUNK,), (socket.MSG_DONTWAIT,)
NONE_UNSENT: tuple[bytes, deque[int]] = b"", deque(maxlen=0)
GONE_ON_A_MAC = (errno.ENOTCONN, errno.EPROTOTYPE)
"""Errors that macOS raises if the other end closes during a send."""

# Worker to parent.
READY = 1  # `EnvReport`s, or a constructor's failure
ANSWERS = 2  # results of a round (a step or reset); for shmem only results outside the arena
REPLY = 3  # answer to the CALL with the same number
WARNING = 4
CLOSED = 5  # the envs are closed; a list of problems
SYNCED = 7  # answer to the SYNC with the same number
INFO_SCHEMA = 6  # layout of the infos in rows that begin with the frame's number
HELLO, ENDED = 8, 9  # of a worker command: versions; progress at its end, and the stack of an env that hangs
# Parent to worker.
SETUP = 16  # the layout of the arena
ROUND = 17  # opcodes and actions (Subproc)
PAYLOADS = 18  # actions and arguments outside the arena (Shmem)
CALL = 19  # an operation besides step and reset
CLOSE = 20
START = 22  # env functions by name, for a worker command
SYNC = 21  # asks for SYNCED; number: count of interrupts; payload: count of frames posted to the worker


class Frame(NamedTuple):
    kind: int
    number: int
    payload: bytes | bytearray


class WorkerChannel(Protocol):
    def write(self, kind: int, number: int, *parts: bytes | memoryview) -> None:
        """Send a frame."""


class Channel:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._in = bytearray()
        self._out: tuple[bytes, deque[int]] = NONE_UNSENT
        """Bytes to send, and the number of bytes that each call of `socket.send` has sent."""
        self.ended = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def hung_up(self, timeout: float) -> bool:
        """Return True if an end of the channel is closed, or the peer closes its end within `timeout` seconds."""
        fd = self.fileno()
        if fd < 0:
            return True
        poller = select.poll()
        poller.register(fd, 0)
        return bool(poller.poll(timeout * 1000))

    def write(self, kind: int, number: int, *parts: bytes | memoryview) -> None:
        """Send a frame. Wait while the socket is full."""
        size = sum(map(len, parts))
        try:
            self._sock.sendall(b"".join((HEADER.pack(size, kind, number), *parts)))
        except OSError as error:
            if error.errno in GONE_ON_A_MAC:
                raise BrokenPipeError(error.errno, error.strerror) from error
            raise

    def read(self, looking: SpinWait | None = None) -> Frame:
        """Return the next frame. Busy-wait with `looking`, then block. Raises EOFError if the parent is gone."""
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

    def post(self, kind: int, number: int, *parts: bytes | memoryview) -> bool:
        """Send a frame without waiting. Keep unsent bytes for `flush`. Return True if no bytes are kept."""
        size = sum(map(len, parts))
        frame = b"".join((HEADER.pack(size, kind, number), *parts))
        if self._out[0]:
            frame = b"".join((self._unsent(), frame))
        sent = deque[int]()
        self._out = frame, sent
        if size < CHUNK and not self.ended:
            try:
                sent.extend(map(self._sock.send, (frame,), DONT_WAIT))
            except OSError:  # the socket is full, or the worker is gone; `flush` finds out
                return self.flush()
            if sent[0] == len(frame):
                self._out = NONE_UNSENT
                return True
        return self.flush()

    def _unsent(self) -> memoryview:
        data, sent = self._out
        return memoryview(data)[sum(sent) :]

    def flush(self) -> bool:
        """Send kept bytes. Return True if all were sent, or if nobody receives them any more."""
        while not self.ended and (unsent := self._unsent()):
            try:
                self._out[1].extend(map(self._sock.send, (unsent[:CHUNK],), DONT_WAIT))
            except BlockingIOError:
                return False
            except OSError:
                break  # the other end is closed, but what it has sent can still be received
        self._out = NONE_UNSENT
        return True

    def receive(self) -> None:
        """Read arrived bytes without waiting. `take` returns the frames."""
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
        if len(self._in) < HEADER.size:
            return None
        size, kind, number = HEADER.unpack_from(self._in)
        end = HEADER.size + size
        if len(self._in) < end:
            return None
        payload = self._in[HEADER.size : end]
        del self._in[:end]
        return Frame(kind, number, payload)
