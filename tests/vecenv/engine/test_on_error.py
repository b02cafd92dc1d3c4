"""`on_error="restart"` absorbs the failures of each env."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.faulty import Counter
from vecenv import DummyVectorEnv, ShmemVectorEnv, VectorEnvNormObs, WorkerDiedError


class Fails(Counter):
    """Env that raises or ends its process in each step after `fails` was set."""

    fails = ""

    def on_step(self) -> None:
        if self.fails == "raise":
            raise ValueError("fails")
        if self.fails == "die":
            os.kill(os.getpid(), signal.SIGKILL)


ENV_FNS = [partial(Fails, i) for i in range(2)]


def absorbed(venv: Any, env_id: int, how: str) -> Any:
    """Let an env fail in a step. Return the flags `truncated` of the step, and reset the envs that it ended."""
    venv.set_env_attr("fails", how, [env_id])
    truncated = venv.step([0, 0])[3]
    venv.reset(np.flatnonzero(truncated))
    venv.set_env_attr("fails", "", [env_id])
    return truncated.tolist()


@pytest.mark.guarantee("G8.9")
def test_a_failure_is_absorbed_five_times_per_minute_and_env() -> None:
    with DummyVectorEnv(ENV_FNS, on_error="restart") as venv:
        venv.reset()
        for _ in range(5):
            assert absorbed(venv, 1, "raise") == [False, True]
        with pytest.raises(ValueError, match="fails"):
            absorbed(venv, 1, "raise")
        venv.set_env_attr("fails", "", [1])
        venv.reset([1])
        assert absorbed(venv, 0, "raise") == [True, False]


@pytest.mark.guarantee("G8.12")
def test_the_death_of_a_worker_counts_for_the_env_that_was_running() -> None:
    with ShmemVectorEnv(ENV_FNS, num_workers=1, on_error="restart", max_restarts=1) as venv:
        venv.reset()
        assert absorbed(venv, 1, "die") == [True, True]
        assert absorbed(venv, 0, "raise") == [True, False]
        with pytest.raises(WorkerDiedError):
            absorbed(venv, 1, "die")


@pytest.mark.guarantee("G8.10")
def test_running_statistics_leave_out_the_row_of_a_failure() -> None:
    with VectorEnvNormObs(DummyVectorEnv(ENV_FNS, on_error="restart")) as venv:
        venv.reset()
        before = venv.get_obs_rms().count
        assert absorbed(venv.venv, 1, "raise") == [False, True]
        venv.set_env_attr("fails", "raise", [1])
        venv.step([0, 0])
        assert venv.get_obs_rms().count == before + 1
