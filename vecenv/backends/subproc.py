"""SubprocBackend: worker processes that exchange arrays through their channel, one message per worker and round.

`vecenv.backends.worker.round_server` has the format of the messages, and the worker's side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.waiting import SpinWait
from vecenv.backends.memory.arena import Arena, Layout
from vecenv.backends.pool.process_worker import ProcessLauncher
from vecenv.backends.pool.worker_handle import WorkerHandle
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.backends.process import ProcessBackend
from vecenv.backends.transport import Transport
from vecenv.backends.worker.round_server import SIZE, SubprocServer, as_rows

SPINS = 50
"""How often the parent looks for answers, with a sched_yield in between, before it sleeps."""


class _Block(NamedTuple):
    """The memory of a worker's block in the parent's arena."""

    rows: slice
    status: memoryview
    actions: list[memoryview]
    outputs: list[tuple[memoryview, slice]]
    """Each array, and its slice of an ANSWERS frame in which all envs of the block have answered."""
    size: int
    """Bytes of such a frame without final observations and extras."""


class SubprocTransport(Transport):
    """Sends rounds and answers as ROUND and ANSWERS frames over a socket."""

    server = SubprocServer

    def open(self, pool: WorkerPool, n: int) -> None:
        super().open(pool, n)
        self._looking = SpinWait(SPINS)

    def bind(self, layout: Layout, n: int) -> Arena:
        arena = Arena.build(layout, n)
        self.use(arena)
        return arena

    def use(self, arena: Arena) -> None:
        """Take the rows of rounds from this arena, and write answers into it."""
        self._arena = arena
        self._outputs = [(array, array[0].nbytes) for array in arena.outputs()]
        self._finals = [(array, array[0].nbytes) for array in arena.finals()]
        self._blocks = [self._block(slice(worker.start, worker.stop)) for worker in self._pool.workers]

    def _block(self, rows: slice) -> _Block:
        end = rows.stop - rows.start
        outputs = []
        for array, size in self._outputs:
            if size:
                view = _bytes_of(array[rows])
                start, end = end, end + len(view)
                outputs.append((view, slice(start, end)))
        actions = [_bytes_of(array[rows]) for array in self._arena.actions()]
        return _Block(rows, self._arena.status[rows].data, actions, outputs, end)

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        status, pool = self._arena.status, self._pool
        asked = np.zeros(len(status), dtype=np.uint8)
        asked[... if ids is None else ids] = ops
        all_ops = asked.tobytes()
        for worker, block in zip(pool.workers, self._blocks, strict=True):
            mine = all_ops[block.rows]
            if ids is not None and not any(mine):
                continue
            if worker.alive:
                rest = worker.pickle_own(payloads) if payloads else b""
                pool.post(worker, messages.ROUND, 0, mine, *block.actions, rest)
            if ids is None:
                block.status[:] = mine
            else:
                np.copyto(status[block.rows], asked[block.rows], where=asked[block.rows] > 0)

    def spin(self, done: Callable[[], bool], last_wait: float) -> bool:
        pool = self._pool

        def have_answered() -> bool:
            if events := pool.events(None):
                pool.handle(events)
            return done()

        return self._looking.until(have_answered)

    def take_rows(self, worker: WorkerHandle, payload: bytes) -> bytes | memoryview:
        view, block = memoryview(payload), self._blocks[worker.index]
        answered = payload[: len(worker.ids)]
        if opcodes.IDLE not in answered:
            for target, part in block.outputs:
                target[:] = view[part]
            rest = view[block.size :]
            if len(rest):
                rest = self._take_infos(worker, answered, self._take_finals(worker, answered, rest))
            block.status[:] = answered
            return rest
        ids = [worker.start + j for j, byte in enumerate(answered) if byte]
        rest = self._take_arrays(self._outputs, ids, view[len(answered) :])
        rest = self._take_infos(worker, answered, self._take_finals(worker, answered, rest))
        for i in ids:
            self._arena.status[i] = answered[i - worker.start]
        return rest

    def _take_finals(self, worker: WorkerHandle, answered: bytes, payload: memoryview) -> memoryview:
        """Copy the last observations of episodes into the arena; returns the rest of the payload."""
        ids = [worker.start + j for j, byte in enumerate(answered) if byte & opcodes.FINAL]
        return self._take_arrays(self._finals, ids, payload) if ids else payload

    def _take_infos(self, worker: WorkerHandle, answered: bytes, payload: memoryview) -> memoryview:
        """Copy info rows into the arena; returns the rest of the payload."""
        ids = [worker.start + j for j, byte in enumerate(answered) if byte & opcodes.INFO]
        if not ids:
            return payload
        (size,) = SIZE.unpack_from(payload)
        return self._take_arrays([(self._arena.info[:, :size], size)], ids, payload[SIZE.size :])

    def _take_arrays(self, arrays: Sequence[tuple[np.ndarray, int]], ids: list[int], payload: memoryview) -> memoryview:
        """Copy a row of each array for each of these envs into the arena; returns the rest of the payload."""
        end = 0
        for array, size in arrays:
            start, end = end, end + len(ids) * size
            array[ids] = as_rows(payload[start:end], array, len(ids))
        return payload[end:]


class SubprocBackend(ProcessBackend):
    """Workers that share nothing with the parent but a socket."""

    def __init__(self, context: str | None = None, affinity: bool = False, **options: Any) -> None:
        super().__init__(SubprocTransport(), ProcessLauncher(context, affinity), **options)


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array as bytes."""
    return array.reshape(-1).view(np.uint8).data
