"""`main` of a worker process: set up the process, make the envs, serve steps and resets (rounds), close.

When the parent ends, a thread of the worker kills the worker's process group, which includes processes that envs have
started. If an env holds the interpreter lock, this thread cannot run, so `_end_with_starter` adds a second way.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
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
from vecenv.backends.ipc.serialization import Code
from vecenv.backends.memory.shared_memory import PROGRESS, Control
from vecenv.backends.worker.round_server import RoundServer
from vecenv.backends.worker.vitals import Vitals
from vecenv.backends.worker.worker_setup import WorkerArgs, leave_forkserver, set_files_of_starters
from vecenv.seeds import seed_generators

LAST_SECONDS = 0.3


def main(args: WorkerArgs) -> None:
    bootstrap(args)
    channel = Channel(args.socket)
    try:
        live(args, channel)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone, so `_watch_parent` kills this process
    finally:
        end_group()


def end_group() -> None:
    """Ask the processes that envs have started to end, and limit the time until this process ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    # At exit, Python waits for threads and pools that envs have started. The alarm limits this wait.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, LAST_SECONDS)


def live(args: WorkerArgs, channel: Channel) -> None:
    serve(args, channel, Control(args.num_workers, args.control.fd).line(args.index))


def serve(args: WorkerArgs, channel: Any, line: Any) -> None:
    """Make the envs and serve them over `channel` until they are closed. `line`: numbers about progress."""
    host, server = construct(args, args.server, channel, line)
    if server is None:
        host.close()  # after the report of the failed constructor, because `close` may hang
        return
    frame = channel.read()
    if frame.kind == messages.SETUP:
        server.bind(server.code.loads(frame.payload))
        server.serve(channel)
    else:
        server.handle(frame)


def construct(
    args: WorkerArgs, server: type[RoundServer], channel: WorkerChannel, line: Any
) -> tuple[EnvHost, RoundServer | None]:
    set_files_of_starters(args.imports)
    args.setup.apply()
    host = EnvHost(args.setup.env_fns, args.first_id, local=False)
    host.progress = line[PROGRESS : PROGRESS + 1]
    if args.shares_block:
        host.before_reset = Vitals(line)
    reports = host.construct(args.spare_envs)
    args.setup.finish()
    gc.collect()  # before the first step, which may have a time limit
    gc.freeze()
    channel.write(messages.READY, 0, server.code.dumps(_packed_reports(reports, args.first_id, server.code)))
    return host, None if isinstance(reports, Failure) else server(args, host, channel, line)


def _packed_reports(reports: list[EnvReport] | Failure, first_id: int, code: Code) -> list[Any]:
    if isinstance(reports, Failure):
        return [code.pack(reports)]
    blobs = []
    for j, report in enumerate(reports):
        try:
            blobs.append(code.pack(report))
        except BaseException as error:
            reason = TypeError(
                f"the report of env {first_id + j} (spaces, metadata, spec) cannot be sent: {describe(error)}"
            )
            blobs.append(code.pack(capture(reason, first_id + j, "__init__", local=False)))
    return blobs


MOST_CLOSED_FDS = 1 << 16


def bootstrap(args: WorkerArgs) -> None:
    leave_forkserver()
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if args.method == "fork":
        atexit._clear()  # the parent's exit functions must not run here
    faulthandler.register(signal.SIGUSR1, file=args.stacks.fd, all_threads=True)
    threading.Thread(target=_watch_parent, args=(args.socket,), name="vecenv-parent-watch", daemon=True).start()
    _end_with_starter(args)
    seed_generators(args.seeds)


def _end_with_starter(args: WorkerArgs) -> None:
    """Ensure, if possible, that this process ends when the parent ends, even if an env holds the interpreter lock.

    - Started by a forkserver: the forkserver ends with the parent, and kills its workers.
    - Started by the parent's main thread, on Linux: the kernel kills this process, and a guard kills its group.
    - Started by another thread, on Linux: not ensured, because the kernel would signal the end of that *thread*.
    - On other systems: a guard waits for the parent's end.
    """
    signalled = (args.method == "forkserver" or args.starter) and portability.signal_at_end_of_starter(signal.SIGKILL)
    if args.method == "forkserver":
        return
    if args.starter and os.getppid() != args.starter:  # the parent ended before the call above
        os.killpg(0, signal.SIGKILL)
    if signalled:
        _start_guard(_await_end_of_starter)
    elif not portability.signals_at_end_of_starter():
        _start_guard(_await_end_of_parent)
    if not portability.has_pidfds():
        # Copies of the socket in processes of envs would hide the worker's end from the parent.
        os.register_at_fork(after_in_child=args.socket.close)


def _watch_parent(sock: Any) -> None:
    poller = select.poll()
    if portability.polls_for_hangup():
        poller.register(sock, 0)  # report only a hang-up
    else:
        poller.register(_lifeline(), select.POLLIN)
    poller.poll()
    os.killpg(0, signal.SIGKILL)


def _lifeline() -> int:
    parent = parent_process()
    assert parent is not None
    return parent.sentinel


def _start_guard(wait: Callable[[int], None]) -> None:
    """Fork a guard: a process that kills the worker's process group when `wait` returns."""
    worker = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if os.fork() == 0:
        wait(worker)
        os.killpg(0, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _await_end_of_starter(worker: int) -> None:
    os.closerange(3, MOST_CLOSED_FDS)  # open copies would hide the worker's end from the parent
    portability.signal_at_end_of_starter(signal.SIGTERM)
    while os.getppid() == worker:  # `main` sends a SIGTERM before the worker ends
        signal.sigwait({signal.SIGTERM})


def _await_end_of_parent(worker: int) -> None:
    lifeline = _lifeline()
    os.closerange(3, lifeline)
    os.closerange(lifeline + 1, MOST_CLOSED_FDS)
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    poller = select.poll()
    poller.register(lifeline, select.POLLIN)
    poller.poll()
