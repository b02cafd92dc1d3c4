"""`main` of a worker process: set up, build the envs, serve rounds, close.

Whatever happens to the parent, the worker does not outlive it: a thread waits for the parent's end, and the kernel
kills the worker if its own starter ends (for envs that hold the interpreter lock); where the kernel cannot, the
forkserver or a guard process does. The worker leads a process group, so that what its envs started ends too.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import pickle
import select
import signal
import threading
from collections.abc import Callable
from multiprocessing import parent_process
from typing import Any

from vecenv import portability
from vecenv.backends.host.env_host import EnvHost, EnvReport
from vecenv.backends.host.failure import Failure, capture, describe
from vecenv.backends.ipc import messages
from vecenv.backends.ipc.messages import Channel, WorkerChannel
from vecenv.backends.ipc.serialization import dumps
from vecenv.backends.memory.shared_memory import PROGRESS, Control
from vecenv.backends.worker.round_server import RoundServer
from vecenv.backends.worker.worker_setup import WorkerArgs, leave_forkserver, seed_generators

LAST_SECONDS = 0.3
"""The worker ends at most so many seconds after its envs have closed."""


def main(args: WorkerArgs) -> None:
    """Entry point of the process."""
    bootstrap(args)
    channel = Channel(args.socket)
    try:
        live(args, channel)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone; the thread that watches it ends this process
    finally:  # end what the envs started and left running in our process group
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        # Python now waits for threads and pools that envs have left running, perhaps for ever.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, LAST_SECONDS)


def live(args: WorkerArgs, channel: Channel) -> None:
    """Construct the envs, and serve rounds until the parent closes them."""
    line = Control(args.num_workers, args.control.fd).line(args.index)
    host, server = construct(args, args.server, channel, line)
    if server is None:
        host.close()  # after the report: an env that hangs in it must not hide why
        return
    frame = channel.read()
    if frame.kind == messages.SETUP:
        server.bind(pickle.loads(frame.payload))
        server.serve(channel)
    else:
        server.handle(frame)


def construct(
    args: WorkerArgs, server: type[RoundServer], channel: WorkerChannel, line: Any
) -> tuple[EnvHost, RoundServer | None]:
    """Construct the envs and report them. Returns their host, and the server for their rounds: None if a constructor
    failed, and those that were made before it are to be closed.
    """
    args.setup.apply()
    host = EnvHost(args.setup.env_fns, args.first_id, local=False)
    host.progress = line[PROGRESS : PROGRESS + 1]
    reports = host.construct()
    gc.collect()  # before the first step, whose time may be limited
    gc.freeze()  # the garbage collector does not scan what exists now in the middle of a step
    channel.write(messages.READY, 0, pickle.dumps(_pickled_reports(reports, args.first_id)))
    return host, None if isinstance(reports, Failure) else server(args, host, channel, line)


def _pickled_reports(reports: list[EnvReport] | Failure, first_id: int) -> list[bytes]:
    """Each report pickled alone, so that one that cannot be is the failure of its env."""
    if isinstance(reports, Failure):
        return [dumps(reports)]
    blobs = []
    for j, report in enumerate(reports):
        try:
            blobs.append(dumps(report))
        except BaseException as error:
            reason = TypeError(
                f"the report of env {first_id + j} (spaces, metadata, spec) cannot be sent: {describe(error)}"
            )
            blobs.append(dumps(capture(reason, first_id + j, "__init__", local=False)))
    return blobs


MOST_FDS = 1 << 16


def bootstrap(args: WorkerArgs) -> None:
    """Set up the process group, the signals, the watch for the parent's end, and the random generators."""
    leave_forkserver()
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if args.method == "fork":
        atexit._clear()  # the parent's exit functions are not ours
    faulthandler.register(signal.SIGUSR1, file=args.stacks.fd, all_threads=True)
    threading.Thread(target=_watch_parent, args=(args.socket,), name="vecenv-parent-watch", daemon=True).start()
    _end_with_starter(args)
    seed_generators(args.seeds)


def _end_with_starter(args: WorkerArgs) -> None:
    """See to it that this process ends with what started it also while an env holds the interpreter lock.

    The forkserver ends with the parent, after it has killed its workers. Where the parent itself starts workers, it is
    the end of the starting *thread* that counts for the kernel, so that its signal is for the main thread only.
    """
    signalled = (args.method == "forkserver" or args.starter) and portability.signal_at_end_of_starter(signal.SIGKILL)
    if args.method == "forkserver":
        return
    if args.starter and os.getppid() != args.starter:  # it ended before the request
        os.killpg(0, signal.SIGKILL)
    if signalled:
        _start_guard(_await_end_of_starter)
    elif not portability.signals_at_end_of_starter():
        _start_guard(_await_end_of_parent)
    if not portability.has_pidfds():
        # Held open by what the env forks, it would hide the end of the worker.
        os.register_at_fork(after_in_child=args.socket.close)


def _watch_parent(sock: Any) -> None:
    """Wait for the end of the parent: only the parent holds the other end of our channel."""
    poller = select.poll()
    if portability.polls_for_hangup():
        poller.register(sock, 0)  # nothing but the hang-up
    else:
        poller.register(_lifeline(), select.POLLIN)
    poller.poll()
    os.killpg(0, signal.SIGKILL)


def _lifeline() -> int:
    """A pipe of which the parent holds the other end, and through which nothing is sent any more."""
    parent = parent_process()
    assert parent is not None
    return parent.sentinel


def _start_guard(wait: Callable[[int], None]) -> None:
    """Start a process that outlives this one for a moment, to kill what the envs have started.

    The forkserver does that; without it no other process remains to do so when this one is killed.
    """
    worker = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if os.fork() == 0:
        wait(worker)
        os.killpg(0, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _await_end_of_starter(worker: int) -> None:
    """Wait until the kernel reports that the worker has ended, or the worker reports that it ends."""
    os.closerange(3, MOST_FDS)  # held open here, they would hide the end of the worker
    portability.signal_at_end_of_starter(signal.SIGTERM)
    if os.getppid() == worker:
        signal.sigwait({signal.SIGTERM})


def _await_end_of_parent(worker: int) -> None:
    """Wait until the parent has ended, or the worker reports that it ends. After a crash the parent kills the group."""
    lifeline = _lifeline()
    os.closerange(3, lifeline)
    os.closerange(lifeline + 1, MOST_FDS)
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    poller = select.poll()
    poller.register(lifeline, select.POLLIN)
    poller.poll()
