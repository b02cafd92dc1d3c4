"""DummyBackend: all envs in this process, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.backends.base import Backend
from vecenv.backends.host.copies import own_copies, own_copy, plain_copy
from vecenv.backends.host.env_host import EnvHost, EnvReport
from vecenv.backends.host.failure import Failure
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.layout import Layout


class DummyBackend(Backend):
    """Calls the host; a round is done when `send` returns."""

    autoresets = True

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int, eager: bool) -> list[EnvReport]:
        self.num_workers = 1
        self._busy = 0.0
        self.raise_shield()
        self._host = EnvHost(env_fns, 0, local=True)
        reports = self._host.construct()
        if isinstance(reports, Failure):
            self._host.close()
            raise reports.exception()
        _refuse_shared(self._host)
        return reports

    def bind(self, layout: Layout) -> Arena:
        self.arena = Arena.build(layout, len(self._host.envs))
        self._host.bind(layout, self.arena)
        return self.arena

    def encode(self, payloads: Mapping[int, Any]) -> dict[int, Any]:
        return own_copies(payloads)

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        begin = time.perf_counter()
        host, rows, status = self._host, ... if ids is None else ids, self.arena.status
        mask = np.zeros(len(status), dtype=np.uint8)
        mask[rows] = ops
        asked, extras = bytearray(mask), self._extras
        status[rows] = ops  # a call from another thread is told that they are stepping
        while True:
            before = host.progress[0]
            try:
                host.run(bytes(asked), self.arena.action, lambda i, op: payloads[i], extras)
                break
            except BaseException as error:  # between two envs: the round goes on, and ends with it
                begun = host.begun(before)
                if not begun and not isinstance(error, KeyboardInterrupt):
                    status[rows] = opcodes.IDLE
                    raise
                host.interrupt = error
                asked[:begun] = bytes(begun)
        status[rows] = opcodes.DONE
        self._busy += time.perf_counter() - begin
        self._raise_interrupt()

    def _raise_interrupt(self) -> None:
        """A Ctrl-C in the middle of a round: it was ended first, so that nothing is lost and `recv` returns it."""
        if self._host.interrupt is not None:
            interrupt, self._host.interrupt = self._host.interrupt, None
            raise interrupt

    def wait(self, done: Callable[[], bool], deadline: float | None) -> None:
        pass

    def ask(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> list[Any | Failure]:
        values = [plain_copy(self._host.call(i, op, own_copy(a))) for i, a in zip(ids, args, strict=True)]
        self._raise_interrupt()
        return values

    def busy_time(self) -> list[float]:
        return [self._busy]

    def close(self, timeout: float) -> list[str]:
        problems = self._host.close()
        self.lower_shield()
        self._raise_interrupt()
        return problems


def _refuse_shared(host: EnvHost) -> None:
    """One env object behind two ids would be stepped twice a round: a common slip (`lambda: env`)."""
    seen: dict[int, int] = {}
    for i, env in enumerate(host.envs):
        first = seen.setdefault(id(getattr(env, "unwrapped", env)), i)
        if first != i:
            host.close()
            raise ValueError(
                f"env_fns[{first}] and env_fns[{i}] returned the same env object; each must make a new one: "
                "lambda: gym.make(...), not lambda: env"
            )
