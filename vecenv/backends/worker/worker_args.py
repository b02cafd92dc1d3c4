"""WorkerArgs: what a worker process is started with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from vecenv.backends.ipc.descriptor import Descriptor
from vecenv.backends.worker.worker_setup import WorkerSetup


@dataclass
class WorkerArgs:
    """The arguments of `main`; they travel once, before there is a channel."""

    index: int
    num_workers: int
    first_id: int
    count: int
    """How many envs it hosts."""
    eager: bool
    """Whether each env is announced as it finishes."""
    control: Descriptor
    stacks: Descriptor
    setup: WorkerSetup
    seeds: tuple[bytes, bytes]
    """Of the global random generators, numpy's and Python's."""
    server: Any
    """The `RoundServer` class of the transport."""
    transport: Any
    """Further arguments of the transport."""
    method: str = ""
    """The start method of a process."""
    starter: int = 0
    """The parent, if its main thread starts the process; else 0."""
    socket: Any = None
    parent_fds: Collection[int] = ()
    """Descriptors of the parent that a forked worker has to close: it would keep other workers' channels open."""
