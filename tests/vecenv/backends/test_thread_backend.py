"""Behaviour of ThreadVectorEnv alone. The contract suite tests the behaviour of all backends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

import vecenv.engine.engine
import vecenv.engine.lifetime
from tests.support.backends import FULL
from tests.support.ctrl_c import interrupting
from tests.support.faulty import Counter, counters
from tests.support.ledger import CLOSED, wait_until
from vecenv import DummyVectorEnv, ThreadVectorEnv, VectorEnvError, WorkerTimeoutError

LIMIT = 0.3
TIMEOUT = 20.0
"""Seconds after which a test has failed."""


class Gate:
    """Gate that blocks envs until it is opened. The envs append to the list `notes`."""

    def __init__(self) -> None:
        self._open, self.entered = threading.Event(), threading.Event()
        self.shut = True
        self.notes: list[tuple[Any, ...]] = []

    def enter(self) -> None:
        if self.shut:
            self.entered.set()
            assert self._open.wait(TIMEOUT)

    def open(self) -> None:
        """Let all envs pass from now on."""
        self.shut = False
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()
    for thread in block_threads():
        thread.join(TIMEOUT)
    assert block_threads() == []


def block_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("vecenv-block-")]


class BlocksAtGate(Counter):
    """Env that blocks at the gate in step `at` and in `method`. A replacement with the same id does not block."""

    def __init__(self, id: int, gate: Gate, at: int = 2) -> None:
        super().__init__(id)
        self.gate, self.at = gate, at
        self.gate.notes.append(("made", id))
        self.first = self.gate.notes.count(("made", id)) == 1

    def on_step(self) -> None:
        if self.first and self.t == self.at:
            self.gate.enter()
        self.gate.notes.append(("stepped", self.id, self.first, self.t))

    def method(self) -> str:
        if self.first:
            self.gate.enter()
            return "old"
        return "new"

    def close(self) -> None:
        self.gate.notes.append(("closed", self.id, self.first))


# The env's thread.


class Notes:
    """Counter that records each use and the thread."""

    def __init__(self, id: int, notes: dict[int, list[tuple[str, Any]]]) -> None:
        vars(self).update(inner=Counter(id), notes=notes.setdefault(id, []))
        self.note("init")

    def note(self, what: str) -> None:
        self.notes.append((what, threading.current_thread()))

    def __getattr__(self, name: str) -> Any:
        if name != "unwrapped":  # the parent compares envs with this method
            self.note(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.note("set")
        setattr(self.inner, name, value)


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"wait_num": 1}])
def test_an_env_is_made_used_and_closed_in_one_thread(options: dict[str, Any]) -> None:
    notes: dict[int, list[tuple[str, Any]]] = {}
    with ThreadVectorEnv([partial(Notes, i, notes) for i in range(3)], **options) as venv:
        venv.reset()
        venv.send([0] * 3)
        while venv.waiting_id:
            venv.recv()
        venv.call("info")
        venv.get_env_attr("t")
        venv.set_env_attr("mark", 2)
        assert all(thread.daemon for thread in block_threads())
        assert len(block_threads()) == venv.num_workers == (2 if "num_workers" in options else 3)
    for own in notes.values():
        assert {what for what, _ in own} >= {"init", "reset", "step", "info", "t", "set", "close"}
        assert len({thread for _, thread in own}) == 1
    threads = {own[0][1] for own in notes.values()}
    assert len(threads) == venv.num_workers
    assert threading.current_thread() not in threads


def make_hanging(gate: Gate, **options: Any) -> ThreadVectorEnv:
    """Make four envs in two threads. Env 1 blocks at the gate in its second step."""
    fns = [partial(Counter, 0), partial(BlocksAtGate, 1, gate), partial(Counter, 2), partial(Counter, 3)]
    return ThreadVectorEnv(fns, **{"num_workers": 2, "step_timeout": LIMIT, **options})


def step_until_error(venv: Any) -> None:
    """Step the ready envs until an error is raised."""
    while True:
        ready = venv.ready_id
        venv.step([0] * len(ready) if ready else None, ready or None)


@pytest.mark.guarantee("G8.6")
def test_a_hung_env_is_abandoned_with_its_stack_and_the_others_and_close_go_on(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vecenv.engine.lifetime, "CLOSE_TIMEOUT", 2 * TIMEOUT)
    with make_hanging(gate, wait_num=2) as venv:
        venv.reset()
        with pytest.raises(WorkerTimeoutError) as caught:
            step_until_error(venv)
        text = str(caught.value)
        assert f"env 1 has been busy for more than step_timeout={LIMIT} s" in text
        assert "threads cannot be killed" in text
        assert "vecenv-block-0 (envs [0, 1])" in text
        assert "in enter" in text
        assert (caught.value.env_id, caught.value.env_ids, caught.value.pid) == (1, (0, 1), None)
        assert not caught.value.bystander
        while venv.waiting_id:
            venv.recv()
        assert venv.failed_id == [0, 1]
        assert venv.alive() == [False, False, True, True]
        with pytest.raises(WorkerTimeoutError, match="env 0 is lost because env 1 has been busy") as bystander:
            venv.step([0], [0])
        assert bystander.value.bystander
        t = venv.get_env_attr("t", [2, 3])
        venv.send([0, 0], [2, 3])
        while venv.waiting_id:
            venv.recv()
        assert venv.get_env_attr("t", [2, 3]) == [t[0] + 1, t[1] + 1]
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
        assert venv.alive() == [True, True]
        assert all(np.array_equal(leaf, then) for leaf, then in zip(row[:4], kept, strict=True))
        assert row[0].tolist() == [[0, 1, 3, 7], [1, 1, 3, 7]]
        assert venv.step([8, 8])[0].tolist() == [[0, 1, 4, 8], [1, 1, 4, 8]]
        assert venv.failed_id == []


def test_a_call_that_returns_after_its_env_was_reset_is_discarded(gate: Gate) -> None:
    with ThreadVectorEnv([partial(BlocksAtGate, 0, gate)], step_timeout=LIMIT) as venv:
        venv.reset()
        with pytest.raises(WorkerTimeoutError, match="env 0 has been busy"):
            venv.call("method")
        old = block_threads()[0]
        venv.reset()
        gate.open()
        old.join(TIMEOUT)
        assert venv.call("method") == ["new"]


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


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 4}, {"wait_num": 1}])
def test_envs_are_made_one_after_the_other(options: dict[str, Any]) -> None:
    def start(backend: Any, **options: Any) -> tuple[list[Any], Any]:
        made: list[tuple[str, int]] = []
        np.random.seed(1)
        with backend([partial(Draws, i, made) for i in range(4)], **options) as venv:
            return made, venv.reset()[0].tolist()

    want = [(what, i) for i in range(4) for what in ("begin", "end")]
    made, drawn = start(ThreadVectorEnv, **options)
    assert made == want
    assert drawn == start(DummyVectorEnv)[1]


def test_envs_after_a_constructor_that_fails_are_not_made() -> None:
    made: list[int] = []

    def make(id: int) -> Any:
        made.append(id)
        return Counter(id) if id != 1 else 1 / 0

    with pytest.raises(ZeroDivisionError):
        ThreadVectorEnv([partial(make, i) for i in range(4)], num_workers=4)
    assert made == [0, 1]


def test_a_constructor_that_does_not_return_is_abandoned(gate: Gate) -> None:
    class BlocksInInit(Counter):
        def __init__(self, id: int) -> None:
            super().__init__(id)
            gate.enter()

        def close(self) -> None:
            gate.notes.append(("closed",))

    fns = [partial(Counter, 0), partial(Counter, 1), partial(BlocksInInit, 2), partial(BlocksInInit, 3)]
    begin = time.monotonic()
    with pytest.raises(WorkerTimeoutError, match=r"envs \[2, 3\] were not constructed within start_timeout=0.3 s"):
        ThreadVectorEnv(fns, start_timeout=0.3, num_workers=2)
    assert time.monotonic() - begin < TIMEOUT
    gate.open()
    wait_until(lambda: block_threads() == [])
    assert gate.notes == [("closed",)]  # env 3 was never made


def test_start_timeout_limits_each_thread_alone() -> None:
    def waits() -> Any:
        time.sleep(0.3)  # for a server
        return Counter(0)

    ThreadVectorEnv([waits] * 3, num_workers=3, start_timeout=0.75).close()


def test_the_failure_of_a_constructor_is_raised_once_all_threads_have_ended() -> None:
    closed = []

    class Closes(Counter):
        def close(self) -> None:
            closed.append(self.id)

    def fails() -> Any:
        raise ZeroDivisionError("in the constructor")

    with pytest.raises(ZeroDivisionError, match="in the constructor") as caught:
        ThreadVectorEnv([partial(Closes, 0), partial(Closes, 1), fails], num_workers=3)
    assert "fails" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert sorted(closed) == [0, 1]
    assert block_threads() == []


def test_a_restart_raises_what_the_constructor_raises(gate: Gate) -> None:
    made: list[int] = []

    def make() -> Any:
        made.append(1)
        if len(made) == 2:
            raise ConnectionError("server is down")
        return BlocksAtGate(0, gate, at=1)

    with ThreadVectorEnv([make, partial(Counter, 1)], step_timeout=LIMIT, num_workers=2) as venv:
        venv.reset()
        with pytest.raises(WorkerTimeoutError):
            venv.step([0, 0])
        with pytest.raises(ConnectionError, match="server is down") as raised:
            venv.reset()
        assert raised.value.__notes__ == ["env 0, __init__()"]  # without advice: the start has succeeded
        assert venv.alive() == [False, True]
        venv.reset()
        assert venv.alive() == [True, True]
        assert len(made) == 3


def test_a_constructor_that_hangs_in_a_restart_blocks_no_later_one(gate: Gate) -> None:
    made: list[int] = []

    def make() -> Any:
        made.append(1)
        if len(made) == 2:
            gate.enter()
        return BlocksAtGate(0, gate, at=1)

    with ThreadVectorEnv([make], step_timeout=LIMIT, start_timeout=1.0) as venv:
        venv.reset()
        with pytest.raises(WorkerTimeoutError):
            venv.step([0])
        with pytest.raises(WorkerTimeoutError, match=r"envs \[0\] were not constructed within start_timeout=1.0 s"):
            venv.reset()
        venv.reset()
        assert venv.alive() == [True]
        assert len(made) == 3


def test_the_envs_of_a_thread_that_ends_unexpectedly_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a bug of vecenv ends a thread. Even then, no call may hang."""
    with ThreadVectorEnv(counters(2), num_workers=2) as venv:
        venv.reset()
        with monkeypatch.context() as patch:
            patch.setattr(venv.engine.backend.blocks[1], "write", lambda *args: 1 / 0)
            with pytest.raises(VectorEnvError, match="env 1 is lost: its thread vecenv-block-1 has ended") as caught:
                venv.step([0, 0])
        assert "ZeroDivisionError" in str(caught.value)
        venv.reset([1])
        assert venv.step([0, 0])[0][:, 2].tolist() == [2, 1]


