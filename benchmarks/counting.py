"""Count the work of the process that calls `step`, and of its workers, besides stepping.

There are two independent ways:

- `CallCounter` counts calls from Python into C with the interpreter's profile hook. It needs no privileges, and sees
  pickling by any library. `CountedSpec` starts a counter in each worker.
- `count_system_calls` attaches strace, and also sees the system calls of C code. strace slows system calls down, so a
  loop that spins before it blocks appears to block more often than at full speed.
"""

from __future__ import annotations

import _pickle
import _socket
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from benchmarks.envs import EnvFn, EnvSpec, make_env

KINDS = ("pickle", "socket", "pipe", "semaphore", "sched_yield", "poll")
"""Names of the counters. `pipe` counts calls that read or write descriptors except sockets, for example eventfds."""

_PICKLE_CALLS = frozenset({"dump", "dumps", "load", "loads"})
_SOCKET_CALLS = frozenset({"send", "sendall", "sendto", "sendmsg", "recv", "recv_into", "recvfrom", "recvmsg"})
_PIPE_CALLS = frozenset({"read", "write", "readv", "writev", "eventfd_read", "eventfd_write"})
_SEMAPHORE_CALLS = frozenset({"acquire", "release", "__enter__", "__exit__"})
_WAIT_CALLS = frozenset({"poll", "select", "epoll_wait"})


class CallCounter:
    """Counter of C calls of the current thread between enter and exit.

    The counts are added to `numbers`, an array with an integer per entry of `KINDS`. Default: a new array.
    """

    def __init__(self, numbers: np.ndarray | None = None) -> None:
        self._numbers = np.zeros(len(KINDS), np.int64) if numbers is None else numbers

    @property
    def totals(self) -> dict[str, int]:
        """Number of calls of each kind, zeros included."""
        return dict(zip(KINDS, self._numbers.tolist(), strict=True))

    def __enter__(self) -> CallCounter:
        sys.setprofile(self._on_event)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            what = _classify(called)
            if what:
                self._numbers[KINDS.index(what)] += 1


def _classify(called: Any) -> str:
    name = called.__name__
    owner = getattr(called, "__self__", None)
    module = getattr(called, "__module__", None) or type(owner).__module__
    # cloudpickle and multiprocessing define subclasses of the C classes in their own modules.
    if name in _PICKLE_CALLS and (module == "_pickle" or isinstance(owner, (_pickle.Pickler, _pickle.Unpickler))):
        return "pickle"
    if name in _SOCKET_CALLS and isinstance(owner, _socket.socket):
        return "socket"
    if name in _SEMAPHORE_CALLS and type(owner).__name__ == "SemLock":
        return "semaphore"
    if module == "posix":
        if name == "sched_yield":
            return "sched_yield"
        return "pipe" if name in _PIPE_CALLS else ""
    if name in _WAIT_CALLS and module in {"select", "_multiprocessing"}:
        return "poll"
    return ""


@dataclass(frozen=True)
class CountedSpec(EnvSpec):
    """Envs that count the calls of their process, from the constructor of its first env.

    Each process counts in a separate file in `folder`, which `counted` reads. A call of the vector env would add to the
    counts.
    """

    folder: str = ""

    def env_fns(self, count: int) -> list[EnvFn]:
        return [partial(_make_counted, self, index) for index in range(count)]


def counted(folder: str) -> dict[str, float]:
    """Return the calls of each kind, as a mean over the processes that count in `folder`."""
    numbers = np.array([np.fromfile(path, np.int64) for path in Path(folder).iterdir()])
    return dict(zip(KINDS, numbers.mean(0).tolist(), strict=True))


def _make_counted(spec: CountedSpec, index: int) -> Any:
    path = Path(spec.folder, str(os.getpid()))
    if not path.exists():  # the first env of this process
        CallCounter(np.memmap(path, np.int64, "w+", shape=(len(KINDS),))).__enter__()
    return make_env(spec, index)


def strace_missing() -> str:
    """Return the reason why system calls cannot be counted here, or an empty string."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    return ""


def count_system_calls(pid: int, action: Callable[[], Any]) -> dict[str, int] | None:
    """Return the number of system calls by name, in all threads of `pid` during `action`. None if strace is refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "summary")
        command = ["strace", "-c", "-f", "-o", path, "-p", str(pid)]
        tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if not _wait_until_traced(pid, tracer):
                return None
            action()
        finally:
            tracer.send_signal(signal.SIGINT)  # strace detaches and writes its table on this signal
            tracer.wait(10)
        with open(path) as table:
            return parse_strace_table(table.read())


def parse_strace_table(text: str) -> dict[str, int]:
    """Return {system call: number of calls} from the table that `strace -c` prints."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 5 and fields[0].replace(".", "").isdigit() and fields[-1] != "total":
            counts[fields[-1]] = int(fields[3])
    return counts


def _wait_until_traced(pid: int, tracer: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline and tracer.poll() is None:
        with open(f"/proc/{pid}/status") as status:
            for line in status:
                if line.startswith("TracerPid:") and int(line.split()[1]) == tracer.pid:
                    return True
        time.sleep(0.02)
    return False
