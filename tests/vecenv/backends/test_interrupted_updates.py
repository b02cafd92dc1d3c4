"""A KeyboardInterrupt at every bytecode of an update leaves statistics and shared state whole or unchanged."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.support.backends import FULL
from tests.support.interrupts import interrupted_at
from tests.support.threads import in_a_thread
from vecenv import RunningMeanStd, SharedState


@pytest.mark.guarantee("G13.3")
@pytest.mark.parametrize("in_two_slots", [False, pytest.param(True, marks=FULL)])
def test_an_interrupted_update_of_a_shared_state_is_whole_or_absent(in_two_slots: bool) -> None:
    """And no later update waits, also of a second thread."""
    arrays = {"a": np.zeros(3), "b": np.zeros(()), "x_mean": np.zeros(3), "x_var": np.ones(3), "x_count": np.zeros(())}
    state, n, done = SharedState(arrays, share=True), 0, 0.0

    def update() -> None:
        with state.update() as arrays:
            arrays["a"] += 1
            arrays["b"] += 1
            arrays["x_count"] += 1
            arrays["x_mean"][...] = arrays["b"]

    interrupted = True
    while interrupted:
        n += 1
        interrupted = interrupted_at(n, update)
        values = state.read()
        assert values["b"] in (done, done + 1)
        done = float(values["b"])
        if in_two_slots:
            in_a_thread(update)
            values, done = state.read(), done + 1
        for name in ("a", "x_mean"):
            np.testing.assert_allclose(values[name], [done] * 3, rtol=1e-12)
        assert values["x_count"] == done
    assert n > 100


def test_an_interrupted_load_is_whole_or_absent() -> None:
    state, n = SharedState({"a": np.zeros(3), "b": np.zeros(())}, share=True), 0

    def add_one() -> None:
        with state.update() as arrays:
            arrays["a"] += 1
            arrays["b"] += 1

    in_a_thread(add_one)
    interrupted = True
    while interrupted:
        n += 1
        before = float(state.read()["b"])
        number = 1000.0 * n
        arrays = {"a": np.full(3, number), "b": np.array(number)}
        interrupted = interrupted_at(n, partial(state.replace, arrays))
        values = state.read()
        assert values["a"].tolist() == [values["b"]] * 3
        assert values["b"] in (before, number)
        in_a_thread(add_one)
        assert state.read()["b"] == values["b"] + 1
    assert n > 30


@pytest.mark.guarantee("G8.19")
@pytest.mark.parametrize("nan", [False, pytest.param(True, marks=FULL)])
def test_an_interrupted_update_of_running_statistics_is_whole_or_absent(nan: bool) -> None:
    rows = np.ones((2, 3))
    rows[0, 1] = np.nan if nan else 1
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
