"""Bootstrap: a worker becomes a process of its own that ends with its parent, and its envs' children with it."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import select
import signal
import sys
import threading
from multiprocessing import forkserver
from typing import Any

from vecenv.backends.worker.rng_seeds import seed_generators
from vecenv.backends.worker.worker_args import WorkerArgs


def bootstrap(args: WorkerArgs) -> None:
    """Set up the process group, the signals, the watch for the parent's end, and the random generators."""
    for fd in args.parent_fds:
        os.close(fd)
    if (alive := forkserver._forkserver._forkserver_alive_fd) is not None:  # type: ignore[attr-defined]
        # Held open by a worker, it would keep the forkserver running after the parent is gone.
        os.close(alive)
        forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if args.method == "fork":
        atexit._clear()  # the parent's exit functions are not ours
    faulthandler.register(signal.SIGUSR1, file=args.stacks.fd, all_threads=True)
    threading.Thread(target=_watch_parent, args=(args.socket,), name="vecenv-parent-watch", daemon=True).start()
    if args.method == "forkserver" or args.starter:
        _signal_at_end_of_starter(signal.SIGKILL)
    if args.method != "forkserver" and args.starter:
        if os.getppid() != args.starter:  # it ended before the request
            os.killpg(0, signal.SIGKILL)
        _start_guard()
    seed_generators(args.seeds)


def _watch_parent(sock: Any) -> None:
    """Wait for the end of the parent: nobody else holds the other end of our channel."""
    poller = select.poll()
    poller.register(sock, 0)  # nothing but the hang-up
    poller.poll()
    os.killpg(0, signal.SIGKILL)


def _signal_at_end_of_starter(number: int) -> None:
    """Have the kernel signal this process when what started it ends: also while an env holds the interpreter lock.

    The forkserver ends with the parent. Where the parent itself starts workers, it is the end of the starting *thread*
    that counts for the kernel, so that this is for its main thread only.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, number)


def _start_guard() -> None:
    """Start a process that outlives this one for a moment, to kill what the envs have started.

    Without the forkserver, which does that, nobody else is left when the kernel kills this process.
    """
    worker = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if os.fork() == 0:
        os.closerange(3, 1 << 16)  # held open here, they would hide the end of the worker
        _signal_at_end_of_starter(signal.SIGTERM)
        if os.getppid() == worker:
            signal.sigwait({signal.SIGTERM})
        os.killpg(0, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def end_children() -> None:
    """End what the envs started and left running in our process group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
