"""Behaviour of ThreadVectorEnv alone. The contract suite tests the behaviour of all backends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support.backends import FULL
from tests.support.faulty import Counter
from tests.support.ledger import wait_until
from vecenv import DummyVectorEnv, ThreadVectorEnv, WorkerTimeoutError

LIMIT = 0.3
TIMEOUT = 20.0
"""Seconds after which a test has failed."""


class Gate:
    """Gate that blocks envs until it is opened. The envs append to the list `notes`."""

    def __init__(self) -> None:
        self._open, self.entered = threading.Event(), threading.Event()
        self.notes: list[tuple[Any, ...]] = []

    def enter(self) -> None:
        self.entered.set()
        assert self._open.wait(TIMEOUT)

    def open(self) -> None:
        """Let all envs pass from now on."""
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()
    wait_until(lambda: block_threads() == [], TIMEOUT)


def block_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("vecenv-block-")]


class BlocksAtGate(Counter):
    """Env that blocks at the gate in step `at`. A replacement with the same id does not block."""

    def __init__(self, id: int, gate: Gate, at: int = 2) -> None:
        super().__init__(id)
        self.gate, self.at = gate, at
        self.gate.notes.append(("made", id))
        self.first = self.gate.notes.count(("made", id)) == 1

    def on_step(self) -> None:
        if self.first and self.t == self.at:
            self.gate.enter()
        self.gate.notes.append(("stepped", self.id, self.first, self.t))

    def close(self) -> None:
        self.gate.notes.append(("closed", self.id, self.first))


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

        prop = property(lambda self: self.note("get"), lambda self, value: self.note("set"))

    with ThreadVectorEnv([partial(Notes, i) for i in range(3)], **options) as venv:
        venv.reset()
        venv.send([0] * 3)
        while venv.waiting_id:
            venv.recv()
        venv.call("note", "call")
        venv.get_env_attr("prop")
        venv.set_env_attr("prop", 2)
        assert all(thread.daemon for thread in block_threads())
        assert len(block_threads()) == venv.num_workers == (2 if "num_workers" in options else 3)
    for own in used.values():
        assert {what for what, _ in own} == {"init", "reset", "step", "call", "get", "set", "close"}
        assert len({thread for _, thread in own}) == 1
    threads = {own[0][1] for own in used.values()}
    assert len(threads) == venv.num_workers
    assert threading.current_thread() not in threads


def make_hanging(gate: Gate, **options: Any) -> ThreadVectorEnv:
    """Make four envs in two threads. Env 1 blocks at the gate in its second step."""
    fns = [partial(Counter, 0), partial(BlocksAtGate, 1, gate), partial(Counter, 2), partial(Counter, 3)]
    return ThreadVectorEnv(fns, **{"num_workers": 2, "step_timeout": LIMIT, **options})


@pytest.mark.guarantee("G8.6", "G9.3")
def test_a_hung_env_is_abandoned_and_the_others_and_close_go_on(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vecenv.engine.lifetime.CLOSE_TIMEOUT", 2 * TIMEOUT)
    with make_hanging(gate) as venv:
        venv.reset()
        venv.step([0] * 4)
        with pytest.raises(WorkerTimeoutError, match=r"(?s)threads cannot be killed.*vecenv-block-0.*in enter") as hung:
            venv.step([0] * 4)
        assert (hung.value.env_id, hung.value.env_ids, hung.value.pid) == (1, (0, 1), None)
        assert not hung.value.bystander
        assert venv.alive() == [False, False, True, True]
        with pytest.raises(WorkerTimeoutError, match="env 0 is lost because env 1 has been busy") as bystander:
            venv.step([0], [0])
        assert bystander.value.bystander
        assert venv.step([0, 0], [2, 3])[0][:, 2].tolist() == [3, 3]
        obs, _ = venv.reset([0, 1])
        assert obs[:, :3].tolist() == [[0, 1, 0], [1, 1, 0]]
        assert venv.stats()["restarts"] == 1
        assert len(block_threads()) == 3  # including the abandoned thread
        begin = time.monotonic()
    assert time.monotonic() - begin < TIMEOUT  # the vector env does not wait for this thread


def test_a_step_that_returns_after_its_env_was_reset_is_discarded(gate: Gate) -> None:
    """The abandoned thread steps no other env. It closes its envs and ends."""
    fns = [partial(BlocksAtGate, 0, gate), partial(BlocksAtGate, 1, gate, at=99)]
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
        gate.open()
        old.join(TIMEOUT)
        assert not old.is_alive()
        assert ("stepped", 0, True, 2) in gate.notes  # the old step has returned
        assert ("stepped", 1, True, 2) not in gate.notes
        assert gate.notes[-2:] == [("closed", 0, True), ("closed", 1, True)]
        assert all(np.array_equal(leaf, then) for leaf, then in zip(row[:4], kept, strict=True))
        assert row[0].tolist() == [[0, 1, 3, 7], [1, 1, 3, 7]]
        assert venv.step([8, 8])[0].tolist() == [[0, 1, 4, 8], [1, 1, 4, 8]]


class Draws(gymnasium.Env[Any, Any]):
    """Env whose constructor draws from np.random, as in metaworld 3.1.1 and gym-quadruped 1.1.8."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, id: int, made: list[tuple[str, int]]) -> None:
        made.append(("begin", id))
        self.start = np.array([np.random.random(), 0], np.float32)
        time.sleep(0.001)  # lets another thread run
        self.start[1] = np.random.random()
        made.append(("end", id))

    def reset(self, **_: Any) -> Any:
        return self.start, {}


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"wait_num": 1}])
def test_envs_are_made_one_after_the_other(options: dict[str, Any]) -> None:
    def start(backend: Any, **options: Any) -> tuple[list[Any], Any]:
        made: list[tuple[str, int]] = []
        np.random.seed(1)
        with backend([partial(Draws, i, made) for i in range(4)], **options) as venv:
            return made, venv.reset()[0].tolist()

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
def test_a_constructor_that_fails_in_a_restart_blocks_no_later_one(gate: Gate, fails: bool) -> None:
    made: list[int] = []

    def make() -> Any:
        made.append(1)
        if len(made) == 2:
            if fails:
                raise ConnectionError("server is down")
            gate.enter()
        return BlocksAtGate(0, gate, at=1)

    with ThreadVectorEnv([make, partial(Counter, 1)], step_timeout=LIMIT, start_timeout=1.0, num_workers=2) as venv:
        venv.reset()
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
import threading, gymnasium as gym
from vecenv import ThreadVectorEnv
class Hangs(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None): return 0, {}
    def step(self, action): threading.Event().wait()
venv = ThreadVectorEnv([Hangs] * 2, num_workers=2, step_timeout=0.2)
venv.reset()
try:
    venv.step([0, 0])
except TimeoutError:
    print("timed out")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "timed out\n", "")
