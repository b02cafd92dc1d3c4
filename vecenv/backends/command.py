"""`CommandBackend`: steps envs in workers that a command starts: another interpreter, a container, another host.

The rounds are those of `SubprocBackend`. This module checks what the workers send, because nothing of a worker is
trusted more than its numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import Failure
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.messages import Frame
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.infos import INFO_BYTES, MOST_SCHEMAS, InfoSchema
from vecenv.backends.memory.shared_memory import DOING, NOTHING, PROGRESS, SENDING
from vecenv.backends.pool.command_worker import CommandPool, CommandWorker
from vecenv.backends.pool.worker_handle import WorkerHandle, hung
from vecenv.backends.subproc import SIZE, SubprocBackend
from vecenv.backends.worker.plain_code import check_sendable, own_name
from vecenv.errors import warn_caller
from vecenv.layout import Layout, ObjectLeaf

ANSWERED = {opcodes.DONE, opcodes.DONE_EXTRA, opcodes.DONE_FINAL, opcodes.DONE_EXTRA_FINAL, opcodes.DONE_INFO}

IN_ROWS = bytes([opcodes.IDLE, opcodes.DONE, opcodes.DONE_FINAL])
NOT_BUSY = bytes([opcodes.IDLE, *range(opcodes.DONE, 256)])


class CommandBackend(SubprocBackend):
    pool_type = CommandPool

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._schemas = defaultdict[WorkerHandle, set[int]](set)

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        reports = super().start(env_fns, num_workers, eager)
        if len(reports) != len(env_fns):
            raise ValueError(f"the workers reported {len(reports)} envs, expected {len(env_fns)}")
        here = own_name()
        worker = self.pool.workers[0]
        assert isinstance(worker, CommandWorker)
        there = str(worker.channel.hello.get("worker"))
        if there != here and there.startswith("vecenv "):
            warn_caller(f"the workers of {worker.where} have {there}, this program has {here}")
        return reports

    def bind(self, layout: Layout) -> Arena:
        self._objects = sum(isinstance(leaf, ObjectLeaf) for leaf in nest.leaves(layout.obs))
        return super().bind(layout)

    def _use(self, arena: Arena) -> None:
        super()._use(arena)
        self._row = sum(size for _, size in self._outputs)
        self._final = sum(size for _, size in self._finals)

    def _take_rows(self, worker: WorkerHandle, payload: bytes | bytearray) -> bytes | bytearray | memoryview:
        """Check and copy rows. Raises ValueError, before any change, unless the rows fit what was asked."""
        k, status = len(worker.ids), self.arena.status[worker.start : worker.stop]
        answered = bytes(payload[:k])
        for byte, op in set(zip(answered, status.tobytes(), strict=True)):
            is_right = byte in ANSWERED and opcodes.IDLE < op < opcodes.DONE
            if byte and not (is_right and (not byte & opcodes.FINAL or op & opcodes.AUTORESET)):
                raise ValueError(f"an answer with the status {byte} for the operation {op}")
        rows, ended = k - answered.count(0), sum(bool(byte & opcodes.FINAL) for byte in answered)
        informed = sum(bool(byte & opcodes.INFO) for byte in answered)
        end = k + rows * self._row + ended * self._final
        if informed and len(payload) >= end + SIZE.size:
            size = SIZE.unpack_from(payload, end)[0]
            if size > INFO_BYTES:
                raise ValueError(f"an info row of {size} bytes")
            end += SIZE.size + informed * size
        if len(payload) < end:
            raise ValueError(f"an answer of {len(payload)} bytes, expected {end}")
        self._check_bools(payload, k, rows)
        rest = super()._take_rows(worker, payload)
        if not status.tobytes().translate(None, NOT_BUSY):
            worker.line[DOING] = NOTHING
        return rest

    def _check_bools(self, payload: bytes | bytearray, start: int, rows: int) -> None:
        for array, size in self._outputs:
            end = start + rows * size
            if array.dtype == np.bool_ and bytes(payload[start:end]).translate(None, b"\0\1"):
                raise ValueError("a flag that is neither 0 nor 1")
            start = end

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        for i, payload in payloads.items():
            try:
                check_sendable(payload)
            except TypeError as error:
                raise TypeError(f"the action or argument for env {i} cannot be sent to its worker: {error}") from error
        return payloads

    def on_frame(self, worker: WorkerHandle, frame: Frame) -> None:
        if frame.kind == messages.ENDED:
            self._note_progress(worker, self._code.loads(frame.payload))
            return
        if worker not in self._unsynced:
            if frame.kind == messages.REPLY:
                self._check_reply(worker, frame)
            elif frame.kind == messages.INFO_SCHEMA:
                frame = self._checked_schema(worker, frame)
        if frame.kind in (messages.ANSWERS, messages.REPLY):
            worker.line[PROGRESS] += len(worker.ids)  # which keeps the index of the env
        super().on_frame(worker, frame)
        if frame.kind == messages.ANSWERS and worker not in self._unsynced:
            self._check_rest(worker, frame.payload[: len(worker.ids)])

    def _check_rest(self, worker: WorkerHandle, answered: bytes | bytearray) -> None:
        """Raise ValueError if the values that came with rows are wrong. Then their envs fail with the worker."""
        if not answered.translate(None, IN_ROWS):
            return
        extras, numbers = self._answers.extras, self.arena.info[worker.start : worker.stop, 0].tobytes()
        if wrong := [extras.pop(i) for i in worker.ids if i in extras and not self._is_right(extras[i])]:
            raise ValueError(f"a result of the wrong types: {wrong[0]!r}"[:400])
        for i, byte, number in zip(worker.ids, answered, numbers, strict=True):
            if byte & opcodes.INFO and number not in self._schemas[worker]:
                raise ValueError(f"an info of env {i} with the layout {number}, which was not sent")
            if byte & opcodes.EXTRA and i not in extras:
                raise ValueError(f"an answer of env {i} without the values that its status announces")

    def on_loss(self, worker: WorkerHandle) -> None:
        super().on_loss(worker)
        self._schemas.pop(worker, None)

    def _checked_schema(self, worker: WorkerHandle, frame: Frame) -> Frame:
        keys, kinds = self._code.loads(frame.payload)
        found = tuple(keys), tuple(kind if isinstance(kind, type) else (kind[0], tuple(kind[1])) for kind in kinds)
        if frame.number >= MOST_SCHEMAS or InfoSchema(*found).size > INFO_BYTES:
            raise ValueError(f"the layout {frame.number} of infos {keys!r}")
        self._schemas[worker].add(frame.number)
        return frame._replace(payload=self._code.dumps(found))

    def _note_progress(self, worker: WorkerHandle, ended: dict[str, Any]) -> None:
        doing, progress, stack = int(ended["doing"]), int(ended["progress"]), ended["stack"]
        if NOTHING <= doing <= SENDING and 0 <= progress < 1 << 62:
            worker.line[DOING], worker.line[PROGRESS] = doing, progress
            if stack is not None and (limit := self.pool.step_timeout):
                suspect = worker.start + progress % len(worker.ids)
                worker.reason = hung(worker.ending, [suspect], limit, str(stack))

    def _check_reply(self, worker: WorkerHandle, frame: Frame) -> None:
        asked = self._requests.get(frame.number)
        found = self._code.loads(frame.payload)
        if asked is not None and found.keys() != {i - worker.start for i in asked[1].ids if i in worker.ids}:
            raise ValueError(f"a reply for the envs {list(found)}")

    def _is_right(self, extra: Extra) -> bool:
        final = extra.final
        infos = [extra.info] if final is None else [extra.info, final.info]
        objects = [extra.objects] if final is None else [extra.objects, final.objects]
        return (
            all(info is None or isinstance(info, dict) for info in infos)
            and all(each is None or (isinstance(each, list) and len(each) == self._objects) for each in objects)
            and (extra.failure is None or isinstance(extra.failure, Failure))
            and (extra.reward is None or isinstance(extra.reward, np.ndarray))
        )
