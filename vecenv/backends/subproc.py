"""SubprocBackend: worker processes that get and give arrays through their channel, one message a worker and round.

    ROUND    operation of each env of the block, uint8 | action row of each env of the block | pickled payloads
    ANSWERS  post box of each env of the block, uint8 | row of each env that has answered, array after array |
             pickled extras

The rows are raw bytes; only what does not fit a row is pickled. Nothing is shared, so the other end could be another
machine.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vecenv.backends import arena as box
from vecenv.backends import channel as ch
from vecenv.backends.arena import Arena
from vecenv.backends.channel import Frame
from vecenv.backends.layout import Layout
from vecenv.backends.process import ProcessBackend
from vecenv.backends.rows import Extra
from vecenv.backends.shield import shield
from vecenv.backends.worker import Server
from vecenv.backends.worker_process import WorkerProcess

WORKER_SPINS = 100
"""How often a worker looks for its next round, giving the CPU away each time, before it sleeps."""
PARENT_SPINS = 50
"""The same for the parent and the answers."""


class SubprocServer(Server):
    """Serves ROUND frames."""

    def bind(self, layout: Layout) -> None:
        self._block = Arena.build(layout, self.count)
        self._outputs = self._block.outputs()
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
        if not self.eager:
            self._answer(done, self.host.run(ops, action, load))
            return
        for j in done:
            row = None if action is None else action[j].copy()
            extra = self.host.run_one(j, ops[j], row, load)
            self._answer([j], {} if extra is None else {j: extra})

    def _answer(self, done: Any, extras: dict[int, Extra]) -> None:
        mail = bytearray(self.count)
        for j in done:
            mail[j] = box.DONE_EXTRA if j in extras else box.DONE
        rows = slice(None) if len(done) == self.count else list(done)
        parts = [array[rows].tobytes() for array in self._outputs]
        self.link.write(ch.ANSWERS, 0, bytes(mail), *parts, self.extras_payload(extras) if extras else b"")


class SubprocBackend(ProcessBackend):
    """Workers that share nothing with the parent but a socket."""

    server = SubprocServer

    def _link(self, worker: WorkerProcess) -> None:
        return None

    def _reserve(self, layout: Layout) -> Arena:
        arena = Arena.build(layout, len(self._makers))
        self._outputs = arena.outputs()
        return arena

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        asked = np.zeros(self._n, dtype=np.uint8)
        asked[slice(None) if ids is None else ids] = ops
        with shield:
            for worker in self.workers:
                block = slice(worker.start, worker.stop)
                mine = asked[block]
                if mine.any():
                    self._send_round(worker, block, mine, payloads)

    def _send_round(self, worker: WorkerProcess, block: slice, asked: np.ndarray, payloads: Mapping[int, Any]) -> None:
        actions = b""
        if self.arena.action is not None:
            actions = self.arena.action[block].tobytes()
        mine = {i - worker.start: payloads[i] for i in worker.ids if i in payloads} if payloads else {}
        rest = pickle.dumps(mine) if mine else b""
        if worker.alive:
            self._post(worker, ch.ROUND, 0, asked.tobytes(), actions, rest)
        np.copyto(self.arena.mail[block], asked, where=asked > 0)

    def wait(self, done: Callable[[], bool], deadline: float | None) -> None:
        for _ in range(PARENT_SPINS):
            self._poll(0.0)
            if done():
                return
            os.sched_yield()
        self.poll_until(done, deadline)

    def _on_answers(self, worker: WorkerProcess, frame: Frame) -> None:
        payload = memoryview(frame.payload)
        count = len(worker.ids)
        mail = np.frombuffer(payload[:count], dtype=np.uint8)
        answered = np.flatnonzero(mail)
        rows: Any = slice(worker.start, worker.stop) if len(answered) == count else answered + worker.start
        end = count
        for array in self._outputs:
            size = len(answered) * array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
            array[rows] = _rows(payload[end : end + size], array, len(answered))
            end += size
        if end < len(payload):
            self._load_extras(worker, frame.payload[end:], set(answered.tolist()))
        self.arena.mail[rows] = mail[answered]


def _rows(data: Any, like: np.ndarray, count: int) -> np.ndarray:
    """Raw bytes as `count` rows of the shape and dtype of those of `like`."""
    return np.ndarray((count, *like.shape[1:]), like.dtype, data)
