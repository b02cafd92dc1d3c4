"""Status bytes in shared memory are written once per round, and read only after the worker's announcement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vecenv import ShmemVectorEnv
from vecenv.backends.ipc import opcodes
from vecenv.backends.shmem import ShmemServer
from vecenv.testing import CountingEnv


class NotedStatus:
    """Status bytes that record each write. A slice would be one copy, which the C library may make of overlapping
    stores.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def __setitem__(self, where: int, value: int) -> None:
        assert isinstance(where, int), "several status bytes written at once"
        self.seen.append((where, value))


def test_a_worker_writes_every_answer_once() -> None:
    server: Any = object.__new__(ShmemServer)
    server._status = NotedStatus()
    server._parent_wakeup = SimpleNamespace(wake=lambda: None)
    server._answer(range(4), {})
    assert server._status.seen == [(j, opcodes.DONE) for j in range(4)]


def test_a_message_is_no_reason_to_look_at_status_bytes() -> None:
    """The parent may be writing the status bytes of the next round at this moment."""
    with ShmemVectorEnv([CountingEnv] * 2, num_workers=1) as venv:
        venv.reset()
        venv.engine.arena.status[0] = opcodes.STEP
        for _ in range(2):  # the worker answers the second message after all work for the first message
            venv.get_env_attr("calls", id=[1])
        assert venv.engine.arena.status[0] == opcodes.STEP
        venv.engine.arena.status[0] = opcodes.IDLE
        assert venv.get_env_attr("calls") == [1, 1]
