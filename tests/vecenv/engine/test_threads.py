"""Only one thread at a time uses a vector env, but a second thread or a signal handler may make some calls."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.fuzz.driver import run
from tests.fuzz.threads import Fuzz
from tests.support.backends import FULL, PROCESS_BACKENDS, and_ray
from tests.support.faulty import Counter, counters
from tests.support.ledger import CLOSED, wait_until
from tests.support.threads import beside
from vecenv import (
    ClosedError,
    ConcurrentCallError,
    DummyVectorEnv,
    GymnasiumVectorEnv,
    RowWiseWrapper,
    ThreadVectorEnv,
)
from vecenv.testing import Gates

waiting_backend = and_ray([ThreadVectorEnv, *PROCESS_BACKENDS])

ACTIONS = [0, 0]
BUSY = "another call waits for this vector env"
STEPPING = "env 0 is still stepping"


@contextmanager
def in_a_thread(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run the call in a thread beside the block. The list gets its result or error."""
    outcome: list[Any] = []
    thread, errors = beside(lambda: outcome.append(call()))
    try:
        yield outcome
    finally:
        thread.join(20)
        outcome += errors
        assert not thread.is_alive()


def sleeps(venv: Any) -> None:
    """Wait until a call sleeps and waits for envs."""
    wait_until(lambda: len(venv.waiting_id) == len(venv), text="no call waits")


