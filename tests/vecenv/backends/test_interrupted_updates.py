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
@pytest.mark.parametrize(
    ("loads", "in_two_threads"), [(False, False), (True, True), pytest.param(False, True, marks=FULL)]
)
def test_an_interrupted_change_of_a_shared_state_is_whole_or_absent(loads: bool, in_two_threads: bool) -> None:
    """And no later update waits, also of a second thread. All arrays hold the same number, two as statistics."""

    def arrays_of(number: float) -> dict[str, np.ndarray]:
        arrays = {name: np.full(3, number) for name in ("a", "x_mean")}
        return {**arrays, "x_var": np.ones(3), "x_count": np.array(number), "b": np.array(number)}

    def update() -> None:
        with state.update() as arrays:
            arrays["a"] += 1
            arrays["b"] += 1
            arrays["x_count"] += 1
            arrays["x_mean"][...] = arrays["b"]

    state, n, done, interrupted = SharedState(arrays_of(0.0), share=True), 0, 0.0, True
    while interrupted:
        n += 1
        wanted = 1000.0 * n if loads else done + 1
        interrupted = interrupted_at(n, partial(state.replace, arrays_of(wanted)) if loads else update)
        values = state.read()
        assert values["b"] in (done, wanted)
        done = float(values["b"])
        if in_two_threads:
            in_a_thread(update)
            values, done = state.read(), done + 1
        for name in ("a", "x_mean", "x_count", "b"):
            np.testing.assert_allclose(values[name], done, rtol=1e-12)
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
            interrupted = interrupted_at(n, partial(rms.update, rows))
            states = [repr(each.state_dict()) for each in (rms, old, new)]
            rms.update(np.zeros((0, 3)))
            assert states[0] in states[1:] or rms.count == old.count == 0
    assert n > 50
