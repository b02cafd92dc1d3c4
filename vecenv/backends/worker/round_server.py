"""RoundServer: the loop of a worker that serves rounds and calls; SubprocServer: the one whose rounds are messages."""

from __future__ import annotations

import pickle
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenv.backends.host.env_host import EnvHost, Payload
from vecenv.backends.host.failure import Failure, capture, describe
from vecenv.backends.host.row_writer import IN_INFO_ROW, RENEWED, Extra
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.messages import Channel, Frame, WorkerChannel
from vecenv.backends.ipc.serialization import dumps, loads_by_value
from vecenv.backends.ipc.waiting import SpinWait
from vecenv.backends.memory.arena import Arena, Layout
from vecenv.backends.memory.infos import InfoWriter
from vecenv.backends.memory.shared_memory import A_CALL, A_ROUND, BUSY_NS, DOING, NOTHING, SENDING
from vecenv.backends.worker.blocking_envs import BlockingMeter
from vecenv.backends.worker.worker_setup import WorkerArgs

Answer = Callable[[Sequence[int], dict[int, Extra]], None]
"""Announces that these envs of the block are done, with their extras."""


class RoundServer(ABC):
    """Serves one worker; `line` is its line of the control block."""

    infos: InfoWriter
    """Set by `bind`."""

    def __init__(self, args: WorkerArgs, host: EnvHost, channel: WorkerChannel, line: Any) -> None:
        self.host = host
        self.channel = channel
        self.line = line
        self.first_id = args.first_id
        self.count, self.everyone = args.count, range(args.count)
        self._one_by_one = args.eager and args.count > 1
        self._blocking = BlockingMeter(args.count)

    @abstractmethod
    def bind(self, layout: Layout) -> None:
        """Map or make the block's arena."""

    @abstractmethod
    def serve(self, channel: Channel) -> None:
        """Serve until a CLOSE frame from `channel` has been handled."""

    def timed(self, round: Callable[..., None], *args: Any) -> None:
        """Do a round, and account for the time that it took."""
        begin = time.perf_counter_ns()
        round(*args)
        self.line[DOING] = NOTHING
        self.line[BUSY_NS] += time.perf_counter_ns() - begin

    def run_block(self, asked: bytes, action: Any, payload: Payload, answer: Answer) -> None:
        """Run the operations of the status bytes and answer: for all at once, or for each env as soon as it is done."""
        if opcodes.all_busy(asked):
            ids: Sequence[int] = self.everyone
        else:
            ids = [j for j, op in enumerate(asked) if opcodes.IDLE < op < opcodes.DONE]
        if not self._one_by_one:
            if ids:
                answer(ids, self._measured(self.host.run, asked, action, payload))
            return
        for j in ids:
            extra = self._measured(self.host.run_one, j, asked[j], action, payload)
            answer([j], {} if extra is None else {j: extra})

    def _measured(self, run: Callable[..., Any], *args: Any) -> Any:
        """Return the result of `run`; in the first rounds its time in the envs is measured, without that of sending."""
        self.line[DOING] = A_ROUND
        if not self._blocking.measuring:
            return run(*args)
        self._blocking.start()
        result = run(*args)
        if (warning := self._blocking.stop()) is not None:
            self.channel.write(messages.WARNING, 0, pickle.dumps(warning))
        return result

    def handle(self, frame: Frame) -> bool:
        """Handle a frame other than a round; returns True if it was CLOSE."""
        if frame.kind == messages.CALL:
            self.line[DOING] = A_CALL
            reply = self._call(*pickle.loads(frame.payload))
            self.line[DOING] = NOTHING
            self.channel.write(messages.REPLY, frame.number, reply)
        elif frame.kind == messages.CLOSE:
            self.channel.write(messages.CLOSED, 0, pickle.dumps(self.host.close()))
            return True
        return False

    def pickled_extras(self, extras: dict[int, Extra]) -> bytes:
        """The extras as a pickled list of (place in the block, pickle), empty where nothing has to be sent.

        Infos that fit are written into their rows instead; the forms of these rows are sent here, before the status
        bytes that announce them. Each extra is pickled alone, so that one that cannot be read fails its own env only.
        One that cannot be pickled becomes a failure of its env.
        """
        blobs, infos = [], self.infos
        for j, extra in extras.items():
            if extra is IN_INFO_ROW or extra is RENEWED:  # its status byte is the whole answer
                continue
            if (info := extra.info_alone()) is not None and infos.write(j, info):
                extras[j] = IN_INFO_ROW
                continue
            self.line[DOING] = SENDING
            try:
                blobs.append((j, dumps(extra.packed())))
            except BaseException as error:
                extras[j] = Extra(failure=self._not_sent(j, error))
                blobs.append((j, dumps(extras[j].packed())))
        while infos.sent < len(infos.forms):
            form = infos.forms[infos.sent]
            self.channel.write(messages.INFO_FORM, infos.sent, pickle.dumps((form.keys, form.kinds)))
            infos.sent += 1
        return pickle.dumps(blobs) if blobs else b""

    def _not_sent(self, j: int, error: BaseException) -> Failure:
        env_id = self.first_id + j
        reason = TypeError(f"what env {env_id} returned (info or observation) cannot be sent: {describe(error)}")
        reason.__cause__ = error
        return capture(reason, env_id, "step", local=False)

    def _call(self, op: str, blobs: dict[int, bytes]) -> bytes:
        """Run an operation on envs: the pickle of {j: the pickle of its value or Failure}."""
        results: dict[int, bytes] = {}
        for j, blob in blobs.items():
            try:
                results[j] = dumps(self.host.call(j, op, loads_by_value(blob)))
            except BaseException as error:
                env_id = self.first_id + j
                text = f"{op} on env {env_id}: what was passed or is returned cannot be sent: {describe(error)}"
                results[j] = dumps(capture(TypeError(text), env_id, op, local=False))
        return pickle.dumps(results)

    def load_payload(self, j: int, op: int, blob: bytes) -> Any:
        """An action or arguments that travelled pickled; a Failure if they cannot be read here."""
        try:
            return loads_by_value(blob)
        except BaseException as error:
            env_id, name, what = self.first_id + j, "reset", "arguments"
            if op & opcodes.PLAIN == opcodes.STEP_OBJECT:
                name, what = "step", "action"
            reason = TypeError(f"the {what} for env {env_id} cannot be read in the worker: {describe(error)}")
            return capture(reason, env_id, name, local=False)


def answer_of(extra: Extra | None) -> int:
    """The status byte of an env that has answered."""
    if extra is None:
        return opcodes.DONE
    if extra is IN_INFO_ROW:
        return opcodes.DONE_INFO
    if extra is RENEWED:
        return opcodes.DONE_FINAL
    return opcodes.DONE_EXTRA if extra.final is None else opcodes.DONE_EXTRA_FINAL


SPINS = 100
"""How often a worker looks for its next round, giving the CPU away each time, before it sleeps."""
SIZE = struct.Struct("<H")


class SubprocServer(RoundServer):
    """Serves ROUND frames, the rounds that travel as messages::

        ROUND    opcode of each env of the block, uint8 | action row of each env of the block, array after array |
                 pickled payloads
        ANSWERS  status byte of each env of the block, uint8 | row of each env that has answered, array after array |
                 last observation of each env that was reset with its last step, array after array |
                 bytes in use of each info row, uint16 | info row of each env that has one | pickled extras

    The rows are raw bytes; only what does not fit a row is pickled. The part of the info rows is left out where there
    are none. Nothing is shared, so the other end could be another machine.
    """

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
