"""`ShmemBackend`: steps envs in worker processes that write results into shared memory.

    parent                                        worker
    ------                                        ------
    write actions, then the status bytes          (busy-waits for a round, then sleeps)
    count the round, wake the worker    ->
    if it sleeps
    (busy-waits for answers, then polls)          steps the envs of its block, writes rows
                                        <-        INFO_SCHEMA frame, before the first info with new keys or types
                                        <-        writes the status bytes, wakes the parent if it polls
                                        <-        ANSWERS frame with results that do not fit rows, if any

If actions and results fit rows, a round sends no frame (socket message) except INFO_SCHEMA. While both sides are awake,
a round without frames makes no system call except `sched_yield`.
"""

from __future__ import annotations

import contextlib
import mmap
import select
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vecenv.backends.host.env_host import EnvHost
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.messages import Channel, Frame, WorkerChannel
from vecenv.backends.ipc.serialization import Descriptor
from vecenv.backends.ipc.waiting import SpinWait, Wakeup, fence, wakeup_fds
from vecenv.backends.memory.arena import Arena, arena_bytes, used_bytes
from vecenv.backends.memory.infos import InfoWriter
from vecenv.backends.memory.shared_memory import FRAMES, Control, anonymous_file, reserve
from vecenv.backends.pool.process_worker import ProcessPool
from vecenv.backends.pool.worker_handle import WorkerHandle
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.backends.process import ProcessBackend
from vecenv.backends.system_limits import usable_cpus
from vecenv.backends.worker.round_server import RoundServer, answer_of
from vecenv.backends.worker.worker_setup import WorkerArgs
from vecenv.layout import Layout
from vecenv.portability import IN_ORDER, allow_cpus, allowed_cpus, binds_to_cpus

SHARED_SPINS = 50
"""Number of checks for answers before the parent sleeps, without a spare CPU. More checks would slow a worker."""
SPARE_SPINS = 1000
WORKER_SPINS = 200
LONG_ROUND = 5e-3
"""Seconds. After a longer wait, the parent's next wait does not busy-wait."""


@dataclass
class ShmemArgs:
    memory: Descriptor
    parent_wakeup: Descriptor
    wakeup: Descriptor
    everyone: tuple[Descriptor, ...]
    env_num: int
    rounds_before: int


class ShmemServer(RoundServer):
    def __init__(self, args: WorkerArgs, host: EnvHost, channel: WorkerChannel, line: Any) -> None:
        super().__init__(args, host, channel, line)
        self._shared: ShmemArgs = args.server_args
        self._handled = 0
        self._num_workers = 0 if args.eager else args.num_workers - args.shares_block
        self._place, self._shares_block = args.place, args.shares_block
        control, w = Control(args.num_workers, args.control.fd), args.index
        self._index = w
        self._rounds = control.rounds[w : w + 1]
        self._parent_wakeup = Wakeup(-1, self._shared.parent_wakeup.fd, control.sleepers[args.num_workers :])
        self._full = control.full
        self._pollers = [select.poll(), select.poll()]
        for poller, everyone in zip(self._pollers, self._shared.everyone, strict=True):
            poller.register(self._shared.wakeup.fd, select.POLLIN)
            poller.register(everyone.fd, select.POLLIN)
        self._wakeup = Wakeup(self._shared.wakeup.fd, -1, control.sleepers[w : w + 1])

    def bind(self, layout: Layout) -> None:
        n = self._shared.env_num
        self._memory = mmap.mmap(self._shared.memory.fd, arena_bytes(layout, n))
        self._block = Arena.build(layout, n, self._memory).block(self.first_id, self.first_id + self.count)
        self._status: Any = self._block.status.data
        self._owns_all = np.full_like(self._block.owner, self._index).tobytes()
        self.infos = InfoWriter(self._block.info)
        self.host.bind(layout, self._block, self.infos)

    def serve(self, channel: Channel) -> None:
        line, rounds, full = self.line, self._rounds, self._full
        looking, seen = SpinWait(WORKER_SPINS), self._shared.rounds_before

        def is_asked() -> bool:
            return rounds[0] + full[0] != seen or line[FRAMES] != self._handled

        while True:
            if not looking.until(is_asked):
                self._sleep(is_asked)
            # Read frames after status bytes, because the parent sends payloads before status bytes.
            announced = rounds[0] + full[0]
            if not IN_ORDER:
                fence()
            asked = self._status.tobytes()
            if not IN_ORDER:
                fence()
            while line[FRAMES] != self._handled:
                frame = channel.read()
                self._handled += 1
                if frame.kind == messages.SYNC:  # the counts may include unsent rounds and frames, after an interrupt
                    announced = seen = rounds[0] + full[0]
                    self._handled = int.from_bytes(frame.payload, "little")
                    self.payloads = {}
                if self._serve_frame(frame):
                    return
            if announced != seen:
                seen = announced
                self.timed(self._round, asked)

    def _sleep(self, is_asked: Callable[[], bool]) -> None:
        self._wakeup.flag[0] = 1
        fence()
        self._allow(0)
        while True:
            # Choose the poller before the check, so that a later round of all envs wakes this poller.
            poller = self._pollers[self._full[0] + 1 & 1]
            if is_asked():
                break
            if self._wakeup.read in dict(poller.poll()):
                self._wakeup.clear()
        self._allow(1)
        self._wakeup.flag[0] = 0

    @cached_property
    def _cpus(self) -> tuple[set[int], set[int]] | None:
        """CPU for the sleeping worker, and CPUs for the awake worker. `None` if binding is not needed.

        The scheduler wakes a task on the CPU of its last run. Two workers could wake on the same CPU while a CPU idles,
        so workers sleep on different CPUs. An awake worker is not bound, so that programs share CPUs fairly. Computed
        at the first sleep, because env constructors may change the allowed CPUs.
        """
        cpus = (allowed_cpus() if binds_to_cpus() else None) or set()
        if not 1 < len(cpus) <= self._num_workers:
            return None
        return {sorted(cpus)[self._place % len(cpus)]}, cpus

    def _allow(self, awake: int) -> None:
        """Bind the worker to one CPU for sleeping (0), or allow all CPUs (1)."""
        if self._cpus is not None:
            with contextlib.suppress(OSError):  # a CPU may no longer be allowed
                allow_cpus(self._cpus[awake])

    def _serve_frame(self, frame: Frame) -> bool:
        if frame.kind == messages.PAYLOADS:
            self.payloads.update(self.code.loads(frame.payload))
            return False
        return self.handle(frame)

    def _round(self, asked: bytes) -> None:
        if self._shares_block and (owners := self._block.owner.tobytes()) != self._owns_all:
            owned = (np.frombuffer(owners, self._block.owner.dtype) == self._index).tolist()
            asked = bytes(op if own else opcodes.IDLE for op, own in zip(asked, owned, strict=True))
        self.serve_round(asked, self._block.action, self._answer)

    def _answer(self, ids: Sequence[int], extras: dict[int, Extra]) -> None:
        """Write status bytes, then send extras, so that the parent reads extras while this worker sends them.

        Store each status byte once. A block copy could store a byte twice, and overwrite the parent's next opcode.
        """
        payload = self.encoded_extras(extras) if extras else b""
        if not IN_ORDER:
            fence()
        status = self._status
        for j in ids:
            status[j] = answer_of(extras.get(j)) if extras else opcodes.DONE
        fence()
        self._parent_wakeup.wake()
        if payload:
            self.channel.write(messages.ANSWERS, 0, payload)


