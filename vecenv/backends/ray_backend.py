"""`RayBackend`: steps envs in Ray actors, through shared memory on the driver's node and calls elsewhere.

driver --+-- shared memory (as ShmemBackend)     actors on the driver's node: a step does not call Ray
         |
         '-- messages (as SubprocBackend)        actors on other nodes: a step is a call per actor
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.backends.memory.arena import Arena
from vecenv.backends.pool.ray_worker import RayPool, RayWorker
from vecenv.backends.pool.worker_handle import WorkerHandle
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.backends.process import ProcessBackend
from vecenv.backends.recycling import Rule
from vecenv.backends.shmem import ShmemServer, ShmemTransport
from vecenv.backends.subproc import SubprocServer, SubprocTransport
from vecenv.layout import Layout


class RayServer(ShmemServer):
    """Server in actors on the driver's node. `remote`: server in actors on other nodes."""

    remote = SubprocServer


class RayTransport(ShmemTransport):
    server = RayServer

    def open(self, pool: WorkerPool, n: int) -> None:
        super().open(pool, n)
        self._frames = SubprocTransport()
        self._frames.open(pool, n)
        self._is_remote = np.zeros(n, bool)
        self._any_remote = False

    def bind(self, layout: Layout, n: int) -> Arena:
        arena = super().bind(layout, n)
        self._frames.use(arena)
        return arena

    def serves(self, worker: WorkerHandle) -> None:
        self._is_remote[list(worker.hosted)] = not worker.on_this_node
        self._any_remote = bool(self._is_remote.any())
        self._frames.serves(worker)
        if not worker.on_this_node:
            assert isinstance(worker, RayWorker)
            worker.expect(self._frames.answer_bytes(worker))

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        if not self._any_remote:
            super().send(ids, ops, payloads)
            return
        ids = self._all_ids if ids is None else np.asarray(ids)
        all_ops = np.broadcast_to(ops, len(ids))
        remote = self._is_remote[ids]
        places = np.flatnonzero(remote)
        parts = [places] if len(places) else []
        if self._pool.eager:  # a call per env, ordered by id, because the answers of a call arrive together
            parts = list(places[np.argsort(ids[places])].reshape(-1, 1))
        for part in parts:
            self._frames.send(ids[part], all_ops[part], payloads)
        if not remote.all():
            near = {i: payload for i, payload in payloads.items() if not self._is_remote[i]}
            super().send(ids[~remote], all_ops[~remote], near)

    def spin(self, done: Callable[[], bool], last_wait: float) -> bool:
        return False if self._any_remote else super().spin(done, last_wait)

    def take_rows(self, worker: WorkerHandle, payload: bytes | bytearray) -> bytes | bytearray | memoryview:
        return payload if worker.on_this_node else self._frames.take_rows(worker, payload)


class RayBackend(ProcessBackend):
    def __init__(
        self,
        start_timeout: float,
        step_timeout: float | None,
        release_openmp: bool = True,
        rule: Rule | None = None,
        spare_envs: int = 0,
        **options: Any,
    ) -> None:
        self._is_limited = step_timeout is not None
        pool = RayPool(start_timeout, step_timeout, **options)
        super().__init__(RayTransport(), pool, step_timeout, release_openmp, rule, spare_envs)

    def _unanswered(self) -> dict[WorkerHandle, Sequence[int]]:
        """Return workers that owe answers. Without `step_timeout`, skip remote actors, which report no progress."""
        unanswered = super()._unanswered()
        return {worker: ids for worker, ids in unanswered.items() if worker.on_this_node or self._is_limited}
