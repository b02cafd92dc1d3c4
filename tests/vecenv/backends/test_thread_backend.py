"""Behaviour of ThreadVectorEnv alone. The contract suite tests the behaviour of all backends."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.backends import FULL
from tests.support.faulty import Counter, counters
from tests.support.ledger import wait_until
from tests.support.programs import output_of
from vecenv import DummyVectorEnv, ThreadVectorEnv, WorkerTimeoutError
from vecenv.backends import free_threading

LIMIT = 0.3
TIMEOUT = 20.0
"""Seconds after which a test has failed."""


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Gate that blocks envs until it is opened, at the latest at the end of the test."""
    gate = threading.Event()
    yield gate
    gate.set()
    wait_until(lambda: block_threads() == [], TIMEOUT)


def block_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("vecenv-block-")]


class BlocksAtGate(Counter):
    """Env that blocks at the gate in step 2. A replacement with the same id does not block."""

    def __init__(self, id: int, gate: threading.Event, notes: list[Any]) -> None:
        super().__init__(id)
        self.gate, self.notes = gate, notes
        self.first = ("made", id) not in notes
        notes.append(("made", id))

    def on_step(self) -> None:
        if self.first and self.t == 2:
            assert self.gate.wait(TIMEOUT)
        self.notes.append(("stepped", self.id, self.first, self.t))

    def close(self) -> None:
        self.notes.append(("closed", self.id, self.first))


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"wait_num": 1}])
def test_an_env_is_made_used_and_closed_in_one_thread(options: dict[str, Any]) -> None:
    used: dict[int, list[tuple[str, threading.Thread]]] = {i: [] for i in range(3)}

    class Notes(Counter):
        def __init__(self, id: int) -> None:
            super().__init__(id)
            self.note("init")

        def note(self, what: str) -> None:
            used[self.id].append((what, threading.current_thread()))

        def on_reset(self) -> None:
            self.note("reset")

        def on_step(self) -> None:
            self.note("step")

        def close(self) -> None:
            self.note("close")

    with ThreadVectorEnv([partial(Notes, i) for i in range(3)], **options) as venv:
        venv.reset()
        venv.send([0] * 3)
        while venv.waiting_id:
            venv.recv()
        venv.call("note", "call")
        assert all(thread.daemon for thread in block_threads())
        assert len(block_threads()) == venv.num_workers == (2 if "num_workers" in options else 3)
    for own in used.values():
        assert {what for what, _ in own} == {"init", "reset", "step", "call", "close"}
        assert len({thread for _, thread in own}) == 1
    threads = {own[0][1] for own in used.values()}
    assert len(threads) == venv.num_workers
    assert threading.current_thread() not in threads


@pytest.mark.guarantee("G8.6", "G9.3")
def test_a_hung_env_is_abandoned_and_close_does_not_wait_for_it(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vecenv.engine.lifetime.CLOSE_TIMEOUT", 2 * TIMEOUT)
    fns = counters(4, env1=partial(BlocksAtGate, gate=gate, notes=[]))
    with ThreadVectorEnv(fns, num_workers=2, step_timeout=LIMIT) as venv:
        venv.reset()
        venv.step([0] * 4)
        with pytest.raises(WorkerTimeoutError, match=r"(?s)threads cannot be killed.*vecenv-block-0.*in on_step"):
            venv.step([0] * 4)
        with pytest.raises(WorkerTimeoutError, match="env 0 is lost because env 1 has been busy") as bystander:
            venv.step([0], [0])
        assert bystander.value.bystander
        venv.reset([0, 1])
        assert venv.step([0] * 4)[0][:, 2].tolist() == [1, 1, 3, 3]
        assert len(block_threads()) == 3  # including the abandoned thread
        begin = time.monotonic()
    assert time.monotonic() - begin < TIMEOUT


def test_a_step_that_returns_after_its_env_was_reset_is_discarded(gate: threading.Event) -> None:
    """The abandoned thread steps no other env. It closes its envs and ends."""
    notes: list[Any] = []
    fns = [partial(BlocksAtGate, i, gate, notes) for i in range(2)]
    with ThreadVectorEnv(fns, num_workers=1, step_timeout=LIMIT, copy=False) as venv:
        venv.reset()
        venv.step([5, 5])
        with pytest.raises(WorkerTimeoutError):
            venv.step([6, 6])
        old = block_threads()[0]
        venv.reset()
        for _ in range(3):
            row = venv.step([7, 7])
        kept = [np.copy(leaf) for leaf in row[:4]]
        gate.set()
        old.join(TIMEOUT)
        assert not old.is_alive()
        assert ("stepped", 0, True, 2) in notes  # the old step has returned
        assert ("stepped", 1, True, 2) not in notes
        assert notes[-2:] == [("closed", 0, True), ("closed", 1, True)]
        assert all(np.array_equal(leaf, then) for leaf, then in zip(row[:4], kept, strict=True))
        assert row[0].tolist() == [[0, 1, 3, 7], [1, 1, 3, 7]]
        assert venv.step([8, 8])[0].tolist() == [[0, 1, 4, 8], [1, 1, 4, 8]]


class Draws(Counter):
    """Env whose constructor draws from np.random, as in metaworld 3.1.1 and gym-quadruped 1.1.8."""

    def __init__(self, id: int, made: list[tuple[str, int]]) -> None:
        super().__init__(id)
        made.append(("begin", id))
        self.drawn = [np.random.random()]
        time.sleep(0.001)  # lets another thread run
        self.drawn.append(np.random.random())
        made.append(("end", id))


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"wait_num": 1}])
def test_envs_are_made_one_after_the_other(options: dict[str, Any]) -> None:
    def start(backend: Any, **options: Any) -> tuple[list[Any], Any]:
        made: list[tuple[str, int]] = []
        np.random.seed(1)
        with backend([partial(Draws, i, made) for i in range(4)], **options) as venv:
            return made, venv.get_env_attr("drawn")

    made, drawn = start(ThreadVectorEnv, **options)
    assert made == [(what, i) for i in range(4) for what in ("begin", "end")]
    assert drawn == start(DummyVectorEnv)[1]