class ShmemBackend(ProcessBackend):
    pool_type: Callable[..., WorkerPool] = ProcessPool
    server: type[RoundServer] = ShmemServer

    def _open(self) -> None:
        pool = self.pool
        self._control, self._parent = pool.control, len(pool.workers)
        self._memory_fd = pool.own_fd(anonymous_file("vecenv-arena"))
        self._wakeup = self._new_wakeup(None)
        pool.watch(self._wakeup.read, self._wakeup.clear)
        self._everyone = [self._new_wakeup(b"\1") for _ in range(2)]
        """Two wakeups, used in turn. Each wakes all sleeping workers with one system call (see `Control`)."""
        self._woken = False
        self._looking = SpinWait(SPARE_SPINS if usable_cpus() > len(pool.workers) else SHARED_SPINS)

    def _new_wakeup(self, flag: Any) -> Wakeup:
        read, write = wakeup_fds()
        for fd in {read, write}:
            self.pool.own_fd(fd)
        return Wakeup(read, write, flag)

    def server_args(self, worker: WorkerHandle) -> ShmemArgs:
        w, control = worker.index, self._control
        control.rounds[w] = worker.line[FRAMES] = 0
        if worker.wakeup is None:
            worker.wakeup = self._new_wakeup(control.sleepers[w : w + 1])
        control.sleepers[w] = 0
        worker.wakeup.clear()
        return ShmemArgs(
            Descriptor(self._memory_fd),
            Descriptor(self._wakeup.write),
            Descriptor(worker.wakeup.read),
            tuple(Descriptor(each.read) for each in self._everyone),
            self._n,
            control.full[0],
        )

    def _build(self, layout: Layout) -> Arena:
        n = self._n
        size, used = arena_bytes(layout, n), used_bytes(layout, n)
        memory = reserve(self._memory_fd, size, f"{n} envs of {used / n / 2**20:.2f} MiB", used)
        self._all_ids = np.arange(n)
        return Arena.build(layout, n, memory)

    def _send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        for worker in self.pool.workers if payloads else ():
            if worker.alive and (mine := self.pool.encode_own(worker, payloads)):
                self.pool.request(worker, messages.PAYLOADS, 0, mine)
        # An index array writes each byte once. A slice could write a byte twice, and overwrite a fast worker's answer.
        self.arena.status[self._all_ids if ids is None else ids] = ops
        if not IN_ORDER:
            fence()
        control = self._control
        if ids is None:
            number = control.full[0] + 1
            if self._woken:
                self._everyone[number - 1 & 1].clear()
            control.full[0] = number
            fence()
            self._woken = 1 in control.sleepers.tobytes()
            if self._woken:
                self._everyone[number & 1].wake()
            return
        workers = set(self.pool.worker_of[ids].tolist())
        for w in workers:
            control.rounds[w] += 1
        fence()
        for w in workers:
            self.pool.workers[w].wakeup.wake()

    def _spin(self, done: Callable[[], bool]) -> bool:
        return self._last_wait < LONG_ROUND and self._looking.until(done)

    def _sleep(self, done: Callable[[], bool], deadline: float | None) -> None:
        try:
            self._control.sleepers[self._parent] = 1
            fence()
            super()._sleep(done, deadline)
        finally:
            self._control.sleepers[self._parent] = 0

    def resynchronise(self, deadline: float) -> None:
        super().resynchronise(deadline)
        self._woken = False
        for wakeup in (*self._everyone, self._wakeup):
            wakeup.clear()
