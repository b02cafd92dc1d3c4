"""ShmemServer: the worker's side of rounds in shared memory (see `vecenv.backends.shmem` for the picture)."""

from __future__ import annotations

import contextlib
import mmap
import pickle
import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vecenv.backends.host.env_host import EnvHost
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.messages import Channel, WorkerChannel
from vecenv.backends.ipc.serialization import Descriptor
from vecenv.backends.ipc.waiting import SpinWait, Wakeup, fence
from vecenv.backends.memory.arena import Arena, Layout, arena_bytes
from vecenv.backends.memory.infos import InfoWriter
from vecenv.backends.memory.shared_memory import FRAMES, Control
from vecenv.backends.worker.round_server import RoundServer, answer_of
from vecenv.backends.worker.worker_setup import WorkerArgs
from vecenv.portability import IN_ORDER, allow_cpus, allowed_cpus, binds_to_cpus


class CPUWhileAsleep:
    """Context in which a worker sleeps: it may be woken on one CPU only, and may run on all as soon as it is awake.

    The scheduler wakes a task where it ran last. Where there are as many workers as CPUs, two of them then share one
    while the other CPU idles once the caller sleeps, for half a millisecond or more. Nothing is bound while it runs, so
    two programs still share the machine fairly.
    """

    def __init__(self, index: int, num_workers: int) -> None:
        self._index, self._num_workers = index, num_workers
        self._all: set[int] | None = None
        self._own: set[int] | None = None

    def __enter__(self) -> None:
        if self._all is None:  # not before: env constructors may change it
            self._all = (allowed_cpus() if binds_to_cpus() else None) or set()
            if 1 < len(self._all) <= self._num_workers:
                self._own = {sorted(self._all)[self._index % len(self._all)]}
        if self._own is not None:
            self._allow(self._own)

    def __exit__(self, *exc: object) -> None:
        if self._own is not None:
            self._allow(self._all or set())

    @staticmethod
    def _allow(cpus: set[int]) -> None:
        with contextlib.suppress(OSError):  # a CPU was taken away from the process meanwhile
            allow_cpus(0, cpus)


SPINS = 200
"""How often a worker looks for its next round, giving the CPU away each time, before it sleeps."""


@dataclass
class ShmemArgs:
    """Files that a worker shares with the parent besides its channel."""

    memory: Descriptor
    parent_wakeup: Descriptor
    wakeup: Descriptor
    everyone: tuple[Descriptor, ...]
    env_num: int
    rounds_before: int
    """The number of rounds of all envs before this process was started."""


class ShmemServer(RoundServer):
    """Serves rounds from the status bytes."""

    def __init__(self, args: WorkerArgs, host: EnvHost, channel: WorkerChannel, line: Any) -> None:
        super().__init__(args, host, channel, line)
        self._shared: ShmemArgs = args.transport
        self._handled = 0
        self._payloads: dict[int, bytes] = {}
        self._cpu = CPUWhileAsleep(args.index, 0 if args.eager else args.num_workers)
        control, w = Control(args.num_workers, args.control.fd), args.index
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
        self.infos = InfoWriter(self._block.info)
        self.host.bind(layout, self._block, self.infos)

    def serve(self, channel: Channel) -> None:
        line, rounds, full = self.line, self._rounds, self._full
        looking, seen = SpinWait(SPINS), self._shared.rounds_before

        def is_asked() -> bool:
            return rounds[0] + full[0] != seen or line[FRAMES] != self._handled

        while True:
            if not looking.until(is_asked):
                self._sleep(is_asked)
            # Read the status bytes first, then the frames: the payloads of a round are sent before its status bytes.
            announced = rounds[0] + full[0]
            if not IN_ORDER:
                fence()
            asked = self._status.tobytes()
            if not IN_ORDER:
                fence()
            while line[FRAMES] != self._handled:
                if self._read_frame(channel):
                    return
            if announced != seen:
                seen = announced
                self.timed(self._round, asked)

    def _sleep(self, is_asked: Callable[[], bool]) -> None:
        """Sleep until there is another round, or a frame is under way."""
        self._wakeup.flag[0] = 1
        fence()
        with self._cpu:
            while True:
                poller = self._pollers[self._full[0] + 1 & 1]  # before the last look at what it would announce
                if is_asked():
                    break
                if self._wakeup.read in dict(poller.poll()):
                    self._wakeup.clear()
        self._wakeup.flag[0] = 0

    def _read_frame(self, channel: Channel) -> bool:
        """Handle the next frame; returns True if it was CLOSE."""
        frame = channel.read()
        self._handled += 1
        if frame.kind == messages.PAYLOADS:
            self._payloads.update(pickle.loads(frame.payload))
            return False
        return self.handle(frame)

    def _round(self, asked: bytes) -> None:
        self.run_block(asked, self._block.action, self._payload, self._answer)

    def _payload(self, j: int, op: int) -> Any:
        return self.load_payload(j, op, self._payloads.pop(j))

    def _answer(self, ids: Sequence[int], extras: dict[int, Extra]) -> None:
        """Announce the answers first, then send the extras: the parent reads them while we write.

        Each status byte is written alone, by one store: a copy over all of them may store some twice, and the second
        time may fall into the next round, because the parent takes answers as soon as it sees them.
        """
        payload = self.pickled_extras(extras) if extras else b""
        if not IN_ORDER:
            fence()
        status = self._status
        for j in ids:
            status[j] = answer_of(extras.get(j)) if extras else opcodes.DONE
        fence()
        self._parent_wakeup.wake()
        if payload:
            self.channel.write(messages.ANSWERS, 0, payload)
