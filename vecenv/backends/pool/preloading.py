"""`PreloadedServer`: a forkserver that has imported the modules of the env functions, so that workers start faster.

The parent keeps a few servers for later vector envs, and uses a server again only if environment variables, search
path, Python flags and module files are unchanged.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import select
import signal
import socket
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Collection, Sequence
from multiprocessing import forkserver, resource_tracker
from typing import Any

from vecenv.backends.ipc.serialization import Descriptor
from vecenv.backends.pool.start_methods import search_path, start_process
from vecenv.backends.worker.preloaded_server import AUTHKEY_BYTES, ImportReport, serve
from vecenv.backends.worker.reporting import Reporting
from vecenv.backends.worker.worker_setup import running_files
from vecenv.ctrl_c import sigint_deferred
from vecenv.portability import signals_at_end_of_starter

LONGEST_POLL = 1e6
MOST_SERVERS = 4
CHANGES = {"PYTEST_CURRENT_TEST"}
_lock = threading.Lock()
_kept: OrderedDict[Any, PreloadedServer] = OrderedDict()
_refused: dict[Any, str] = {}
"""Reason not to preload a module, by (module, (environment variables, search path, Python flags))."""
_all: weakref.WeakSet[PreloadedServer] = weakref.WeakSet()


class PreloadedServer(forkserver.ForkServer):
    _forkserver_address: Any
    _forkserver_alive_fd: Any
    _forkserver_authkey: bytes
    """Key in each request to fork a worker. Python checks it since 3.14."""

    def __init__(self, names: Sequence[str], environ: dict[str, str], timeout: float) -> None:
        super().__init__()
        report_r, report_w = os.pipe()
        alive_r, self._forkserver_alive_fd = os.pipe()
        self.close = weakref.finalize(self, os.close, self._forkserver_alive_fd)
        self.close.atexit = False
        _all.add(self)
        self._forkserver_authkey = secrets.token_bytes(AUTHKEY_BYTES)
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(f"\0vecenv-{os.getpid()}-{secrets.token_hex(8)}")  # an abstract name, not a file
                listener.listen()
                self._forkserver_address = listener.getsockname()
                fds = [Descriptor(fd) for fd in (listener.fileno(), alive_r, report_w)]
                reporting = Reporting.of_this_process()
                args = (*fds, self._forkserver_authkey, environ, names, running_files(), reporting)
                with sigint_deferred():
                    self.process = start_process("forkserver", serve, args, "vecenv-preloaded")
            os.close(report_w)
            report_w = -1
            self.report = self._read_report(report_r, names, timeout)
        finally:
            for fd in (alive_r, report_r, *([] if report_w < 0 else [report_w])):
                os.close(fd)
        if self.report.refused:
            self.close()

    def _read_report(self, fd: int, names: Sequence[str], timeout: float) -> ImportReport:
        try:
            poller, deadline, data = select.poll(), time.monotonic() + timeout, b""
            poller.register(fd, select.POLLIN)
            while poller.poll(min(max(0.0, deadline - time.monotonic()), LONGEST_POLL) * 1000):
                if not (part := os.read(fd, 1 << 16)):
                    return pickle.loads(data) if data else ImportReport(names[0], "its import ends the process")
                data += part
            self._kill()
            return ImportReport(names[0], f"the imports take longer than start_timeout={timeout} s")
        except BaseException:
            self._kill()
            self.close()
            raise

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(self.process.pid or 0), signal.SIGKILL)

    def ensure_running(self) -> None:
        """Start only the resource tracker.

        If this server has ended, `start_process` uses the plain forkserver (see `start_methods`).
        """
        resource_tracker.ensure_running()

    def is_current(self) -> bool:
        try:
            return self.process.is_alive() and all(
                os.stat(file).st_mtime_ns == changed for file, changed in self.report.files.items()
            )
        except OSError:
            return False


def preloaded_server(modules: Collection[str], environ: dict[str, str], timeout: float) -> PreloadedServer | None:
    """Return a server that has imported `modules`, except modules in `_refused`.

    Return `None` if no module is left, or if the system is not Linux.
    """
    if not modules or not signals_at_end_of_starter():
        return None
    variables = frozenset((name, value) for name, value in environ.items() if name not in CHANGES)
    surroundings = (variables, tuple(search_path()), sys.flags)
    with _lock:
        while names := tuple(sorted(name for name in modules if (name, surroundings) not in _refused)):
            key = (names, surroundings)
            server = _kept.pop(key, None)
            if server is None or not server.is_current():
                server = PreloadedServer(names, environ, timeout)
            if not server.report.refused:
                _kept[key] = server
                while len(_kept) > MOST_SERVERS:
                    _kept.popitem(last=False)
                return server
            _refused[server.report.refused, surroundings] = server.report.reason
    return None


def _discard_servers() -> None:
    """Close a forked child's copies of the pipes that keep the servers running."""
    global _lock
    _lock = threading.Lock()
    for server in list(_all):
        server.close()
    _kept.clear()


os.register_at_fork(after_in_child=_discard_servers)
