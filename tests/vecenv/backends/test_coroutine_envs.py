"""Envs whose reset and step are coroutines, in ThreadVectorEnv.

The contract suite, the fault matrix and the fuzzer of the engine have them too.
"""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from collector import SyncDataCollector
from tests.fuzz.envs import assert_same
from tests.support.coroutine_envs import AsCoroutines, Coroutines, Gated
from tests.support.ledger import CLOSED, Ledger, wait_until
from tests.support.programs import output_of
from vecenv import ThreadVectorEnv, VectorEnvError, WorkerTimeoutError
from vecenv.testing import CountingEnv

LIMIT = 0.3


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
        venv.reset(seed=0)
        venv.send(np.arange(n))
        found = []
        while venv.waiting_id:
            found += venv.recv()[4].tolist()
        assert sorted(row["env_id"] for row in found) == list(range(n))
        assert {row["thread"] for row in found} == {"vecenv-event-loop"}
    assert loop_threads() == []


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
        assert str(error).partition("Env 1 was at\n")[2].splitlines()[0].endswith("in step")
        assert "await self.gate.wait()" in str(error)
        assert (error.env_id, error.env_ids, error.pid) == (1, (1,), None)
        assert venv.alive() == [True, False, True]
        wait_until(lambda: notes == [("waits", 1), ("cancelled", 1), ("closed", 1)])
        ledger.born_again([1])
        ledger.goes_on([1], WorkerTimeoutError)
        assert venv.alive() == [True] * 3
        assert len(loop_threads()) == 1
        venv.call("shut", id=[0])
        with pytest.raises(WorkerTimeoutError, match="env 0 has been busy"):
            venv.call("pass_gate", id=[0])
        wait_until(lambda: notes[3:] == [("waits", 0), ("cancelled", 0), ("closed", 0)])


class Acts(Coroutines):
    """Env that calls `act` in step 2. If the result is a coroutine, the env awaits the result."""

    def __init__(self, id: int, act: Any) -> None:
        super().__init__(id)
        self.act = act

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        if self.t == 1 and asyncio.iscoroutine(found := self.act(self.id)):
            await found
        return super().step(action)


def make_acting(n: int, act: Any, **options: Any) -> ThreadVectorEnv:
    """Return envs that have made their first step."""
    venv = ThreadVectorEnv([partial(Acts, i, act) for i in range(n)], **options)
    venv.reset()
    venv.step([0] * n)
    return venv


def test_an_env_that_blocks_the_event_loop_is_named_in_the_error_of_each_env_that_waits_for_it() -> None:
    """As an env that calls `time.sleep` does."""
    n, gate = 20, threading.Event()
    with make_acting(n, lambda id: id == 1 and gate.wait(), step_timeout=LIMIT) as venv:
        begin = time.monotonic()
        with pytest.raises(WorkerTimeoutError, match="env 1 blocks the event loop") as caught:
            venv.step([0] * n)
        assert time.monotonic() - begin < n * LIMIT, "one env after the other"
        assert "gate.wait()" in str(caught.value)
        assert caught.value.env_id == 1
        with pytest.raises(WorkerTimeoutError, match="env 1 blocks the event loop") as other:
            venv.step([0], [venv.failed_id[-1]])
        assert other.value.bystander
        gate.set()
        venv.reset()
        assert venv.step([0] * n)[0][:, 2].tolist() == [1] * n


def test_if_a_task_of_an_env_ends_the_event_loop_all_its_envs_are_lost_until_their_reset() -> None:
    async def leave() -> None:
        raise SystemExit("from a task")

    async def start_task(id: int) -> None:
        if id == 0:
            await asyncio.create_task(leave())

    with make_acting(3, start_task, step_timeout=20) as venv:
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


@pytest.mark.guarantee("G9.3")
def test_close_is_bounded_though_a_step_goes_on_after_its_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vecenv.engine.lifetime.CLOSE_TIMEOUT", 0.3)
    gate, begun = threading.Event(), threading.Event()

    async def ignore_cancel(id: int) -> None:
        begun.set()
        while id == 1 and not gate.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    venv = make_acting(3, ignore_cancel)
    venv.send([0] * 3)
    assert begun.wait(20)
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
    assert output_of("-W", "error", "-c", program) == ""
