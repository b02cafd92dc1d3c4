"""Counts of what the process that calls `step` does besides stepping.

Two independent ways. `CallCounter` watches calls from Python into C with the interpreter's profile
hook: it sees pickling however it was imported, and needs no privileges. `count_system_calls` attaches
strace from outside: it sees what C code does below, but slows every system call down, so a loop that
spins before it blocks is seen to block more often than it does at full speed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_PICKLE_MODULES = frozenset({"_pickle", "pickle"})
_PICKLE_CALLS = frozenset({"dump", "dumps", "load", "loads"})
_PIPE_CALLS = frozenset({"read", "write", "readv", "writev", "send", "recv"})
_SEMAPHORE_CALLS = frozenset({"acquire", "release", "__enter__", "__exit__"})
_WAIT_CALLS = frozenset({"poll", "select", "epoll_wait"})


class CallCounter:
    """Counts interesting C calls of the current thread between enter and exit.

    `totals` has the keys pickle, pipe, semaphore, sched_yield and poll; keys with zero are present.
    """

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter(pickle=0, pipe=0, semaphore=0, sched_yield=0, poll=0)

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
                self.totals[what] += 1


def _classify(called: Any) -> str:
    name = called.__name__
    owner = getattr(called, "__self__", None)
    module = getattr(called, "__module__", None) or type(owner).__module__
    if name in _PICKLE_CALLS and module in _PICKLE_MODULES:
        return "pickle"
    if name in _SEMAPHORE_CALLS and type(owner).__name__ == "SemLock":
        return "semaphore"
    if module == "posix":
        if name == "sched_yield":
            return "sched_yield"
        return "pipe" if name in _PIPE_CALLS else ""
    if name in _WAIT_CALLS and module in {"select", "_multiprocessing"}:
        return "poll"
    return ""


def strace_missing() -> str:
    """Why system calls cannot be counted here, or an empty string."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    return ""


def count_system_calls(pid: int, action: Callable[[], Any]) -> dict[str, int] | None:
    """System calls by name that process `pid` makes, in any thread, during `action`; None if refused."""
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
    """{system call: number of calls} from the table that `strace -c` prints."""
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
