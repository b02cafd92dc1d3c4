"""`DummyBackend`: steps envs in the caller's thread, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from vecenv.backends.backend import Answers, Backend, EnvCall, Taken, WorkerInfo
from vecenv.backends.host.env_access import copy_data, copy_if_possible
from vecenv.backends.host.env_checks import check_distinct
from vecenv.backends.host.env_host import EnvHost, EnvReport
from vecenv.backends.host.failure import Failure
from vecenv.backends.host.own_process import hint_at_own_process, warn_of_shared_process
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.layout import Layout


class DummyBackend(Backend):
    num_workers = 1
    autoresets = hosts_here = True
    _busy_seconds = 0.0
    _host: EnvHost | None = None

    @property
    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(range(len(self.envs)), None, self._busy_seconds)]

    @property
    def envs(self) -> list[Any]:
        """Envs, with their wrappers."""
        return [] if self._host is None else self._host.envs

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        host = self._host = EnvHost(env_fns, 0, local=True, interruptible=True)
        reports = host.construct()
        if isinstance(reports, Failure):
            error = reports.exception()
            if host.envs:
                hint_at_own_process(error, len(env_fns), in_workers=False)
            raise error
        check_distinct(host.envs)
        warn_of_shared_process(host.envs)
        return reports

    def bind(self, layout: Layout) -> Arena:
        assert self._host is not None
        self.arena = Arena.build(layout, len(self.envs))
        self._host.bind(layout, self.arena)
        self._answers = Answers(self.arena)
        return self.arena

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        assert self._host is not None
        begin = perf_counter()
        rows, status = ... if ids is None else ids, self.arena.status
        asked = status if ids is None else np.zeros_like(status)
        asked[rows] = ops
        status[rows] = ops  # so that a call from another thread finds these envs busy
        extras = self._host.run(asked.tobytes(), self.arena.action, lambda i, op: payloads[i])
        if extras:
            self._answers.extras.update(extras)
        status[rows] = opcodes.DONE
        self._busy_seconds += perf_counter() - begin

    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        return 0.0

    def take(self, ids: Sequence[int] | None) -> Taken:
        return self._answers.take(ids)

    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> EnvCall:
        assert self._host is not None
        if not self.copies:
            return EnvCall(ids, op, [self._host.call(i, op, a) for i, a in zip(ids, args, strict=True)])
        return EnvCall(
            ids, op, [copy_data(self._host.call(i, op, copy_if_possible(a))) for i, a in zip(ids, args, strict=True)]
        )

    def resynchronise(self, deadline: float) -> None:
        self.take(None)

    def close(self, timeout: float) -> list[str]:
        return [] if self._host is None else self._host.close()
