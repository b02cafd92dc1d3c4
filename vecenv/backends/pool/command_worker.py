"""`CommandPool`: pool of workers that are commands, which exchange frames over their standard streams.

parent                            worker_command
------                            --------------
START env functions by name  ->   `python -m vecenv.worker`, `ssh host ...`, `podman run -i ...`
                             <-   magic bytes, HELLO versions
                             <-   READY, and so on as for every worker (see `worker_pool`)

Frames of a command are not trusted. A wrong frame ends the worker, with an error that shows what arrived.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from vecenv.backends.ipc import messages
from vecenv.backends.ipc.messages import CHUNK, HEADER, Channel, Frame
from vecenv.backends.memory.shared_memory import BUSY_NS, DOING, ELSEWHERE, SENDING
from vecenv.backends.pool.process_worker import (
    LAUNCHED,
    ProcessWorker,
    enlarge_buffers,
    exit_in_words,
)
from vecenv.backends.pool.start_methods import ONE_THREAD
from vecenv.backends.pool.worker_handle import Reason, WorkerHandle
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.backends.worker.plain_code import LARGEST, PLAIN
from vecenv.backends.worker.worker_setup import WorkerArgs
from vecenv.errors import VectorEnvError, WorkerDiedError
from vecenv.portability import pidfd
from vecenv.worker_numpy import MAGIC, PROTOCOL

MOST_NOISE = 1 << 16
"""Bytes that may come before the magic bytes, for example from a `.bashrc` on the other host."""
TIME_TO_HANG_UP = 0.5
"""Seconds that a command may take to end after its stdin has closed."""
OF_WORKERS = "ANSWERS", "REPLY", "WARNING", "CLOSED", "SYNCED", "INFO_SCHEMA", "ENDED"
KINDS = {getattr(messages, name) for name in OF_WORKERS}
SHOWN = 400


class CommandChannel(Channel):
    """Parent's end of the standard streams of a command. `line`: see `Control`."""

    def __init__(self, sock: socket.socket, line: Any) -> None:
        super().__init__(sock)
        self._line = line
        self._expected = messages.HELLO
        self.hello: dict[str, Any] = {}
        self.failed = False

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):  # it is closed already
            self._sock.shutdown(socket.SHUT_RDWR)

    def fail(self) -> None:
        """Ignore what arrives from now on."""
        self.failed = self.ended = True
        self._in.clear()

    def post(self, kind: int, number: int, *parts: bytes | memoryview) -> bool:
        if kind in (messages.ROUND, messages.CALL):
            self._line[DOING] = ELSEWHERE
        return super().post(kind, number, *parts)

    @property
    def has_part(self) -> bool:
        """True if a part of a frame has arrived."""
        return bool(self._in)

    @property
    def noise(self) -> str:
        """Text that has arrived in place of the magic bytes."""
        return "" if self.hello else bytes(self._in[:SHOWN]).decode(errors="backslashreplace")

    def take(self) -> Frame | None:
        """Return the next frame. Raises ValueError for bytes that are not a frame of this protocol."""
        if self.failed or (self._expected == messages.HELLO and not self._greeted()):
            return None
        if len(self._in) < HEADER.size:
            return None
        size, kind, number = HEADER.unpack_from(self._in)
        if size > LARGEST or kind not in (KINDS if not self._expected else (self._expected, messages.ENDED)):
            raise ValueError(f"a frame of kind {kind} and {size} bytes, {bytes(self._in[:SHOWN])!r}")
        if kind == messages.ANSWERS:
            self._line[BUSY_NS] = number & (1 << 62) - 1
        frame = super().take()
        if frame is not None and self._expected == messages.HELLO:
            self.hello, self._expected = dict(PLAIN.loads(frame.payload)), messages.READY
            if self.hello.get("protocol") != PROTOCOL:
                raise ValueError(
                    f"protocol {self.hello.get('protocol')} of {self.hello.get('worker')}, expected {PROTOCOL}: "
                    "install the same version of vecenv on both sides"
                )
            return self.take()
        if kind == messages.READY and frame is not None:
            self._expected = 0
        return frame

    def _greeted(self) -> bool:
        start = self._in.find(MAGIC)
        if start < 0:
            if len(self._in) > MOST_NOISE:
                raise ValueError(f"{len(self._in)} bytes without the magic bytes: {self.noise}")
            return False
        del self._in[:start]
        if len(self._in) < len(MAGIC) + HEADER.size:
            return False
        size, kind, _ = HEADER.unpack_from(self._in, len(MAGIC))
        if kind != messages.HELLO or size > MOST_NOISE:
            raise ValueError(f"a wrong handshake: {bytes(self._in[:SHOWN])!r}")
        if len(self._in) < len(MAGIC) + HEADER.size + size:
            return False
        del self._in[: len(MAGIC)]
        return True


