"""`SubprocBackend`: steps envs in worker processes, with a socket message per worker and round (step or reset)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.messages import Channel, Frame
from vecenv.backends.ipc.waiting import SpinWait
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.infos import InfoWriter
from vecenv.backends.memory.shared_memory import DOING, SENDING
from vecenv.backends.pool.process_worker import ProcessPool
from vecenv.backends.pool.worker_handle import WorkerHandle
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.backends.process import ProcessBackend
from vecenv.backends.worker.round_server import RoundServer, answer_of
from vecenv.layout import Layout

SPINS, WORKER_SPINS = 50, 100
"""Number of checks for a message before sleeping, by the parent and by a worker."""
SIZE = struct.Struct("<H")


class SubprocServer(RoundServer):
    """Server that reads ROUND frames and writes ANSWERS frames::

        ROUND    opcode of each env of the worker, uint8 | autoreset seed of each env, int64 |
                 action row of each env, array after array | encoded payloads
        ANSWERS  status byte of each env of the worker, uint8 | row of each env that has answered, array after array |
                 last observation of each env that was reset by an autoreset, array after array |
                 used bytes per info row, uint16 | info row (if any) of each env | encoded extras

    Payloads and extras are values that do not fit a row. If no env has an info row, the uint16 is absent.
    """

    def bind(self, layout: Layout) -> None:
        self._block = Arena.build(layout, self.count)
        self._actions = self._block.actions()
        self._outputs, self._finals = self._block.outputs(), self._block.finals()
        self._all_done = bytes([opcodes.DONE]) * self.count
        self.infos = InfoWriter(self._block.info)
        self.host.bind(layout, self._block, self.infos)

    def serve(self, channel: Channel) -> None:
        looking = SpinWait(WORKER_SPINS)
        while not self.serve_frame(channel.read(looking)):
            pass

    def serve_frame(self, frame: Frame) -> bool:
        if frame.kind != messages.ROUND:
            return self.handle(frame)
        self.timed(self._round, frame.payload)
        return False

    def _round(self, payload: bytes) -> None:
        ops, end = payload[: self.count], self.count
        for array in self._actions:
            start, end = end, end + array.nbytes
            array[...] = as_rows(payload[start:end], array, self.count)
        self.payloads = self.code.loads(payload[end:]) if len(payload) > end else {}
        self.serve_round(ops, self._block.action, self._answer)

    def _answer(self, ids: Any, extras: dict[int, Extra]) -> None:
        self.line[DOING] = SENDING
        if ids is self.everyone and not extras:
            self.channel.write(messages.ANSWERS, 0, self._all_done, *[array.tobytes() for array in self._outputs])
            return
        payload = self.encoded_extras(extras)
        status = bytearray(self.count)
        for j in ids:
            status[j] = answer_of(extras.get(j))
        rows = slice(None) if ids is self.everyone else list(ids)
        parts = [array[rows].tobytes() for array in self._outputs]
        if final := [j for j in ids if status[j] & opcodes.FINAL]:
            parts += [array[final].tobytes() for array in self._finals]
        if in_rows := [j for j in ids if status[j] & opcodes.INFO]:
            parts += [SIZE.pack(size := self.infos.size), self._block.info[in_rows, :size].tobytes()]
        self.channel.write(messages.ANSWERS, 0, bytes(status), *parts, payload)


def as_rows(data: Any, like: np.ndarray, count: int) -> np.ndarray:
    return np.ndarray((count, *like.shape[1:]), like.dtype, data)


class _Block(NamedTuple):
    rows: slice
    status: memoryview
    actions: list[memoryview]
    outputs: list[tuple[memoryview, slice]]
    """Memory of each output array, and its slice of bytes in an ANSWERS frame with all envs of the worker."""
    size: int
    """Bytes of such a frame, without last observations, infos and extras."""


class SubprocBackend(ProcessBackend):
    pool_type: Callable[..., WorkerPool] = ProcessPool
    server: type[RoundServer] = SubprocServer

    def _build(self, layout: Layout) -> Arena:
        self._looking = SpinWait(SPINS)
        arena = super()._build(layout)
        self._use(arena)
        return arena

    def _use(self, arena: Arena) -> None:
        self._outputs = [(array, array[0].nbytes) for array in arena.outputs()]
        self._finals = [(array, array[0].nbytes) for array in arena.finals()]
        self._blocks = [self._block(arena, worker) for worker in self.pool.workers]

    def _serve(self, worker: WorkerHandle) -> None:
        self._blocks[worker.index] = self._block(self.arena, worker)

    def _block(self, arena: Arena, worker: WorkerHandle) -> _Block:
        rows, end = slice(worker.start, worker.stop), len(worker.ids)
        outputs = []
        for array, size in self._outputs:
            if size:
                view = _bytes_of(array[rows])
                start, end = end, end + len(view)
                outputs.append((view, slice(start, end)))
        actions = [_bytes_of(array[rows]) for array in arena.actions()]
        return _Block(rows, arena.status[rows].data, actions, outputs, end)

    def _send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        status, pool = self.arena.status, self.pool
        asked = np.zeros(len(status), dtype=np.uint8)
        asked[... if ids is None else ids] = ops
        all_ops = asked.tobytes()
        for worker, block in zip(pool.workers, self._blocks, strict=True):
            mine = all_ops[block.rows]
            if pool.is_shared:
                mine = bytes(op if i in worker.hosted else opcodes.IDLE for i, op in enumerate(mine, worker.start))
            if any(mine) and worker.alive:
                rest = pool.encode_own(worker, payloads) if payloads else b""
                pool.post(worker, messages.ROUND, 0, mine, *block.actions, rest)
        if ids is None:
            status[...] = asked
        else:
            status[ids] = ops

    def _spin(self, done: Callable[[], bool]) -> bool:
        pool = self.pool

        def have_answered() -> bool:
            if events := pool.events(None):
                pool.handle_events(events)
            return done()

        return self._looking.until(have_answered)

    def _take_rows(self, worker: WorkerHandle, payload: bytes | bytearray) -> bytes | bytearray | memoryview:
        view, block = memoryview(payload), self._blocks[worker.index]
        answered = payload[: len(worker.ids)]
        if opcodes.IDLE not in answered:
            for target, part in block.outputs:
                target[:] = view[part]
            rest = view[block.size :]
            if len(rest):
                rest = self._take_rest(worker, answered, rest)
            block.status[:] = answered
            return rest
        ids = [worker.start + j for j, byte in enumerate(answered) if byte]
        rest = self._take_rest(worker, answered, self._take_arrays(self._outputs, ids, view[len(answered) :]))
        for i in ids:
            self.arena.status[i] = answered[i - worker.start]
        return rest

    def _take_rest(self, worker: WorkerHandle, answered: bytes | bytearray, payload: memoryview) -> memoryview:
        ended, informed = (
            [worker.start + j for j, byte in enumerate(answered) if byte & kind]
            for kind in (opcodes.FINAL, opcodes.INFO)
        )
        payload = self._take_arrays(self._finals, ended, payload)
        if not informed:
            return payload
        (size,) = SIZE.unpack_from(payload)
        return self._take_arrays([(self.arena.info[:, :size], size)], informed, payload[SIZE.size :])

    def _take_arrays(self, arrays: Sequence[tuple[np.ndarray, int]], ids: list[int], payload: memoryview) -> memoryview:
        end = 0
        for array, size in arrays if ids else ():
            start, end = end, end + len(ids) * size
            array[ids] = as_rows(payload[start:end], array, len(ids))
        return payload[end:]


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
