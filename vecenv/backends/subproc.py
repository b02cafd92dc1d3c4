"""SubprocBackend: worker processes that get and give arrays through their channel, one message a worker and round.

    ROUND    operation of each env of the block, uint8 | action row of each env of the block | pickled payloads
    ANSWERS  status byte of each env of the block, uint8 | row of each env that has answered, array after array |
             last observation of each env that was reset with its last step, array after array | pickled extras

The rows are raw bytes; only what does not fit a row is pickled. Nothing is shared, so the other end could be another
machine.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.control_block import DOING, SENDING
from vecenv.backends.ipc.messages import Frame
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.layout import Layout
from vecenv.backends.pool.worker_handle import WorkerProcess
from vecenv.backends.process import ProcessBackend
from vecenv.backends.shield import shield
from vecenv.backends.worker.main import Server, answer_of

WORKER_SPINS = 100
"""How often a worker looks for its next round, giving the CPU away each time, before it sleeps."""
PARENT_SPINS = 50
"""The same for the parent and the answers."""


class SubprocServer(Server):
    """Serves ROUND frames."""

    def bind(self, layout: Layout) -> None:
        self._block = Arena.build(layout, self.count)
        self._outputs, self._finals = self._block.outputs(), self._block.finals()
        self._all_done = bytes([opcodes.DONE]) * self.count
        self.host.bind(layout, self._block)

    def serve(self) -> None:
        while True:
            frame = self.channel.read(WORKER_SPINS)
            if frame.kind != messages.ROUND:
                if self.handle(frame):
                    return
            else:
                self.timed(self._round, frame.payload)

    def _round(self, payload: bytes) -> None:
        ops, end = payload[: self.count], self.count
        action = self._block.action
        if action is not None:
            end += action.nbytes
            action[...] = _rows(payload[self.count : end], action, self.count)
        payloads = pickle.loads(payload[end:]) if len(payload) > end else {}

        def load(j: int, op: int) -> Any:
            return self.load_payload(j, op, payloads[j])

        self.run_block(ops, action, load, self._answer)

    def _answer(self, done: Any, extras: dict[int, Extra]) -> None:
        self.line[DOING] = SENDING
        if done is self.everyone and not extras:
            self.channel.write(messages.ANSWERS, 0, self._all_done, *[array.tobytes() for array in self._outputs])
            return
        payload = self.extras_payload(extras)
        status = bytearray(self.count)
        for j in done:
            status[j] = answer_of(extras.get(j))
        rows = slice(None) if done is self.everyone else list(done)
        parts = [array[rows].tobytes() for array in self._outputs]
        if final := [j for j in done if status[j] & opcodes.FINAL]:
            parts += [array[final].tobytes() for array in self._finals]
        self.channel.write(messages.ANSWERS, 0, bytes(status), *parts, payload)


class Port(NamedTuple):
    """The memory of a worker's block in the parent's arena."""

    block: slice
    status: memoryview
    action: bytes | memoryview
    outputs: list[tuple[memoryview, slice]]
    """Each with the part of an ANSWERS frame that goes there when all envs of the block have answered."""
    size: int
    """Bytes of that frame, where there is nothing else in it."""


class SubprocBackend(ProcessBackend):
    """Workers that share nothing with the parent but a socket."""

    server = SubprocServer

    def _shared_parts(self, worker: WorkerProcess) -> None:
        return None

    def _reserve(self, layout: Layout) -> Arena:
        arena = Arena.build(layout, len(self._makers))
        self._outputs = [(array, array[0].nbytes) for array in arena.outputs()]
        self._finals = [(array, array[0].nbytes) for array in arena.finals()]
        self._ports = [self._port(arena, slice(worker.start, worker.stop)) for worker in self.workers]
        return arena

    def _port(self, arena: Arena, block: slice) -> Port:
        end = block.stop - block.start
        outputs = []
        for array, size in self._outputs:
            if size:
                view = _bytes_of(array[block])
                start, end = end, end + len(view)
                outputs.append((view, slice(start, end)))
        action = b"" if arena.action is None else _bytes_of(arena.action[block])
        return Port(block, arena.status[block].data, action, outputs, end)

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        asked = np.zeros(self._n, dtype=np.uint8)
        asked[... if ids is None else ids] = ops
        all_ops = asked.tobytes()
        with shield:
            for worker, port in zip(self.workers, self._ports, strict=True):
                mine = all_ops[port.block]
                if ids is not None and not any(mine):
                    continue
                if worker.alive:
                    rest = worker.pickle_own(payloads) if payloads else b""
                    self._post(worker, messages.ROUND, 0, mine, port.action, rest)
                if ids is None:
                    port.status[:] = mine
                else:
                    np.copyto(self.arena.status[port.block], asked[port.block], where=asked[port.block] > 0)
            if self.lost:
                self._answer_lost()

    def wait(self, done: Callable[[], bool], deadline: float | None) -> None:
        for _ in range(1 + PARENT_SPINS):
            self.look()
            if done():
                return
            os.sched_yield()
        self.poll_until(done, deadline)

    def _on_answers(self, worker: WorkerProcess, frame: Frame) -> None:
        payload, port = memoryview(frame.payload), self._ports[worker.index]
        status = frame.payload[: len(worker.ids)]
        if opcodes.IDLE not in status:
            for view, part in port.outputs:
                view[:] = payload[part]
            if len(payload) > port.size:
                self._take_rest(worker, status, worker.ids, payload[port.size :])
            port.status[:] = status
            return
        answered = [worker.start + j for j, answer in enumerate(status) if answer]
        rest = self._take_arrays(self._outputs, answered, payload[len(status) :])
        if rest:
            self._take_rest(worker, status, answered, rest)
        for i in answered:
            self._status[i] = status[i - worker.start]

    def _take_rest(self, worker: WorkerProcess, status: bytes, answered: Sequence[int], payload: memoryview) -> None:
        """Take what comes behind the rows: last observations, and extras."""
        if final := [i for i in answered if status[i - worker.start] & opcodes.FINAL]:
            payload = self._take_arrays(self._finals, final, payload)
        if payload:
            places = [i - worker.start for i in answered]
            self._load_extras(worker, bytes(payload), {j for j in places if status[j] & opcodes.EXTRA})

    def _take_arrays(self, arrays: list[tuple[np.ndarray, int]], ids: list[int], payload: memoryview) -> memoryview:
        """Take a row of each array for each of these envs; returns what comes behind them."""
        end = 0
        for array, size in arrays:
            start, end = end, end + len(ids) * size
            array[ids] = _rows(payload[start:end], array, len(ids))
        return payload[end:]


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array, byte by byte."""
    return array.reshape(-1).view(np.uint8).data


def _rows(data: Any, like: np.ndarray, count: int) -> np.ndarray:
    """Raw bytes as `count` rows of the shape and dtype of those of `like`."""
    return np.ndarray((count, *like.shape[1:]), like.dtype, data)
