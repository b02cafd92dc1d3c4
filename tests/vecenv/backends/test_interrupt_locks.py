"""A KeyboardInterrupt at every bytecode of an update leaves statistics whole or unchanged, and no lock held."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.faulty import counters
from tests.support.interrupts import interrupted_at
from tests.support.threads import in_a_thread
from vecenv import RunningMeanStd, SharedState, ThreadVectorEnv
from vecenv.backends.memory import shared_state


def test_an_interrupted_update_of_a_shared_state_is_whole_or_absent_and_leaves_no_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_state, "LOCK_TIMEOUT", 0.5)
    state, n, done = SharedState({"a": np.zeros(3), "b": np.zeros(())}, share=True), 0, 0.0
    interrupted = True
    while interrupted:
        n += 1

        def update() -> None:
            with state.update() as arrays:
                arrays["a"] += 1
                arrays["b"] += 1

        interrupted = interrupted_at(n, update)
        values = state.read()
        assert values["a"].tolist() == [values["b"]] * 3
        assert values["b"] in (done, done + 1)
        done = float(values["b"])
        assert not shared_state.holds
    assert n > 100


def test_a_lock_that_an_interrupted_read_left_is_given_back_by_the_next_call_of_a_vector_env(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_state, "LOCK_TIMEOUT", 5.0)
    state, n = SharedState({"a": np.zeros(3)}, share=True), 0
    with ThreadVectorEnv(counters(1)) as venv:
        while interrupted_at(n := n + 1, state.read):
            venv.reset()
            in_a_thread(state.read)
    assert n > 50


def test_an_update_within_an_update_of_the_same_state_is_an_error() -> None:
    state = SharedState({"a": np.zeros(3)}, share=True)
    with state.update():
        with pytest.raises(RuntimeError, match="in an update"), state.update():
            pass
        with pytest.raises(RuntimeError, match="in an update"):
            state.read()
    assert state.read()["a"].tolist() == [0.0] * 3


@pytest.mark.parametrize("rows", [np.ones((2, 3)), np.array([[1.0, np.nan, 1.0], [1.0, 1.0, 1.0]])])
def test_an_interrupted_update_of_running_statistics_is_whole_or_absent(rows: np.ndarray) -> None:
    n, interrupted = 0, True
    while interrupted:
        n += 1
        for before in (np.zeros((0, 3)), np.arange(6.0).reshape(2, 3)):
            old, new, rms = RunningMeanStd(), RunningMeanStd(), RunningMeanStd()
            old.update(before)
            new.update(before)
            new.update(rows)
            rms.update(before)
            interrupted = interrupted_at(n, lambda rms=rms: rms.update(rows))
            states = [repr(each.state_dict()) for each in (rms, old, new)]
            rms.update(np.zeros((0, 3)))
            assert states[0] in states[1:] or rms.count == old.count == 0
    assert n > 50
