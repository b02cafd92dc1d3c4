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

import vecenv.engine.lifetime
from collector import SyncDataCollector
from tests.fuzz.envs import assert_same
from tests.support.backends import BACKENDS, FULL, full
from tests.support.coroutine_envs import AsCoroutines, Coroutines, CoroutineVectorEnv, Gated
from tests.support.ctrl_c import interrupting
from tests.support.faulty import Counter, counters
from tests.support.ledger import CLOSED, Ledger, wait_until
from tests.support.paths import ROOT
from vecenv import (
    DummyVectorEnv,
    EnvContractError,
    EnvStepError,
    GymnasiumVectorEnv,
    ThreadVectorEnv,
    TransformedEnv,
    VectorEnvError,
    WorkerTimeoutError,
)
from vecenv.testing import CountingEnv, check_env
from vecenv.transforms import RewardScaling
from vecenv.tuning.auto_backend import auto_vector_env

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


@pytest.mark.parametrize("options", [{}, {"num_workers": 7}, {"wait_num": 1}], ids=str)
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


@pytest.mark.parametrize("options", [{}, {"num_workers": 6}, {"wait_num": 6}], ids=str)
def test_coroutine_envs_mix_with_ordinary_envs(options: Any) -> None:
    n = 6

    def play(venv: Any) -> list[Any]:
        rows = list(venv.reset(seed=3, options={"t": 1}))
        for t in range(12):
            rows += venv.step(np.arange(n) + t, autoreset=np.arange(n) + 7)
        return list(map(list, rows))

    made: list[int] = []

    def make(i: int) -> Any:
        made.append(i)
        return CountingEnv(i)

    with DummyVectorEnv([partial(CountingEnv, i) for i in range(n)]) as venv:
        want = play(venv)
    with CoroutineVectorEnv([partial(make, i) for i in range(n)], every=2, **options) as venv:
        np.testing.assert_equal(play(venv), want)
        assert venv.num_workers == n
    assert sorted(set(made)) == list(range(n))
    with pytest.raises(ValueError, match=r"env 0 is a coroutine env, and shares a worker with env 1.*or pass 6"):
        CoroutineVectorEnv(counters(n), every=2, num_workers=2)
    wait_until(lambda: loop_threads() == [])


@pytest.mark.parametrize("form", ["array", "dict", "object"])
def test_episodes_equal_those_of_ordinary_envs(form: str) -> None:
    def play(venv: Any) -> list[Any]:
        rows = list(venv.reset(seed=1))
        for t in range(7):
            rows += venv.step([t] * 3, reset=[1] if t == 2 else None, autoreset=t > 2)
        return [
            *(list(row) if isinstance(row, np.ndarray) else row for row in rows),
            *(venv.render(), venv.call("length"), venv.get_env_attr("seeded")),
        ]

    fns = [partial(CountingEnv, i, form=form) for i in range(3)]
    with DummyVectorEnv(fns) as one, CoroutineVectorEnv(fns) as other:
        np.testing.assert_equal(play(other), play(one))


def make_gated(n: int, notes: list[Any], **options: Any) -> ThreadVectorEnv:
    return ThreadVectorEnv([partial(Gated, i, notes) for i in range(n)], **options)


def test_wait_num_returns_the_envs_that_are_ready_and_a_timeout_what_there_is() -> None:
    with make_gated(3, [], wait_num=2) as venv:
        venv.reset()
        venv.call("shut", id=[1])
        assert [row["env_id"] for row in venv.step([0] * 3)[4]] == [0, 2]
        assert venv.waiting_id == [1]
        assert [row["env_id"] for row in venv.step([0, 0], [0, 2])[4]] == [0, 2]
        with pytest.raises(RuntimeError, match="env 1 is still stepping"):
            venv.call("open", id=[1])
    with make_gated(3, [], timeout=0.01) as venv:
        venv.reset()
        venv.call("shut", id=[1])
        ready = [row["env_id"] for row in venv.step([0] * 3)[4]]
        assert ready
        assert 1 not in ready


