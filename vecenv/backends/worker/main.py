"""The life of a worker process: bootstrap, construct the envs, serve rounds, close.

Whatever happens to the parent, the worker does not outlive it: a thread waits for the parent's end, and the kernel
kills the worker if its own starter ends (for envs that hold the interpreter lock); where the kernel cannot, the
forkserver or a guard process does. The worker leads a process group, so that what its envs started ends too.
"""

from __future__ import annotations

import gc
import pickle
from typing import Any

from vecenv.backends.host.env_host import EnvHost, EnvReport
from vecenv.backends.host.failure import Failure, capture, describe
from vecenv.backends.ipc import messages
from vecenv.backends.ipc.control_block import PROGRESS, Control
from vecenv.backends.ipc.messages import Channel, WorkerChannel
from vecenv.backends.ipc.serialization import dumps
from vecenv.backends.worker.bootstrap import bootstrap, end_children
from vecenv.backends.worker.round_server import RoundServer
from vecenv.backends.worker.worker_args import WorkerArgs


def main(args: WorkerArgs) -> None:
    """Entry point of the process."""
    bootstrap(args)
    channel = Channel(args.socket)
    try:
        live(args, channel)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone; the thread that watches it ends this process
    finally:
        end_children()


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
