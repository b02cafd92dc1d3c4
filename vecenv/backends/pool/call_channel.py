"""CallChannel: the parent's end of frames that travel as calls of an actor and as their results."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vecenv.backends.ipc.control_block import BUSY_NS, DOING, ELSEWHERE, NOTHING, PROGRESS
from vecenv.backends.ipc.messages import CLOSED, Frame
from vecenv.backends.ipc.waiting import wakeup_fds


class CallChannel:
    """Has the methods of the parent's end of `Channel`. Results are handled in the order of their calls.

    `call(method, *args)` starts a call of the actor, whose result is a `Bundle`, or None when the actor has closed its
    envs. `line` is the worker's line of the control page.
    """

    def __init__(self, call: Callable[..., Future[Any]], line: Any) -> None:
        self._call, self._line = call, line
        self._read, self._write = wakeup_fds()
        os.set_blocking(self._read, False)
        self._lock = threading.Lock()
        self._calls: deque[Future[Any]] = deque()
        self._frames: deque[Frame] = deque()
        self._open = True
        self.ended = False
        """The actor is gone, or has closed its envs."""
        self.error: BaseException | None = None
        """What Ray reported about its end."""

    def fileno(self) -> int:
        return self._read

    def start(self, method: str, *args: Any) -> None:
        """Start a call."""
        future = self._call(method, *args)
        self._calls.append(future)
        future.add_done_callback(self._wake)

    def _wake(self, _: Any) -> None:
        """In a thread of Ray: wake the parent. After `close` its number may be that of another descriptor."""
        with self._lock:
            if self._open:
                os.write(self._write, (1).to_bytes(8, "little"))

    def post(self, kind: int, number: int, *parts: bytes | memoryview) -> bool:
        self._line[DOING] = ELSEWHERE
        self.start("frame", kind, number, b"".join(parts))
        return True

    def flush(self) -> bool:
        return True

    def receive(self) -> None:
        """Take the results that have arrived."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
        while not self.ended and self._calls and self._calls[0].done():
            try:
                bundle = self._calls[0].result()
            except Exception as error:
                self.error, self.ended = error, True
                return
            if bundle is None:
                self.ended = True
                return
            self._line[PROGRESS], self._line[BUSY_NS] = bundle.progress, bundle.busy_ns
            for frame in bundle.frames:
                self._frames.append(Frame(*frame))
                self.ended = self.ended or frame[0] == CLOSED
            self._calls.popleft()
            if not self._calls:
                self._line[DOING] = NOTHING

    def take(self) -> Frame | None:
        return self._frames.popleft() if self._frames else None

    def await_end(self, timeout: float) -> bool:
        """Whether the first call has ended, or ends within `timeout` seconds; that of an actor on this node lasts as
        long as its envs."""
        if not self.ended and self._calls:
            try:
                self._calls[0].exception(timeout)
            except TimeoutError:
                return False
            self.receive()
        return self.ended

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                for fd in {self._read, self._write}:
                    os.close(fd)
        # Ray holds the callbacks of calls that are not over yet, and with them this object.
        self._line = None
        self._calls.clear()
        self._frames.clear()
