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
from vecenv.backends.shmem import ShmemBackend, ShmemServer
from vecenv.backends.subproc import SubprocBackend, SubprocServer
from vecenv.layout import Layout


class RayServer(ShmemServer):
    """Server in actors on the driver's node. `remote`: server in actors on other nodes."""

    remote = SubprocServer


class RayBackend(ShmemBackend, SubprocBackend):
    pool_type = RayPool
    server = RayServer

    def _build(self, layout: Layout) -> Arena:
        arena = super()._build(layout)
        self._use(arena)
        self._is_remote, self._any_remote = np.zeros(self._n, bool), False
        return arena

    def _serve(self, worker: WorkerHandle) -> None:
        super()._serve(worker)
        self._is_remote[list(worker.hosted)] = not worker.on_this_node
        self._any_remote = bool(self._is_remote.any())
        if not worker.on_this_node:
            assert isinstance(worker, RayWorker)
            worker.expect(self._blocks[worker.index].size)

    def _send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        if not self._any_remote:
            ShmemBackend._send(self, ids, ops, payloads)
            return
        ids = self._all_ids if ids is None else np.asarray(ids)
        all_ops = np.broadcast_to(ops, len(ids))
        remote = self._is_remote[ids]
        places = np.flatnonzero(remote)
        parts = [places] if len(places) else []
        if self._eager:  # a call per env, ordered by id, because the answers of a call arrive together
            parts = list(places[np.argsort(ids[places])].reshape(-1, 1))
        for part in parts:
            SubprocBackend._send(self, ids[part], all_ops[part], payloads)
        if not remote.all():
            near = {i: payload for i, payload in payloads.items() if not self._is_remote[i]}
            ShmemBackend._send(self, ids[~remote], all_ops[~remote], near)

    def _spin(self, done: Callable[[], bool]) -> bool:
        return False if self._any_remote else super()._spin(done)

    def _take_rows(self, worker: WorkerHandle, payload: bytes | bytearray) -> bytes | bytearray | memoryview:
        return payload if worker.on_this_node else super()._take_rows(worker, payload)

    def _unanswered(self) -> dict[WorkerHandle, Sequence[int]]:
        """Return workers that owe answers. Without `step_timeout`, skip remote actors, which report no progress."""
        unanswered = super()._unanswered()
        return {worker: ids for worker, ids in unanswered.items() if worker.on_this_node or self.pool.step_timeout}
