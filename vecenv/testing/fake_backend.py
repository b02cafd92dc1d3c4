"""`FakeBackend`: the smallest backend, to test the engine without processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vecenv.backends.dummy import DummyBackend
from vecenv.backends.memory.arena import Arena, Layout


class FakeBackend(DummyBackend):
    """Envs in this process that run only during a wait, lowest id first, so that `wait_num` and `timeout` are
    reproducible.

    >>> from vecenv import BaseVectorEnv
    >>> from vecenv.testing import CountingEnv, FakeBackend
    >>> with BaseVectorEnv([CountingEnv] * 3, wait_num=2, backend=FakeBackend()) as venv:
    ...     obs, info = venv.reset()
    ...     [one["env_id"] for one in venv.step([0, 0, 0])[4]]
    [0, 1]
    """

    def bind(self, layout: Layout) -> Arena:
        self._payloads: dict[int, Any] = {}
        return super().bind(layout)

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        self.arena.status[... if ids is None else ids] = ops
        self._payloads.update(payloads)

    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        begin = time.perf_counter()
        while done is not None and not done() and (deadline is None or time.monotonic() < deadline):
            i = next(i for i in range(len(self.envs)) if self._answers.busy(i))
            super().send(np.array([i]), int(self.arena.status[i]), self._payloads)
        return time.perf_counter() - begin
