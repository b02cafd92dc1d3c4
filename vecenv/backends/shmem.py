"""ShmemBackend: worker processes that write into an arena in shared memory.

    parent                                        worker
    ------                                        ------
    write actions, then the status bytes          (looks for a new round, then sleeps on its wakeup)
    count the round, wake if it sleeps  ->
    (looks for answers, then polls)               steps the envs of its block, writes rows
                                        <-        INFO_FORM frame, once for each form of infos in rows
                                        <-        writes the status bytes, wakes the parent if it polls
                                        <-        ANSWERS frame with the extras, only if there are any

Nothing is pickled, no frame is sent and, as long as both sides are awake, no system call is made in a round whose
infos are empty, or numbers and small arrays of a form that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vecenv.backends.ipc import messages
from vecenv.backends.ipc.serialization import Descriptor
from vecenv.backends.ipc.waiting import SpinWait, Wakeup, fence, wakeup_fds
from vecenv.backends.memory.arena import Arena, Layout, arena_bytes, used_bytes
from vecenv.backends.memory.shared_memory import FRAMES, anonymous_file, reserve
from vecenv.backends.pool.process_worker import ProcessLauncher
from vecenv.backends.pool.worker_handle import WorkerHandle
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.backends.process import ProcessBackend
from vecenv.backends.system_limits import usable_cpus
from vecenv.backends.transport import Transport
from vecenv.backends.worker.shmem_server import ShmemArgs, ShmemServer
from vecenv.portability import IN_ORDER

SHARED_SPINS = 50
"""How often the parent looks for answers, with a sched_yield in between, before it sleeps, if no CPU is to spare.
With more spins two workers share one CPU while the parent occupies the other (measured)."""
SPARE_SPINS = 1000
"""The same if there are more CPUs than workers."""
LONG_ROUND = 5e-3
"""Seconds: after a longer wait spinning is not worth its CPU time, so the parent sleeps at once."""


class ShmemTransport(Transport):
    """Status bytes and rows in shared memory; the module docstring has the course of a round."""

    server = ShmemServer

    def open(self, pool: WorkerPool, n: int) -> None:
        super().open(pool, n)
        self._n = n
        self._control = pool.control
        self._parent = len(pool.workers)
        """The index of the parent's byte in `Control.sleepers`."""
        self._memory_fd = pool.own_fd(anonymous_file("vecenv-arena"))
        self._wakeup = self._new_wakeup(None)
        pool.watch(self._wakeup.read, self._wakeup.clear)
        self._wakeups: dict[int, Wakeup] = {}
        self._everyone = [self._new_wakeup(b"\1") for _ in range(2)]
        """Wake all workers that sleep, by one system call: in rounds of all envs with an even and an odd number."""
        self._woken = False
        """Whether the last of these rounds did."""
        self._looking = SpinWait(SPARE_SPINS if usable_cpus() > len(pool.workers) else SHARED_SPINS)

    def _new_wakeup(self, flag: Any) -> Wakeup:
        read, write = wakeup_fds()
        for fd in {read, write}:
            self._pool.own_fd(fd)
        return Wakeup(read, write, flag)

    def worker_args(self, worker: WorkerHandle) -> ShmemArgs:
        w, control = worker.index, self._control
        control.rounds[w] = worker.line[FRAMES] = 0
        if w not in self._wakeups:
            self._wakeups[w] = self._new_wakeup(control.sleepers[w : w + 1])
        wakeup = self._wakeups[w]
        control.sleepers[w] = 0
        wakeup.clear()
        return ShmemArgs(
            Descriptor(self._memory_fd),
            Descriptor(self._wakeup.write),
            Descriptor(wakeup.read),
            tuple(Descriptor(each.read) for each in self._everyone),
            self._n,
            control.full[0],
        )

    def bind(self, layout: Layout, n: int) -> Arena:
        size, used = arena_bytes(layout, n), used_bytes(layout, n)
        memory = reserve(self._memory_fd, size, f"{n} envs of {used / n / 2**20:.2f} MiB", used)
        self._all_ids = np.arange(n)
        arena = Arena.build(layout, n, memory)
        self._status = arena.status
        return arena

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        if payloads:
            self._send_payloads(payloads)
        # An index array writes each status byte once. A copy of all of them may write some twice (as memmove and
        # numpy do), the second time over the answer of a worker that has seen the first.
        self._status[self._all_ids if ids is None else ids] = ops
        if not IN_ORDER:
            fence()
        control = self._control
        if ids is None:
            number = control.full[0] + 1
            if self._woken:  # no worker sleeps on the wakeup of the round before: all have answered it
                self._everyone[number - 1 & 1].clear()
            control.full[0] = number
            fence()
            self._woken = 1 in control.sleepers.tobytes()
            if self._woken:
                self._everyone[number & 1].wake()
            return
        workers = set(self._pool.worker_of[ids].tolist())
        for w in workers:
            control.rounds[w] += 1
        fence()
        for w in workers:
            self._wakeups[w].wake()

    def _send_payloads(self, payloads: Mapping[int, Any]) -> None:
        for worker in self._pool.workers:
            if worker.alive and (mine := worker.pickle_own(payloads)):
                self._pool.request(worker, messages.PAYLOADS, 0, mine)

    def notify(self, worker: WorkerHandle) -> None:
        worker.line[FRAMES] += 1  # the worker looks at this count, not at its channel
        fence()
        self._wakeups[worker.index].wake()

    def spin(self, done: Callable[[], bool], last_wait: float) -> bool:
        return last_wait < LONG_ROUND and self._looking.until(done)

    def sleeping(self, done: Callable[[], bool]) -> Callable[[], bool]:
        self._control.sleepers[self._parent] = 1

        def fenced() -> bool:
            fence()
            return done()

        return fenced

    def awake(self) -> None:
        if hasattr(self, "_control"):  # else `close` was called meanwhile
            self._control.sleepers[self._parent] = 0

    def take_rows(self, worker: WorkerHandle, payload: bytes) -> bytes | memoryview:
        return payload


class ShmemBackend(ProcessBackend):
    """Workers that share the arena with the parent."""

    def __init__(self, context: str | None = None, affinity: bool = False, **options: Any) -> None:
        super().__init__(ShmemTransport(), ProcessLauncher(context, affinity), **options)
