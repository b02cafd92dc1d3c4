"""SubprocServer: the worker's side of rounds that travel as messages.

    ROUND    opcode of each env of the block, uint8 | action row of each env of the block, array after array |
             pickled payloads
    ANSWERS  status byte of each env of the block, uint8 | row of each env that has answered, array after array |
             last observation of each env that was reset with its last step, array after array |
             bytes in use of each info row, uint16 | info row of each env that has one | pickled extras

The rows are raw bytes; only what does not fit a row is pickled. The part of the info rows is left out where there are
none. Nothing is shared, so the other end could be another machine.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

import numpy as np

from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.control_block import DOING, SENDING
from vecenv.backends.ipc.messages import Channel, Frame
from vecenv.backends.ipc.waiting import SpinWait
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.infos import InfoWriter
from vecenv.backends.memory.layout import Layout
from vecenv.backends.worker.round_server import RoundServer, answer_of

SPINS = 100
"""How often a worker looks for its next round, giving the CPU away each time, before it sleeps."""
SIZE = struct.Struct("<H")


class SubprocServer(RoundServer):
    """Serves ROUND frames."""

    def bind(self, layout: Layout) -> None:
        self._block = Arena.build(layout, self.count)
        self._actions = self._block.actions()
        self._outputs, self._finals = self._block.outputs(), self._block.finals()
        self._all_done = bytes([opcodes.DONE]) * self.count
        self.infos = InfoWriter(self._block.info)
        self.host.bind(layout, self._block, self.infos)

    def serve(self, channel: Channel) -> None:
        looking = SpinWait(SPINS)
        while not self.serve_frame(channel.read(looking)):
            pass

    def serve_frame(self, frame: Frame) -> bool:
        """Do what a frame asks for; returns True if it was CLOSE."""
        if frame.kind != messages.ROUND:
            return self.handle(frame)
        self.timed(self._round, frame.payload)
        return False

    def _round(self, payload: bytes) -> None:
        ops, end = payload[: self.count], self.count
        for array in self._actions:
            start, end = end, end + array.nbytes
            array[...] = as_rows(payload[start:end], array, self.count)
        payloads = pickle.loads(payload[end:]) if len(payload) > end else {}

        def load(j: int, op: int) -> Any:
            return self.load_payload(j, op, payloads[j])

        self.run_block(ops, self._block.action, load, self._answer)

    def _answer(self, ids: Any, extras: dict[int, Extra]) -> None:
        self.line[DOING] = SENDING
        if ids is self.everyone and not extras:
            self.channel.write(messages.ANSWERS, 0, self._all_done, *[array.tobytes() for array in self._outputs])
            return
        payload = self.pickled_extras(extras)
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
    """Raw bytes as `count` rows of the shape and dtype of those of `like`."""
    return np.ndarray((count, *like.shape[1:]), like.dtype, data)
