"""Envs whose reset and step are coroutines, in ThreadVectorEnv.

The contract suite, the fault matrix and the fuzzer of the engine have them too.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from collector import SyncDataCollector
from tests.fuzz.envs import assert_same
from tests.support.coroutine_envs import AsCoroutines, Coroutines, CoroutineVectorEnv, Gated
from tests.support.faulty import Counter
from tests.support.ledger import CLOSED, Ledger, wait_until
from tests.support.paths import ROOT
from vecenv import (
    DummyVectorEnv,
    EnvStepError,
    ThreadVectorEnv,
    VectorEnvError,
    WorkerTimeoutError,
)
from vecenv.testing import CountingEnv

LIMIT = 0.5


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "vecenv-event-loop"]


class Meets(Coroutines):
    """Env whose step waits until the steps of all envs of `barrier` wait. The info has the thread."""

    def __init__(self, id: int, barrier: asyncio.Barrier) -> None:
        super().__init__(id)
        self.barrier = barrier

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await self.barrier.wait()
        obs, *rest, _ = super().step(action)
        return obs, *rest, {"thread": threading.current_thread().name}


@pytest.mark.parametrize("options", [{}, {"wait_num": 1}], ids=str)
def test_all_coroutine_envs_wait_at_once_in_one_event_loop(options: Any) -> None:
    n = 50
    barrier = asyncio.Barrier(n)
    with ThreadVectorEnv([partial(Meets, i, barrier) for i in range(n)], **options) as venv:
        assert venv.num_workers == n
        assert len(loop_threads()) == 1
        wait_until(lambda: not any(thread.name.startswith("vecenv-block-") for thread in threading.enumerate()))
        venv.reset(seed=0)
        for t in (1, 2, 3):
            venv.send(np.arange(n))
            while venv.waiting_id:
                obs, *_, info = venv.recv()
                assert obs[:, 2].tolist() == [t] * len(obs)
                assert obs[:, 3].tolist() == [row["env_id"] for row in info]
                assert {row["thread"] for row in info} == {"vecenv-event-loop"}
    assert loop_threads() == []


def test_episodes_equal_those_of_ordinary_envs_and_coroutine_envs_mix_with_them() -> None:
    def play(venv: Any) -> list[Any]:
        rows = list(venv.reset(seed=3, options={"t": 1}))
        for t in range(9):
            rows += venv.step(np.arange(4) + t, reset=[1] if t == 2 else None, autoreset=np.arange(4) + 7)
        return [
            *(list(row) if isinstance(row, np.ndarray) else row for row in rows),
            *(venv.render(), venv.call("length"), venv.get_env_attr("seeded")),
        ]

    fns = [partial(CountingEnv, i) for i in range(4)]
    with DummyVectorEnv(fns) as venv:
        want = play(venv)
    for every in (1, 2):
        with CoroutineVectorEnv(fns, every=every) as venv:
            np.testing.assert_equal(play(venv), want)
            assert venv.num_workers == 4


def make_gated(n: int, notes: list[Any], **options: Any) -> ThreadVectorEnv:
    return ThreadVectorEnv([partial(Gated, i, notes) for i in range(n)], **options)


@pytest.mark.guarantee("G8.7")
def test_step_timeout_cancels_the_task_and_names_the_env_and_its_line() -> None:
    notes: list[Any] = []
    with make_gated(3, notes, step_timeout=LIMIT, wait_num=1) as venv:
        ledger = Ledger(venv)
        ledger.begin()
        venv.call("shut", id=[1])
        error = ledger.fails(WorkerTimeoutError)
        assert f"env 1 has been busy for more than step_timeout={LIMIT} s; its task was cancelled" in str(error)
        stack = str(error).partition("Env 1 was at\n")[2].splitlines()
        assert stack[0].endswith("in step")
        assert "await self.gate.wait()" in str(error)
        assert (error.env_id, error.env_ids, error.pid) == (1, (1,), None)
        assert venv.alive() == [True, False, True]
        wait_until(lambda: ("closed", 1) in notes)
        assert notes == [("waits", 1), ("cancelled", 1), ("closed", 1)]
        ledger.born_again([1])
        ledger.goes_on([1], WorkerTimeoutError)
        assert venv.alive() == [True] * 3
        assert len(loop_threads()) == 1
        venv.call("shut", id=[0])
        with pytest.raises(WorkerTimeoutError, match="env 0 has been busy"):
            venv.call("pass_gate", id=[0])
        wait_until(lambda: notes[3:] == [("waits", 0), ("cancelled", 0), ("closed", 0)])


class BlocksTheLoop(Coroutines):
    """Env 1 waits in its second step without an await, as `time.sleep` does. `gate` is opened by the test."""

    def __init__(self, id: int, gate: threading.Event) -> None:
        super().__init__(id)
        self.gate = gate

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        if self.id == 1 and self.t == 1:
            self.gate.wait()
        return super().step(action)


def test_an_env_that_blocks_the_event_loop_is_named_in_the_error_of_each_env_that_waits_for_it() -> None:
    gate = threading.Event()
    with ThreadVectorEnv([partial(BlocksTheLoop, i, gate) for i in range(20)], step_timeout=LIMIT) as venv:
        venv.reset()
        venv.step([0] * 20)
        begin = time.monotonic()
        with pytest.raises(WorkerTimeoutError) as caught:
            venv.step([0] * 20)
        assert time.monotonic() - begin < 20 * LIMIT, "one env after the other"
        text = str(caught.value)
        assert "env 1 blocks the event loop" in text
        assert "self.gate.wait()" in text
        assert caught.value.env_id == 1
        with pytest.raises(WorkerTimeoutError, match="env 1 blocks the event loop") as other:
            venv.step([0], [venv.failed_id[-1]])
        assert other.value.bystander
        gate.set()
        venv.reset()
        assert venv.step([0] * 20)[0][:, 2].tolist() == [1] * 20


class Raises(Coroutines):
    """Env that raises `error` in step 2, after an await."""

    def __init__(self, id: int, error: BaseException) -> None:
        super().__init__(id)
        self.error = error

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        result = super().step(action)
        if self.t == 2:
            raise self.error
        return result


@pytest.mark.guarantee("G8.2")
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StopAsyncIteration(), StopAsyncIteration),
        (asyncio.CancelledError(), EnvStepError),
        (KeyboardInterrupt(), EnvStepError),
    ],
    ids=repr,
)
def test_an_error_of_an_env_is_raised_with_the_rows_of_the_others(error: BaseException, kind: Any) -> None:
    with ThreadVectorEnv([partial(Raises, 0, error), partial(Counter, 1)], num_workers=2) as venv:
        venv.reset()
        venv.step([0, 0])
        with pytest.raises(kind) as caught:
            venv.step([0, 0])
        assert "env 0, step()" in caught.value.__notes__
        assert caught.value.partial.env_id.tolist() == [1]
        venv.reset([0])
        assert venv.step([0, 0])[0][:, 2].tolist() == [1, 3]


class StartsTask(Coroutines):
    """Env whose own background task raises SystemExit in step 2, which ends the event loop."""

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if self.id == 0 and self.t == 1:
            await asyncio.create_task(self.exit())
        return super().step(action)

    async def exit(self) -> None:
        raise SystemExit("from a task")


def test_if_a_task_of_an_env_ends_the_event_loop_all_its_envs_are_lost_until_their_reset() -> None:
    with ThreadVectorEnv([partial(StartsTask, i) for i in range(3)], step_timeout=20) as venv:
        venv.reset()
        venv.step([0] * 3)
        with pytest.raises(VectorEnvError, match=r"task of env \d has ended with SystemExit: from a task"):
            venv.step([0] * 3)
        venv.reset()
        assert venv.step([0] * 3)[0][:, 2].tolist() == [1] * 3
        assert venv.alive() == [True] * 3


def test_close_cancels_steps_in_flight_and_waits_for_each_close() -> None:
    notes: list[Any] = []
    venv = make_gated(3, notes)
    venv.reset()
    venv.call("shut", id=[0, 1])
    venv.send([0] * 3)
    wait_until(lambda: len(notes) == 2)
    venv.close()
    assert sorted(notes[2:]) == [("cancelled", 0), ("cancelled", 1), ("closed", 0), ("closed", 1), ("closed", 2)]
    assert loop_threads() == []


class IgnoresCancel(Coroutines):
    """Env whose step goes on after a cancellation, until `gate` is opened by the test."""

    def __init__(self, id: int, gate: threading.Event, begun: list[int]) -> None:
        super().__init__(id)
        self.gate, self.begun = gate, begun

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        self.begun.append(self.id)
        while self.id == 1 and not self.gate.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return super().step(action)


@pytest.mark.guarantee("G9.3")
def test_close_is_bounded_though_a_step_goes_on_after_its_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vecenv.engine.lifetime.CLOSE_TIMEOUT", 0.3)
    gate, begun = threading.Event(), list[int]()
    venv = ThreadVectorEnv([partial(IgnoresCancel, i, gate, begun) for i in range(3)])
    venv.reset()
    venv.send([0] * 3)
    wait_until(lambda: len(begun) == 3)
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match=r"tasks of envs \[1\] did not close in time and continue") as warned:
        venv.close()
    assert time.monotonic() - begin < CLOSED
    assert "await asyncio.sleep(0.01)" in str(warned[0].message)
    gate.set()
    wait_until(lambda: loop_threads() == [])


def test_a_constructor_that_fails_closes_the_coroutine_envs_before_it() -> None:
    notes: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        ThreadVectorEnv([partial(Gated, 0, notes), partial(Gated, 1, notes), lambda: 1 / 0], num_workers=2)
    wait_until(lambda: loop_threads() == [])
    assert sorted(notes) == [("closed", 0), ("closed", 1)]


class Awaits(gymnasium.Wrapper[Any, Any, Any, Any]):
    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        obs, info = await self.env.reset(**kwargs)  # type: ignore[misc]
        return obs, {**info, "wrapped": True}

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        obs, reward, *rest = await self.env.step(action)  # type: ignore[misc]
        return obs, 2 * reward, *rest


def test_a_wrapper_that_awaits_works() -> None:
    with ThreadVectorEnv([lambda: Awaits(Gated(1))]) as venv:
        assert venv.reset()[1][0]["wrapped"]
        assert venv.step([0])[1].tolist() == [2 * 1.001]


def test_collectors_take_coroutine_envs() -> None:
    def collect(env_fns: Any, **own: Any) -> list[Any]:
        with SyncDataCollector(env_fns, None, frames_per_batch=30, total_frames=60, **own) as collector:
            collector.set_seed(0)
            return [leaf for batch in collector for leaf in (batch.obs, batch.reward, batch.terminated, batch.action)]

    fns: list[Any] = [partial(CountingEnv, i) for i in range(3)]
    coroutines = [partial(AsCoroutines, env_fn) for env_fn in fns]
    assert_same(collect(coroutines, backend="thread"), collect(fns), "batches")
    with pytest.raises(TypeError, match="backend='thread' in collectors"):
        SyncDataCollector(coroutines, None, frames_per_batch=30, total_frames=60)


def test_a_program_that_leaves_a_vector_env_open_ends_without_a_word() -> None:
    """Also with a step in flight."""
    program = """
from functools import partial
from tests.support.coroutine_envs import Gated
from vecenv import ThreadVectorEnv
venv = ThreadVectorEnv([partial(Gated, i) for i in range(3)])
venv.reset()
venv.call("shut", id=[1])
venv.send([0] * 3)
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
