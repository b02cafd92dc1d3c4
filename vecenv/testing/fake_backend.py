"""FakeBackend: the seam between engine and envs in its smallest form, to test without processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.backends.backend import Answered, Answers, Backend, Taken
from vecenv.backends.host.env_access import own_copy, plain_copy
from vecenv.backends.host.env_host import EnvHost, EnvReport
from vecenv.backends.host.failure import Failure
from vecenv.backends.ipc.opcodes import DONE
from vecenv.backends.memory.arena import Arena, Layout


class FakeBackend(Backend):
    """Envs in this process that run only while they are waited for, one after the other, in the order of their ids.

    So `wait_num` and `timeout` behave the same in every run: of what is in flight, the lowest ids finish first.

    >>> from vecenv import BaseVectorEnv
    >>> from vecenv.testing import CountingEnv, FakeBackend
    >>> with BaseVectorEnv([CountingEnv] * 3, wait_num=2, backend=FakeBackend()) as venv:
    ...     obs, info = venv.reset()
    ...     [one["env_id"] for one in venv.step([0, 0, 0])[4]]
    [0, 1]
    """

    num_workers = 1
    autoresets = True

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        self._host = EnvHost(env_fns, 0, local=True)
        reports = self._host.construct()
        if isinstance(reports, Failure):
            raise reports.exception()
        return reports

    def bind(self, layout: Layout) -> Arena:
        self.arena = Arena.build(layout, len(self._host.envs))
        self._host.bind(layout, self.arena)
        self._answers = Answers(self.arena)
        self._payloads: dict[int, Any] = {}
        return self.arena

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        self.arena.status[... if ids is None else ids] = ops
        self._payloads.update(payloads)

    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        begin = time.perf_counter()
        while done is not None and not done() and (deadline is None or time.monotonic() < deadline):
            i = next(i for i in range(len(self._host.envs)) if self._answers.busy(i))
            asked = np.zeros_like(self.arena.status)
            asked[i] = self.arena.status[i]
            extras = self._host.run(asked.tobytes(), self.arena.action, lambda i, op: self._payloads[i])
            self._answers.extras.update(extras)
            self.arena.status[i] = DONE
        return time.perf_counter() - begin

    def take(self, ids: Sequence[int] | None) -> Taken:
        return self._answers.take(ids)

    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> Answered:
        return Answered([plain_copy(self._host.call(i, op, own_copy(a))) for i, a in zip(ids, args, strict=True)])

    def close(self, timeout: float) -> list[str]:
        return self._host.close()