class CommandProcess:
    """Running command, with the attributes of a multiprocessing process that `ProcessWorker` uses."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen, self.pid = popen, popen.pid

    @property
    def exitcode(self) -> int | None:
        return self._popen.poll()

    def close(self) -> None:
        self._popen.poll()


class StderrCopier(threading.Thread):
    """Copies the stderr of a command to the stderr of this process at once, because a full pipe blocks the envs."""

    def __init__(self) -> None:
        super().__init__(name="vecenv-stderr", daemon=True)
        self._fd, self.theirs = os.pipe()
        """Descriptors of the pipe: for the thread, and for the command."""
        self._has_waited = False
        self.last = b""
        try:
            self.start()
        except RuntimeError as error:  # the system allows no further thread
            os.close(self._fd)
            os.close(self.theirs)
            raise OSError(str(error)) from error

    def run(self) -> None:
        try:
            while data := os.read(self._fd, CHUNK):
                self.last = (self.last + data)[-4096:]
                with contextlib.suppress(OSError):
                    os.write(2, data)
        finally:
            os.close(self._fd)

    def end(self, timeout: float) -> bytes:
        """Return the last lines. Wait once for the end, which a process that an env has detached may delay."""
        if self.is_alive() and not self._has_waited:
            self._has_waited = True
            self.join(timeout)
        return self.last


class CommandWorker(ProcessWorker):
    channel: CommandChannel
    reports_progress = False

    def __init__(self, index: int, ids: range) -> None:
        super().__init__(index, ids)
        self.command: Sequence[str] = ()
        self.errors: StderrCopier | None = None

    @property
    def where(self) -> str:
        return f"pid {self.pid}, {in_words(self.command)}"

    def launch(self, pool: Any, args: WorkerArgs) -> None:
        self.command, self.errors, self.cut_off, self._is_child = pool.command, None, False, True
        ours, theirs = socket.socketpair()
        enlarge_buffers(ours, theirs)
        self.channel = CommandChannel(ours, self.line)
        LAUNCHED.add(self)
        try:
            self.errors = StderrCopier()
            popen = subprocess.Popen(
                self.command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self.errors.theirs,
                process_group=0,  # so that Ctrl-C does not reach it. The scheduler favours a session, so keep ours
                env={**dict.fromkeys(ONE_THREAD, "1"), **os.environ},
            )
            self.process = CommandProcess(popen)
            self.launched = self.alive = True
        except BaseException as error:  # if the process has started, closing the channel ends it
            self.close_ends()
            if isinstance(error, OSError):
                text = f"worker_command {list(self.command)} cannot be started: {error}"
                raise WorkerDiedError(text) from error
            raise
        finally:
            theirs.close()
            if self.errors is not None:
                os.close(self.errors.theirs)
        self._pidfd = pidfd(self.pid)
        self.channel.post(messages.START, 0, PLAIN.dumps(pool.start_message(args)))

    def fds(self) -> list[int]:
        return [self.channel.fileno(), *([] if self._pidfd is None else [self._pidfd])]

    def clean_up(self) -> None:
        super().clean_up()
        self.process.close()

    def await_hang_up(self) -> None:
        """Wait until the guard of an ended worker has sent the last frame."""
        deadline, fd = time.monotonic() + TIME_TO_HANG_UP, self.channel.fileno()
        if fd < 0:  # an interrupt came in `clean_up`, which has closed the channel
            return
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while not self.channel.ended and (left := deadline - time.monotonic()) > 0:
            poller.poll(left * 1000)
            self.channel.receive()

    def kill(self) -> None:
        """Close stdin, so that the worker ends itself, and after a moment kill the command.

        SIGTERM would not end a worker in a process namespace, and SIGKILL does not reach a worker on another host.
        """
        self.channel.hang_up()
        if not self.has_ended(TIME_TO_HANG_UP):
            super().kill()

    def stack(self) -> str:
        return "(not known: the worker of a command sends the stack of an env only with step_timeout)"

    def cause(self) -> str:
        if self.channel.hello:
            return super().cause()
        noise = self.channel.noise
        came = f" In place of the handshake came: {noise!r}" if noise else ""
        return f"{exit_in_words(self.process.exitcode).partition(' (')[0]} without a handshake.{came} It ended"

    def death(self, env_id: int) -> VectorEnvError:
        error = super().death(env_id)
        lines = b"" if self.errors is None else self.errors.end(TIME_TO_HANG_UP)[-2000:]
        if lines.strip():
            error.args = (f"{error}\nThe last lines of its stderr:\n{lines.decode(errors='replace').strip()}",)
        return error


class CommandPool(WorkerPool):
    worker_type = CommandWorker
    code = PLAIN
    pickles = False

    def __init__(self, start_timeout: float, step_timeout: float | None, command: Sequence[str]) -> None:
        super().__init__(start_timeout, step_timeout)
        self.command = command

    def start_message(self, args: WorkerArgs) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "first_id": args.first_id,
            "envs": [[env_fn.name, env_fn.kwargs] for env_fn in args.setup.env_fns],  # type: ignore[attr-defined]
            "eager": args.eager,
            "seeds": list(args.seeds),
            "step_timeout": self.step_timeout,
        }

    def close(self, timeout: float) -> list[str]:
        problems, deadline = super().close(timeout), time.monotonic() + TIME_TO_HANG_UP
        for worker in self.workers:
            if isinstance(worker, CommandWorker) and worker.errors is not None:
                worker.errors.end(max(0.0, deadline - time.monotonic()))
        return problems

    def late_text(self, late: Sequence[WorkerHandle]) -> str:
        text = super().late_text(late)
        for worker in late:
            assert isinstance(worker, CommandWorker)
            if not worker.channel.hello:
                came = f", only {worker.channel.noise!r}" if worker.channel.noise else ""
                return f"{text}. The command {in_words(self.command)} has sent no handshake{came}"
        return text

    def _receive(self, worker: WorkerHandle) -> None:
        try:
            super()._receive(worker)
        except (VectorEnvError, KeyboardInterrupt):
            raise
        except Exception as error:  # a wrong frame may raise anything
            worker.channel.fail()
            self.kill(worker, _wrong_frame(worker, error))

    def _on_end(self, worker: WorkerHandle) -> None:
        assert isinstance(worker, CommandWorker)
        if worker.alive:
            worker.await_hang_up()
        super()._on_end(worker)

    def _note_end(self, worker: WorkerHandle) -> None:
        assert isinstance(worker, CommandWorker)
        if worker.line[DOING] == ELSEWHERE and worker.channel.has_part:
            worker.line[DOING] = SENDING
        super()._note_end(worker)


def in_words(command: Sequence[str]) -> str:
    text = shlex.join(command).replace("\n", " ")
    return text if len(text) <= 120 else f"{text[:100]} ... {text[-16:]}"


def _wrong_frame(worker: WorkerHandle, error: Exception) -> Reason:
    text = f"{type(error).__name__}: {error}"[: 2 * SHOWN]

    def error_of(env_id: int) -> VectorEnvError:
        return WorkerDiedError(
            f"the worker of env {env_id} ({worker.where}) sent something that is not a frame of this protocol, so its "
            f"command was ended; the envs of other workers are intact. It sent {text}"
        )

    return error_of