def test_stats_are_read_while_a_thread_is_abandoned() -> None:
    """`stats` runs in any thread. Abandoning a thread clears the list that `stats` reads."""

    class Numbers(list[int]):
        def __getitem__(self, place: Any) -> Any:
            other = threading.Thread(target=block.abandon)
            other.start()
            other.join(0.1)
            others.append(other)
            return super().__getitem__(place)

    others: list[threading.Thread] = []
    with ThreadVectorEnv(counters(1)) as venv:
        venv.reset()
        (block,) = venv.engine.backend.blocks
        block.line = block._host.progress = Numbers(block.line)
        assert venv.stats()["worker_busy_s"][0] > 0
        others[0].join(TIMEOUT)
        assert not block.alive


def interrupt_when(condition: Callable[[], bool]) -> None:
    """Send SIGINT soon after `condition` is true."""

    def wait() -> None:
        wait_until(condition)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait).start()


@pytest.mark.parametrize("returns", [True, False])
def test_an_env_whose_step_is_interrupted_is_kept_if_it_returns_in_time(
    gate: Gate, returns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_hanging(gate, step_timeout=None) as venv:
        venv.reset()
        venv.step([0] * 4)
        interrupt_when(gate.entered.is_set)
        with pytest.raises(KeyboardInterrupt):
            venv.step([0] * 4)
        assert venv.failed_id == [0, 1, 2, 3]
        if returns:
            gate.open()
        else:
            monkeypatch.setattr(vecenv.engine.engine, "RECOVERY_TIMEOUT", 0.3)
        episodes = [2] * 4 if returns else [1, 1, 2, 2]
        assert venv.reset()[0][:, 1:3].tolist() == [[episode, 0] for episode in episodes]
        assert venv.stats()["restarts"] == int(not returns)
        gate.open()
        assert venv.step([0] * 4)[0][:, 2].tolist() == [1] * 4


def test_an_answer_that_comes_after_its_call_was_interrupted_is_not_that_of_the_next(gate: Gate) -> None:
    fns = [partial(BlocksAtGate, 0, gate, at=1), partial(Counter, 1)]
    with ThreadVectorEnv(fns, num_workers=2, wait_num=1) as venv:
        venv.reset()
        with interrupting(venv.engine.backend, "wait", first=True):
            venv.step([0], [0])
        threading.Timer(0.1, gate.open).start()
        assert venv.reset()[0][:, 2].tolist() == [0, 0]
        venv.send([0], [1])
        assert [row["env_id"] for row in venv.recv()[-1]] == [1]


@pytest.mark.guarantee("G9.3")
def test_close_is_bounded_though_an_env_hangs(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vecenv.engine.lifetime, "CLOSE_TIMEOUT", 0.3)
    venv = make_hanging(gate, step_timeout=None)
    venv.reset()
    venv.step([0] * 4)
    venv.send([0] * 4)
    assert gate.entered.wait(TIMEOUT)
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match=r"(?s)the thread of envs \[0, 1\].*not close in time.*in enter") as warned:
        venv.close()
    assert time.monotonic() - begin < CLOSED
    assert len(warned) == 1
    assert "threads cannot be killed" in str(warned[0].message)
    assert len(block_threads()) == 1
    venv.close()
    gate.open()
    wait_until(lambda: block_threads() == [])
    assert gate.notes[-1] == ("closed", 1, True)


@pytest.mark.guarantee("G9.8")
@FULL
def test_a_program_ends_though_an_env_hangs(tmp_path: Any) -> None:
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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "timed out\n", "")
