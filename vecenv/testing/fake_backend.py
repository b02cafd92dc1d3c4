"""`FakeBackend`: runs envs in a fixed order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vecenv.backends.dummy import DummyBackend
from vecenv.backends.memory.arena import Arena
from vecenv.layout import Layout


class FakeBackend(DummyBackend):
    """Backend that runs envs in this process, in the order of ids, only while the vector env waits.

    This makes tests of `wait_num` reproducible. A `timeout` still depends on the clock.

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