@pytest.mark.guarantee("G9.3", "G9.12")
@pytest.mark.parametrize("by_a_signal", [False, True])
@pytest.mark.filterwarnings("ignore:the .* of envs:RuntimeWarning")
def test_close_is_bounded_also_where_a_call_waits_for_ever(
    waiting_backend: type, by_a_signal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second thread or a signal handler closes."""
    monkeypatch.setattr("vecenv.engine.lifetime.CLOSE_TIMEOUT", 0.3)
    with Gates(2, ops=["step"]) as gates:
        venv = waiting_backend(gates.env_fns, num_workers=1)
        venv.reset()
        before = signal.signal(signal.SIGTERM, lambda number, frame: venv.close())
        end = partial(os.kill, os.getpid(), signal.SIGTERM) if by_a_signal else venv.close
        begin = time.monotonic()
        with in_a_thread(lambda: (sleeps(venv), end())), pytest.raises(ClosedError, match="while this call waited"):
            venv.step(ACTIONS)
        assert time.monotonic() - begin < CLOSED
        signal.signal(signal.SIGTERM, before)
        gates.open(0, 1)  # threads cannot be killed


@pytest.mark.guarantee("G9.10", "G9.12")
def test_another_thread_may_ask_which_envs_are_alive_and_has_to_wait_for_all_else(waiting_backend: type) -> None:
    with Gates(2, ops=["step"]) as gates, waiting_backend(gates.env_fns, num_workers=2) as venv:
        venv.reset()
        with in_a_thread(lambda: venv.step(ACTIONS)) as outcome:
            sleeps(venv)
            assert [venv.alive() for _ in range(100)] == [[True, True]] * 100
            assert (venv.waiting_id, venv.stats()["rounds"]) == ([0, 1], 2)
            for call in (venv.step, venv.send):
                with pytest.raises(RuntimeError, match=STEPPING):
                    call(ACTIONS)
            with pytest.raises(ConcurrentCallError, match=BUSY):
                venv.recv()
            gates.open(0, 1)
        assert outcome[0][0][:, 2].tolist() == [1, 1]


QUESTIONS: list[Callable[[Any], Any]] = [
    lambda venv: venv.waiting_id,
    lambda venv: venv.splits_obs,
    lambda venv: venv.alive(),
    lambda venv: venv.stats(),
]


@pytest.mark.guarantee("G9.12")
@pytest.mark.parametrize("ask", QUESTIONS)
def test_if_another_thread_closes_during_a_question_the_error_says_so(
    ask: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = DummyVectorEnv(counters(2))
    check = venv.engine.check_open
    monkeypatch.setattr(venv.engine, "check_open", lambda: (check(), venv.close()))
    with pytest.raises(ClosedError, match="cannot be called after close"):
        ask(venv)


class SlowActions:
    """Actions whose conversion to an array waits for an event."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        self.begun.set()
        assert self.may_end.wait(20)
        return np.array(ACTIONS)

    def __len__(self) -> int:
        return len(ACTIONS)


def test_a_thread_that_is_refused_late_does_not_break_the_call_of_the_other() -> None:
    """Both calls were checked before one of them began to change envs."""
    actions = SlowActions()
    with Gates(2, ops=["step"]) as gates, ThreadVectorEnv(gates.env_fns, num_workers=2) as venv:
        venv.reset()
        late, refusals = beside(lambda: venv.step(actions))
        assert actions.begun.wait(20)
        with in_a_thread(lambda: venv.step(ACTIONS)) as outcome:
            sleeps(venv)
            actions.may_end.set()
            late.join(20)
            with pytest.raises(ConcurrentCallError):
                venv.reset()
            gates.open(0, 1)
        assert STEPPING in str(refusals[0])
        assert outcome[0][0][:, 2].tolist() == [1, 1]


class Held:
    """Layer that stays in a call outside of the engine, until `may_end` is set."""

    def __init__(self, venv: Any) -> None:
        self.is_there, self.may_end = threading.Event(), threading.Event()
        super().__init__(venv)  # type: ignore[call-arg]

    def stay(self) -> None:
        self.is_there.set()
        assert self.may_end.wait(20)


class Stays(Held, RowWiseWrapper):
    """Stays in `step` after the engine's part."""

    def map_step(self, *columns: Any) -> Any:
        self.stay()
        return columns


class StaysInAFacade(Held, GymnasiumVectorEnv):
    """Stays between the halves of `step`."""

    def step_wait(self, timeout: float | None = None) -> Any:
        self.stay()
        return super().step_wait(timeout)


@pytest.mark.guarantee("G9.10")
@pytest.mark.parametrize("layer", [Stays, StaysInAFacade])
def test_another_thread_cannot_call_a_layer_whose_call_is_outside_of_the_engine(layer: Any) -> None:
    """A wrapper or facade did not see the call, and discarded or mixed up its state."""
    with DummyVectorEnv(counters(2)) as venv:
        layered = layer(venv)
        layered.reset()
        with in_a_thread(lambda: layered.step(ACTIONS)) as outcome:
            assert layered.is_there.wait(20)
            halves = [] if layer is Stays else [partial(layered.step_async, ACTIONS)]
            for call in (partial(layered.step, ACTIONS), layered.reset, *halves):
                with pytest.raises(ConcurrentCallError, match=BUSY):
                    call()
            layered.may_end.set()
        assert outcome[0][0][:, 2].tolist() == [1, 1]
        assert layered.step(ACTIONS)[0][:, 2].tolist() == [2, 2]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [2, pytest.param(20, marks=FULL)])
def test_random_programs_beside_threads_that_ask_and_close_agree_with_their_oracle(count: int) -> None:
    """Other threads call `alive`, `stats`, `waiting_id` and `close` at any moment: no round is disturbed."""
    run(Fuzz, [0], count=count)


def test_another_thread_finds_that_the_envs_of_dummy_are_stepping() -> None:
    with Gates(2, ops=["step"]) as gates, DummyVectorEnv(gates.env_fns) as venv:
        venv.reset()
        with in_a_thread(lambda: venv.step(ACTIONS)) as outcome:
            gates.await_arrival(0)
            for call in (partial(venv.step, ACTIONS), partial(venv.seed, 1), venv.reset):
                with pytest.raises(RuntimeError, match=STEPPING):
                    call()
            gates.open()
        assert outcome[0][0][:, 2].tolist() == [1, 1]


@pytest.mark.guarantee("G9.11")
@pytest.mark.parametrize("make", [DummyVectorEnv, ThreadVectorEnv])
def test_an_env_that_calls_its_own_vector_env_gets_an_error(make: Any) -> None:
    class Calls(Counter):
        def on_step(self) -> None:
            venv.alive()
            venv.step([0])

    with make([partial(Calls, 0)]) as venv:
        venv.reset()
        with pytest.raises(ConcurrentCallError):
            venv.step([0])
