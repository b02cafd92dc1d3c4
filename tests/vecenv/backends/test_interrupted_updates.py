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
    """And no later update waits, also of a second thread."""
    state, n, done = SharedState({"a": np.zeros(3), "b": np.zeros(())}, share=True), 0, 0.0

    def update() -> None:
        with state.update() as arrays:
            arrays["a"] += 1
            arrays["b"] += 1

    interrupted = True
    while interrupted:
        n += 1
        wanted = 1000.0 * n if loads else done + 1
        loaded = {"a": np.full(3, wanted), "b": np.array(wanted)}
        interrupted = interrupted_at(n, partial(state.replace, loaded) if loads else update)
        values = state.read()
        assert values["b"] in (done, wanted)
        assert values["a"].tolist() == [values["b"]] * 3
        done = float(values["b"])
        if in_two_threads:
            in_a_thread(update)
            done += 1
            assert state.read()["b"] == done
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
