"""RoundServer: the loop of a worker that serves rounds and calls; a transport defines how a round travels."""

from __future__ import annotations

import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from vecenv.backends.host.env_host import EnvHost, Payload
from vecenv.backends.host.failure import Failure, capture, describe
from vecenv.backends.host.row_writer import IN_INFO_ROW, RENEWED, Extra
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.control_block import A_CALL, A_ROUND, BUSY_NS, DOING, NOTHING, SENDING
from vecenv.backends.ipc.messages import Channel, Frame, WorkerChannel
from vecenv.backends.ipc.serialization import dumps, loads_by_value
from vecenv.backends.memory.infos import InfoWriter
from vecenv.backends.memory.layout import Layout
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
