"""SubprocBackend: worker processes that get and give arrays through their channel, one message a worker and round.

    ROUND    operation of each env of the block, uint8 | action row of each env of the block | pickled payloads
    ANSWERS  post box of each env of the block, uint8 | row of each env that has answered, array after array |
             last observation of each env that was reset with its last step, array after array | pickled extras

The rows are raw bytes; only what does not fit a row is pickled. Nothing is shared, so the other end could be another
machine.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from vecenv.backends import arena as box
from vecenv.backends import channel as ch
from vecenv.backends.arena import Arena
from vecenv.backends.channel import Frame
from vecenv.backends.layout import Layout
from vecenv.backends.process import ProcessBackend
from vecenv.backends.rows import Extra
from vecenv.backends.shield import shield
from vecenv.backends.worker import Server, answer_of
from vecenv.backends.worker_process import WorkerProcess

WORKER_SPINS = 100
"""How often a worker looks for its next round, giving the CPU away each time, before it sleeps."""
PARENT_SPINS = 50
"""The same for the parent and the answers."""


class SubprocServer(Server):
    """Serves ROUND frames."""

    def bind(self, layout: Layout) -> None:
        self._block = Arena.build(layout, self.count)
        self._outputs, self._finals = self._block.outputs(), self._block.finals()
        self._everyone = range(self.count)
        self.host.bind(layout, self._block)

    def serve(self) -> None:
        while True:
            frame = self.link.read(WORKER_SPINS)
            if frame.kind != ch.ROUND:
                if self.handle(frame):
                    return
            else:
                self.timed(self._round, frame.payload)

    def _round(self, payload: bytes) -> None:
        ops = payload[: self.count]
        end = self.count
        action = self._block.action
        if action is not None:
            end += action.nbytes
            action[...] = _rows(payload[self.count : end], action, self.count)
        payloads = pickle.loads(payload[end:]) if len(payload) > end else {}

        def load(j: int, op: int) -> Any:
            return self.load_payload(j, op, payloads[j])

        done = self._everyone if box.all_ask(ops) else [j for j, op in enumerate(ops) if op]
        if not self.eager or len(done) == 1:
            self._answer(done, self.run(ops, action, load))
            return
        for j in done:
            self._answer([j], self.run(box.only(j, ops), action, load))

    def _answer(self, done: Any, extras: dict[int, Extra]) -> None:
        payload = self.extras_payload(extras) if extras else b""
        mail = bytearray(self.count)
        for j in done:
            mail[j] = answer_of(extras.get(j))
        rows = slice(None) if len(done) == self.count else list(done)
        parts = [array[rows].tobytes() for array in self._outputs]
        if final := [j for j in done if mail[j] & box.FINAL]:
            parts += [array[final].tobytes() for array in self._finals]
        self.link.write(ch.ANSWERS, 0, bytes(mail), *parts, payload)


class Port(NamedTuple):
    """The memory of a worker's block in the parent's arena."""

    mail: memoryview
    action: bytes | memoryview
    outputs: list[memoryview]


class SubprocBackend(ProcessBackend):
    """Workers that share nothing with the parent but a socket."""

    server = SubprocServer

    def _link(self, worker: WorkerProcess) -> None:
        return None

    def _reserve(self, layout: Layout) -> Arena:
        arena = Arena.build(layout, len(self._makers))
        self._outputs = [(array, array[0].nbytes) for array in arena.outputs()]
        self._finals = [(array, array[0].nbytes) for array in arena.finals()]
        blocks = [slice(worker.start, worker.stop) for worker in self.workers]
        self._ports = [
            Port(
                mail=arena.mail[block].data,
                action=b"" if arena.action is None else _bytes_of(arena.action[block]),
                outputs=[_bytes_of(array[block]) for array, size in self._outputs if size],
            )
            for block in blocks
        ]
        return arena

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        asked = np.zeros(self._n, dtype=np.uint8)
        asked[slice(None) if ids is None else ids] = ops
        all_ops = asked.tobytes()
        with shield:
            for worker, port in zip(self.workers, self._ports, strict=True):
                mine = all_ops[worker.start : worker.stop]
                if not any(mine):
                    continue
                if worker.alive:
                    rest = _block_of(payloads, worker) if payloads else b""
                    self._post(worker, ch.ROUND, 0, mine, port.action, rest)
                if box.all_ask(mine):
                    port.mail[:] = mine
                else:
                    block = slice(worker.start, worker.stop)
                    np.copyto(self.arena.mail[block], asked[block], where=asked[block] > 0)

    def wait(self, done: Callable[[], bool], deadline: float | None) -> None:
        for _ in range(PARENT_SPINS):
            if self._poller.poll(0):
                self._poll(0.0)
                if done():
                    return
            os.sched_yield()
        self.poll_until(done, deadline)

    def _on_answers(self, worker: WorkerProcess, frame: Frame) -> None:
        payload, end = memoryview(frame.payload), len(worker.ids)
        mail = frame.payload[:end]
        port = self._ports[worker.index]
        if box.IDLE not in mail:
            answered: Any = worker.ids
            for view in port.outputs:
                start, end = end, end + len(view)
                view[:] = payload[start:end]
        else:
            answered = [worker.start + j for j, answer in enumerate(mail) if answer]
            for array, size in self._outputs:
                start, end = end, end + len(answered) * size
                array[answered] = _rows(payload[start:end], array, len(answered))
        if final := [worker.start + j for j, answer in enumerate(mail) if answer & box.FINAL]:
            for array, size in self._finals:
                start, end = end, end + len(final) * size
                array[final] = _rows(payload[start:end], array, len(final))
        if end < len(payload):
            self._load_extras(worker, frame.payload[end:], {i - worker.start for i in answered})
        if answered is worker.ids:
            port.mail[:] = mail
            return
        for i in answered:
            self._mail[i] = mail[i - worker.start]


def _block_of(payloads: Mapping[int, Any], worker: WorkerProcess) -> bytes:
    mine = {i - worker.start: payloads[i] for i in worker.ids if i in payloads}
    return pickle.dumps(mine) if mine else b""


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array, byte by byte."""
    return array.reshape(-1).view(np.uint8).data


def _rows(data: Any, like: np.ndarray, count: int) -> np.ndarray:
    """Raw bytes as `count` rows of the shape and dtype of those of `like`."""
    return np.ndarray((count, *like.shape[1:]), like.dtype, data)
