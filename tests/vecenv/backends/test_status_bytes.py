"""Races on status bytes in shared memory that a program meets too seldom to test."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

from vecenv import ShmemVectorEnv
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.memory.shared_memory import FRAMES, LINE
from vecenv.backends.shmem import ShmemServer
from vecenv.testing import CountingEnv


class NotedStatus:
    """Status bytes that record each write. A slice would be one copy, which may store a byte twice."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def __setitem__(self, where: int, value: int) -> None:
        assert isinstance(where, int), "several status bytes written at once"
        self.seen.append((where, value))


def test_a_worker_writes_every_answer_once() -> None:
    """A second write could overwrite the parent's next request."""
    server: Any = object.__new__(ShmemServer)
    server._status, server._parent_wakeup = NotedStatus(), SimpleNamespace(wake=lambda: None)
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


def test_a_round_is_done_with_the_payloads_that_were_sent_for_it() -> None:
    """The parent sends the round between two looks of the worker, which still has a payload of an interrupted call."""

    class Line(list[int]):
        def __getitem__(self, where: Any) -> Any:
            number = super().__getitem__(where)
            if where == FRAMES and number == server._handled == 1:
                self.post(messages.PAYLOADS, {0: b"new"})
                server._status[0] = opcodes.STEP_OBJECT
                server._rounds[0] += 1
            return number

        def post(self, kind: int, payload: Any = None) -> None:
            frames.append(messages.Frame(kind, 0, pickle.dumps(payload)))
            self[FRAMES] = super().__getitem__(FRAMES) + 1

    def one_round(round: Any, *args: Any) -> None:
        done.append(dict(server.payloads))
        server.line.post(messages.CLOSE)

    frames, done = list[Any](), list[Any]()
    server: Any = object.__new__(ShmemServer)
    server.line, server._rounds, server._status = Line([0] * LINE), [0], memoryview(bytearray(1))
    server._handled, server.payloads = 0, {}
    server._full, server._shared = [0], SimpleNamespace(rounds_before=0)
    server.handle = lambda frame: frame.kind == messages.CLOSE
    server.timed = one_round
    server.line.post(messages.PAYLOADS, {0: b"old"})
    server.serve(SimpleNamespace(read=lambda: frames.pop(0)))
    assert done == [{0: b"new"}]
