"""ShmemBackend: worker processes that write into an arena in shared memory.

    parent                                        worker
    ------                                        ------
    write actions, then the status bytes            (looks for a new round, then sleeps on its bell)
    count the round, ring if it sleeps  ->
    (looks for answers, then polls)               steps the envs of its block, writes rows
                                        <-        writes the status bytes, rings the parent's wakeup if it polls
                                        <-        ANSWERS frame with the extras, only if there are any

Nothing is pickled, no frame is sent and, as long as both sides are awake, no system call is made in a round whose
infos are empty.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vecenv.backends.host.env_host import EnvHost, EnvReport
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.control_block import CALLS, Control
from vecenv.backends.ipc.messages import Channel, Frame
from vecenv.backends.ipc.wakeup import IN_ORDER, Wakeup, fence, wakeup_fds
from vecenv.backends.memory.arena import Arena, arena_bytes, used_bytes
from vecenv.backends.memory.layout import Layout
from vecenv.backends.memory.shared_memory import anonymous_file, reserve
from vecenv.backends.pool.start_methods import Descriptor
from vecenv.backends.pool.worker_handle import WorkerProcess
from vecenv.backends.process import ProcessBackend
from vecenv.backends.shield import shield
from vecenv.backends.system_limits import usable_cpus
from vecenv.backends.worker.main import Boot, Server, answer_of

WORKER_SPINS = 200
"""How often a worker looks for its next round, giving the CPU away each time, before it sleeps."""
SHARED_SPINS = 50
"""The same for the parent and the answers, where it needs a CPU on which a worker could run: longer, and it would
keep both workers on one CPU while it spins on the other (measured)."""
SPARE_SPINS = 1000
"""The same where there are more CPUs than workers."""
LONG_ROUND = 5e-3
"""After a round that took longer (seconds) spinning is not worth its while: the parent sleeps at once."""


@dataclass
class SharedParts:
    """What a worker shares with the parent besides its channel."""

    memory: Descriptor
    parent_wakeup: Descriptor
    wakeup: Descriptor
    envs: int


class ShmemServer(Server):
    """Serves rounds from the status bytes."""

    def __init__(self, boot: Boot, host: EnvHost, channel: Channel) -> None:
        super().__init__(boot, host, channel)
        self._shared: SharedParts = boot.shared
        self._handled = 0
        self._payloads: dict[int, bytes] = {}
        control, w = Control(boot.workers, boot.control.fd), boot.index
        self._rounds = control.rounds[w : w + 1]
        self._parent_wakeup = Wakeup(-1, self._shared.parent_wakeup.fd, control.sleepers[boot.workers :])
        self._wakeup = Wakeup(self._shared.wakeup.fd, -1, control.sleepers[w : w + 1])

    def bind(self, layout: Layout) -> None:
        self._memory = mmap.mmap(self._shared.memory.fd, arena_bytes(layout, self._shared.envs))
        block = Arena.build(layout, self._shared.envs, self._memory).block(self.first_id, self.first_id + self.count)
        self._block = block
        self._status: Any = block.status.data
        self.host.bind(layout, block)

    def serve(self) -> None:
        line, rounds, sched_yield = self.line, self._rounds, os.sched_yield
        seen = 0
        while True:
            for _ in range(WORKER_SPINS):
                if rounds[0] != seen or line[CALLS] != self._handled:
                    break
                sched_yield()
            else:
                self._sleep(seen)
            # What is asked first, then the frames: its payloads, which were sent before it, are among them.
            announced = rounds[0]
            if not IN_ORDER:
                fence()
            asked = self._status.tobytes()
            if not IN_ORDER:
                fence()
            while line[CALLS] != self._handled:
                if self._read_frame():
                    return
            if announced != seen:
                seen = announced
                self.timed(self._round, asked)

    def _sleep(self, seen: int) -> None:
        """Until there is another round than that which was `seen`, or a frame is under way."""
        poller = select.poll()
        poller.register(self._wakeup.read, select.POLLIN)
        self._wakeup.cell[0] = 1
        fence()
        while self._rounds[0] == seen and self.line[CALLS] == self._handled:
            poller.poll()
            self._wakeup.silence()
        self._wakeup.cell[0] = 0

    def _read_frame(self) -> bool:
        """Handle the next frame; returns True if it was CLOSE."""
        frame = self.channel.read()
        self._handled += 1
        if frame.kind == messages.PAYLOADS:
            self._payloads.update(pickle.loads(frame.payload))
            return False
        return self.handle(frame)

    def _round(self, asked: bytes) -> None:
        self.run_block(asked, self._block.action, self._payload, self._publish)

    def _payload(self, j: int, op: int) -> Any:
        return self.load_payload(j, op, self._payloads.pop(j))

    def _publish(self, done: Sequence[int], extras: dict[int, Extra]) -> None:
        """Announce the answers first, then send the extras: the parent reads them while we write.

        Each status byte is written alone, as by `send`: a second store may fall into the next round, as the parent
        takes answers as soon as it sees them.
        """
        payload = self.extras_payload(extras) if extras else b""
        if not IN_ORDER:
            fence()
        status = self._status
        for j in done:
            status[j] = answer_of(extras.get(j)) if extras else opcodes.DONE
        fence()
        self._parent_wakeup.ring()
        if payload:
            self.channel.write(messages.ANSWERS, done[0] + 1 if len(done) == 1 else 0, payload)


class ShmemBackend(ProcessBackend):
    """Workers on shared memory; see the module for how a round travels."""

    server = ShmemServer

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int, eager: bool) -> list[EnvReport]:
        self._memory_fd = self.own_fd(anonymous_file("vecenv-arena"))
        self._wakeup = self._new_wakeup(None)
        self._poller.register(self._wakeup.read, select.POLLIN)
        self._wakeups: dict[int, Wakeup] = {}
        self._round = 0
        self._spins = SPARE_SPINS if usable_cpus() > num_workers else SHARED_SPINS
        return super().start(env_fns, num_workers, eager)

    def _new_wakeup(self, cell: Any) -> Wakeup:
        read, write = wakeup_fds()
        for fd in {read, write}:
            self.own_fd(fd)
        return Wakeup(read, write, cell)

    def _shared_parts(self, worker: WorkerProcess) -> SharedParts:
        w, sleepers = worker.index, self.control.sleepers
        self.control.rounds[w] = self.control.line(w)[CALLS] = 0
        if w not in self._wakeups:
            self._wakeups[w] = self._new_wakeup(sleepers[w : w + 1])
        wakeup = self._wakeups[w]
        sleepers[w] = 0
        wakeup.silence()
        return SharedParts(
            Descriptor(self._memory_fd), Descriptor(self._wakeup.write), Descriptor(wakeup.read), len(self._makers)
        )

    def _reserve(self, layout: Layout) -> Arena:
        n = len(self._makers)
        size = arena_bytes(layout, n)
        used = used_bytes(layout, n)
        self._memory = reserve(self._memory_fd, size, f"{n} envs of {used / n / 2**20:.2f} MiB", used)
        self._everyone = np.arange(n)
        return Arena.build(layout, n, self._memory)

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        # Not shielded as a whole: boxes are filled by one operation, and `nudge` wakes those that should look at them.
        if payloads:
            with shield:
                self._send_payloads(payloads)
        self._round += 1
        # With an index array each box is written once, alone. A copy over all of them may write some twice (`memmove`
        # does, and numpy): a worker that looks early, because of the round before, could answer in between.
        self.arena.status[self._everyone if ids is None else ids] = ops
        self._announce(self._wakeups if ids is None else set(self._worker_of[ids].tolist()))
        if self.lost:
            self._answer_lost()

    def _announce(self, workers: Iterable[int]) -> None:
        """Announce the round to these workers, and wake those that sleep. Announced again it is ignored: by then
        the next round may be half written.
        """
        if not IN_ORDER:
            fence()
        control, number = self.control, self._round
        for w in workers:
            control.rounds[w] = number
        fence()
        if 1 in control.sleepers.tobytes():
            for w in workers:
                self._wakeups[w].ring()

    def nudge(self) -> None:
        status = self.arena.status
        with shield:
            self._announce(set(self._worker_of[(status > opcodes.IDLE) & (status < opcodes.DONE)].tolist()))

    def _send_payloads(self, payloads: Mapping[int, Any]) -> None:
        for worker in self.workers:
            if worker.alive and (mine := worker.pickle_own(payloads)):
                self._post(worker, messages.PAYLOADS, 0, mine)

    def _post(self, worker: WorkerProcess, kind: int, number: int, *parts: bytes | memoryview) -> None:
        super()._post(worker, kind, number, *parts)
        self.control.line(worker.index)[CALLS] += 1  # it looks here, not at the channel
        fence()
        self._wakeups[worker.index].ring()

    def wait(self, done: Callable[[], bool], deadline: float | None) -> None:
        if self.waited < LONG_ROUND:
            sched_yield = os.sched_yield
            for _ in range(self._spins):
                if done():
                    if not IN_ORDER:
                        fence()
                    return
                sched_yield()
        self.poll_until(done, deadline)

    def poll_until(
        self,
        done: Callable[[], bool],
        deadline: float | None,
        owing: Callable[[], Sequence[WorkerProcess]] | None = None,
    ) -> None:
        sleepers, parent = self.control.sleepers, self.num_workers
        slept = sleepers[parent]  # another thread, which will be told that it was there first
        sleepers[parent] = 1

        def fenced() -> bool:
            fence()
            return done()

        try:
            super().poll_until(fenced, deadline, owing)
        finally:
            sleepers[parent] = slept

    def _on_wakeup(self) -> None:
        self._wakeup.silence()

    def _on_answers(self, worker: WorkerProcess, frame: Frame) -> None:
        late = {i - worker.start for i in worker.ids if self._lacks_extra(i)}
        if frame.number:
            late &= {frame.number - 1}
        self._load_extras(worker, frame.payload, late)