@pytest.mark.guarantee("G8.7")
@pytest.mark.parametrize("options", [{}, {"wait_num": 1}], ids=str)
def test_step_timeout_cancels_the_task_and_names_the_env_and_its_line(options: Any) -> None:
    notes: list[Any] = []
    with make_gated(3, notes, step_timeout=LIMIT, **options) as venv:
        ledger = Ledger(venv)
        ledger.begin()
        venv.call("shut", id=[1])
        error = ledger.fails(WorkerTimeoutError)
        assert f"env 1 has been busy for more than step_timeout={LIMIT} s; its task was cancelled" in str(error)
        stack = str(error).partition("Env 1 was at\n")[2].splitlines()
        assert stack[0].endswith("in step")
        assert "await self.gate.wait()" in str(error)
        assert "in pass_gate" in str(error)
        assert (error.env_id, error.env_ids, error.pid) == (1, (1,), None)
        assert venv.alive() == [True, False, True]
        wait_until(lambda: ("closed", 1) in notes)
        assert notes == [("waits", 1), ("cancelled", 1), ("closed", 1)]
        ledger.born_again([1])
        ledger.goes_on([1], WorkerTimeoutError)
        assert venv.alive() == [True] * 3
        assert venv.stats()["restarts"] == 1


def test_a_call_that_hangs_is_cancelled_too() -> None:
    notes: list[Any] = []
    with make_gated(2, notes, step_timeout=LIMIT) as venv:
        venv.reset()
        venv.call("shut")
        with pytest.raises(WorkerTimeoutError, match="env 0 has been busy"):
            venv.call("pass_gate", id=[0])
        wait_until(lambda: notes == [("waits", 0), ("cancelled", 0), ("closed", 0)])
        venv.reset()


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
        assert time.monotonic() - begin < 2 * LIMIT + 2
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


@pytest.mark.guarantee("G8.9")
def test_failed_steps_are_absorbed_with_on_error_restart() -> None:
    notes: list[Any] = []
    with make_gated(3, notes, step_timeout=LIMIT, on_error="restart") as venv:
        venv.reset()
        venv.call("shut", id=[2])
        _, rew, terminated, truncated, info = venv.step([0] * 3)
        assert truncated.tolist() == [False, False, True]
        assert (rew[2], terminated[2]) == (0, False)
        assert info[2]["restarted"]
        assert info[2]["error"].startswith("WorkerTimeoutError: env 2 has been busy")
        venv.reset(truncated)
        assert venv.step([0] * 3)[0][:, 2].tolist() == [2, 2, 1]
        assert venv.stats()["restarts"] == venv.stats()["absorbed"] == 1


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
        (KeyError("x"), KeyError),
        (StopAsyncIteration(), StopAsyncIteration),
        (asyncio.CancelledError(), EnvStepError),
        (SystemExit(3), EnvStepError),
        (KeyboardInterrupt(), EnvStepError),
        (TimeoutError("too late"), TimeoutError),
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


def test_an_interrupted_round_is_discarded() -> None:
    with make_gated(4, []) as venv:
        ledger = Ledger(venv)
        ledger.begin()
        for moment, first in (("wait", True), ("send", False), ("_flush", True), ("wait", True)):
            with interrupting(venv.engine.backend, moment, first):
                venv.step([0] * 4)
            assert venv.failed_id == [0, 1, 2, 3]
            venv.reset()
            ledger.catch_up()
            assert ledger.round() == []


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
    assert vecenv.engine.lifetime.CLOSE_TIMEOUT == 5
    monkeypatch.setattr(vecenv.engine.lifetime, "CLOSE_TIMEOUT", 0.3)
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


def test_an_error_in_close_is_a_warning() -> None:
    class Fails(Gated):
        async def close(self) -> None:  # type: ignore[override]
            await asyncio.sleep(0)
            raise ConnectionError("gone")

    venv = ThreadVectorEnv([partial(Fails, 0)])
    with pytest.warns(RuntimeWarning, match=r"env 0 failed in close\(\): ConnectionError: gone"):
        venv.close()


def test_a_constructor_that_fails_closes_the_coroutine_envs_before_it() -> None:
    notes: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        ThreadVectorEnv([partial(Gated, 0, notes), partial(Gated, 1, notes), lambda: 1 / 0], num_workers=2)
    wait_until(lambda: loop_threads() == [])
    assert sorted(notes) == [("closed", 0), ("closed", 1)]


def test_an_env_that_is_made_again_joins_the_same_event_loop() -> None:
    with make_gated(2, [], step_timeout=LIMIT) as venv:
        venv.reset()
        venv.call("shut", id=[0])
        with pytest.raises(WorkerTimeoutError):
            venv.step([0, 0])
        venv.reset()
        assert len(loop_threads()) == 1
        assert venv.step([0, 0])[0][:, 2].tolist() == [1, 1]


@pytest.mark.parametrize("backend", [DummyVectorEnv, *full([each for each in BACKENDS if each is not DummyVectorEnv])])
def test_other_backends_name_the_class_that_can(backend: Any) -> None:
    if backend is ThreadVectorEnv:
        backend = auto_vector_env
    with pytest.raises(TypeError, match=r"coroutine functions \(async def\): use ThreadVectorEnv, or backend='thread'"):
        backend([partial(Gated, 0), partial(Gated, 1)])


