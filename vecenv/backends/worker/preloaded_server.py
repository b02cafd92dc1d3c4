"""`serve`: main function of a forkserver that imports the modules of env functions once for all workers.

vecenv's plain forkserver, which has not imported these modules, forks this server. If a module leaves threads or other
state that workers must not inherit, the server reports the module and ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vecenv import portability
from vecenv.backends.ipc.serialization import Descriptor
from vecenv.backends.worker.reporting import Reporting
from vecenv.backends.worker.worker_setup import leave_forkserver, set_environment, set_files_of_starters

AUTHKEY_BYTES = 32
THREAD_END_S = 0.5
HARMLESS = ("/dev/null", "/dev/urandom", "/dev/random")
GPU_LIBRARIES = ("libcuda.so", "libnvidia", "libEGL", "libGLX", "libOSMesa")
"""Prefixes of GPU libraries, which may fail in a process that is forked later."""
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


class ImportReport(NamedTuple):
    refused: str = ""
    reason: str = ""
    files: dict[str, int] = {}


def serve(
    listener: Descriptor,
    alive: Descriptor,
    report: Descriptor,
    authkey: bytes,
    environ: dict[str, str],
    names: Sequence[str],
    imports: frozenset[str],
    reporting: Reporting,
) -> None:
    # Import this module only here, because it changes signal handlers in children of the user's own forkserver.
    from vecenv.backends.worker import forkserver_preload

    leave_forkserver()
    # An import may hang. So let the kernel kill this server when the plain forkserver ends (with the user's program).
    portability.signal_at_end_of_starter(signal.SIGKILL)
    set_environment(environ)
    set_files_of_starters(imports)
    reporting.apply_filters(raises=False)
    result = import_all(names)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # otherwise each worker would write the buffered text
    if not result.refused:
        gc.collect()
        gc.freeze()
        forkserver_preload.record_forks()
    with open(report.fd, "wb") as file:
        pickle.dump(result, file)
    if result.refused:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(0)
    # From now on, `forkserver.main` ends when the user's program ends. A SIGKILL would prevent `kill_workers`.
    portability.signal_at_end_of_starter(0)
    try:
        if sys.version_info >= (3, 14):
            authkey_r, authkey_w = os.pipe()
            os.write(authkey_w, authkey)
            os.close(authkey_w)
            forkserver.main(listener.fd, alive.fd, [], authkey_r=authkey_r)
        else:
            forkserver.main(listener.fd, alive.fd, [])
    finally:
        forkserver_preload.kill_workers()
        os._exit(0)


def import_all(names: Sequence[str]) -> ImportReport:
    """Import the modules. Stop at the first module that raises or leaves state that workers must not inherit."""
    before, fds, libraries = set(sys.modules), set(_descriptors()), _gpu_libraries()
    for name in names:
        try:
            importlib.import_module(name)
            reason = _problem(name, before, fds, libraries)
        except BaseException as error:
            reason = f"its import raised {type(error).__name__}: {error}"
        if reason:
            return ImportReport(name, reason)
    files = {}
    for module in set(sys.modules) - before:
        file = getattr(sys.modules[module], "__file__", None)
        if isinstance(file, str) and os.path.isabs(file):
            with contextlib.suppress(OSError):
                files[file] = os.stat(file).st_mtime_ns
    return ImportReport(files=files)


def _problem(name: str, before: set[str], fds: set[int], libraries: set[str]) -> str:
    if _has_threads():
        return "its import starts threads"
    if _children():
        return "its import starts processes"
    if opened := [target for fd, target in _descriptors().items() if fd not in fds and target not in HARMLESS]:
        return f"its import leaves {opened[0]} open"
    if loaded := _gpu_libraries() - libraries:
        return f"its import loads {min(loaded)}"
    root = name.partition(".")[0]
    for module in set(sys.modules) - before:
        if module.partition(".")[0] == root:
            for attribute, value in list(vars(sys.modules[module]).items()):
                if type(value) in GENERATORS:  # every worker would inherit the generator and draw the same numbers
                    return f"its import makes the random generator {module}.{attribute}"
    return ""


def _has_threads() -> bool:
    """Return True if another thread runs. Wait for ended threads, which the system removes a little after `join`."""
    limit = time.monotonic() + THREAD_END_S
    while len(os.listdir("/proc/self/task")) > 1:
        if threading.active_count() > 1 or time.monotonic() > limit:
            return True
        time.sleep(0.001)
    return False


def _children() -> list[int]:
    found = list[int]()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/self/task/{task}/children").read_text().split())
    return found


def _descriptors() -> dict[int, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def _gpu_libraries() -> set[str]:
    lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    names = {line.rpartition("/")[2] for line in lines if "/" in line}
    return {name for name in names if name.startswith(GPU_LIBRARIES)}