def test_if_a_constructor_fails_no_further_env_is_made_and_the_others_are_closed() -> None:
    made, closed = list[int](), list[int]()

    class Closes(Counter):
        def close(self) -> None:
            closed.append(self.id)

    def make(id: int) -> Any:
        made.append(id)
        return Closes(id) if id < 2 else 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        ThreadVectorEnv([partial(make, i) for i in range(4)], num_workers=4)
    assert "make" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert made == [0, 1, 2]
    assert sorted(closed) == [0, 1]
    assert block_threads() == []


@pytest.mark.parametrize("fails", [True, False], ids=["raises", "hangs"])
def test_a_constructor_that_fails_in_a_restart_blocks_no_later_one(gate: threading.Event, fails: bool) -> None:
    made: list[int] = []

    def make() -> Any:
        made.append(1)
        if len(made) == 2:
            if fails:
                raise ConnectionError("server is down")
            gate.wait(TIMEOUT)
        return BlocksAtGate(0, gate, notes)

    notes: list[Any] = []
    with ThreadVectorEnv([make, partial(Counter, 1)], step_timeout=LIMIT, start_timeout=1.0, num_workers=2) as venv:
        venv.reset()
        venv.step([0, 0])
        with pytest.raises(WorkerTimeoutError):
            venv.step([0, 0])
        with pytest.raises(ConnectionError if fails else WorkerTimeoutError) as raised:
            venv.reset()
        if fails:
            assert raised.value.__notes__ == ["env 0, __init__()"]  # without advice: the start has succeeded
        assert venv.alive() == [False, True]
        venv.reset()
        assert venv.alive() == [True, True]
        assert len(made) == 3


@pytest.mark.guarantee("G9.8")
@FULL
def test_a_program_ends_though_an_env_hangs() -> None:
    program = """
import threading
from vecenv import ThreadVectorEnv
from vecenv.testing import CountingEnv
class Hangs(CountingEnv):
    def step(self, action): threading.Event().wait()
venv = ThreadVectorEnv([Hangs] * 2, num_workers=2, step_timeout=0.2)
venv.reset()
try:
    venv.step([0, 0])
except TimeoutError:
    print("timed out")
"""
    assert output_of("-c", program) == "timed out\n"


# Free-threaded Python.


def test_one_warning_names_the_module_that_has_turned_the_interpreter_lock_on(monkeypatch: pytest.MonkeyPatch) -> None:
    locks = iter([False, False, False, True, True, True])
    monkeypatch.setattr(free_threading, "has_gil", lambda: next(locks))
    monkeypatch.setattr(free_threading, "gil_modules", [])
    load = free_threading._watched(lambda loader, spec: spec.name)
    for name in ("safe", "unsafe", "later"):
        assert load(None, SimpleNamespace(name=name)) == name
    with pytest.warns(RuntimeWarning, match="importing 'unsafe' has turned the interpreter lock on") as warned:
        ThreadVectorEnv(counters(2)).close()
    ThreadVectorEnv(counters(2)).close()
    assert [warning.filename for warning in warned] == [__file__]


def test_the_stack_of_a_thread_that_waits_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the interpreter lock, the thread writes its stack in a signal handler. This also works with the lock."""
    monkeypatch.setattr(free_threading, "has_gil", lambda: False)
    inside, end = threading.Event(), threading.Event()

    def waits_inside() -> None:
        inside.set()
        end.wait(TIMEOUT)

    thread = threading.Thread(target=waits_inside)
    thread.start()
    assert inside.wait(TIMEOUT)
    stacks = [free_threading.stack_of_thread(thread.ident or 0) for _ in range(2)]
    end.set()
    thread.join()
    for stack in stacks:
        assert "in waits_inside" in stack
        assert "in test_the_stack" not in stack