class Awaits(gymnasium.Wrapper[Any, Any, Any, Any]):
    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        obs, info = await self.env.reset(**kwargs)  # type: ignore[misc]
        return obs, {**info, "wrapped": True}

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        obs, reward, *rest = await self.env.step(action)  # type: ignore[misc]
        return obs, 2 * reward, *rest


class RunsItself(gymnasium.Wrapper[Any, Any, Any, Any]):
    def reset(self, **kwargs: Any) -> Any:
        return asyncio.run(self.env.reset(**kwargs))  # type: ignore[arg-type]

    def step(self, action: Any) -> Any:
        return asyncio.run(self.env.step(action))  # type: ignore[arg-type]

    def close(self) -> None:
        asyncio.run(self.env.close())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: gymnasium.wrappers.TimeLimit(env, 5),
        gymnasium.wrappers.OrderEnforcing,
        lambda env: gymnasium.wrappers.TimeLimit(gymnasium.wrappers.RecordEpisodeStatistics(env), 5),
        lambda env: TransformedEnv(env, RewardScaling(1.0, 2.0)),
        gymnasium.Wrapper,
    ],
)
def test_a_wrapper_that_does_not_await_is_refused(wrap: Any) -> None:
    for backend in (ThreadVectorEnv, DummyVectorEnv):
        with pytest.raises(TypeError, match=r"does not await the reset and step of a coroutine env. Return the env"):
            backend([lambda: wrap(Gated(0))])


class SeedsByCoroutine(Gated):
    async def seed(self, seed: int) -> None:
        self.notes.append(seed)


def test_a_coroutine_seed_is_refused() -> None:
    with ThreadVectorEnv([partial(Gated, 0), partial(SeedsByCoroutine, 1)]) as venv:
        with pytest.raises(TypeError, match=r"seed\(\) of .* is a coroutine function.* leave seed\(\) out") as caught:
            venv.seed(3)
        assert caught.value.__notes__[0].startswith("env 1")
        venv.reset(seed=3)


def test_wrappers_that_await_and_wrappers_with_a_loop_of_their_own_work() -> None:
    with ThreadVectorEnv([lambda: Awaits(Gated(1))]) as venv:
        assert venv.reset()[1][0]["wrapped"]
        assert venv.step([0])[1].tolist() == [2 * 1.001]
    with DummyVectorEnv([lambda: RunsItself(Gated(1))]) as venv:
        venv.reset()
        assert venv.step([0])[1].tolist() == [1.001]


def test_check_env_says_where_a_coroutine_env_runs() -> None:
    result = check_env(partial(AsCoroutines, CountingEnv), steps=5)
    assert not result.ok
    assert "use ThreadVectorEnv" in str(result)


def test_a_reward_of_none_says_what_to_write() -> None:
    class NoReward(Counter):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, None, *rest

    with DummyVectorEnv([partial(NoReward, 0)]) as venv:
        venv.reset()
        with pytest.raises(EnvContractError, match=r"reward None.*return 0.0 until then. If a call failed, raise"):
            venv.step([0])


def rows_of(make: Any, kind: Any, steps: int) -> list[Any]:
    venv = make(kind([partial(CountingEnv, i) for i in range(3)]))
    rows = [venv.reset()]
    rows += [venv.step(np.full(3, t)) for t in range(steps)]
    venv.close()
    return rows


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=FULL) for mode in gymnasium.vector.AutoresetMode])
def test_the_interface_of_gymnasium_has_coroutine_envs(mode: Any) -> None:
    make, steps = partial(GymnasiumVectorEnv, autoreset_mode=mode), 4 if mode.name == "DISABLED" else 12
    assert_same(rows_of(make, CoroutineVectorEnv, steps), rows_of(make, DummyVectorEnv, steps), "rows")


@FULL
def test_the_interface_of_sb3_has_coroutine_envs() -> None:
    pytest.importorskip("stable_baselines3")
    from vecenv import SB3VecEnv

    assert_same(rows_of(SB3VecEnv, CoroutineVectorEnv, 12), rows_of(SB3VecEnv, DummyVectorEnv, 12), "rows")


@pytest.mark.parametrize("options", [{}, pytest.param({"transforms": True}, marks=FULL)], ids=str)
def test_collectors_take_coroutine_envs(options: Any) -> None:
    def collect(env_fns: Any, **own: Any) -> list[Any]:
        if options:
            own["transforms"] = RewardScaling(1.0, 2.0)
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
