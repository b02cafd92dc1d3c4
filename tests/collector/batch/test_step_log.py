"""Logs of steps, for collectors that keep observations where the policy saw them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collector.batch.arrival_log import ArrivalLog
from collector.batch.step_log import StepLog
from collector.episodes.env_episodes import Episodes
from vecenv import nest

torch = pytest.importorskip("torch")
ENVS, STEPS = 3, 6
FORMS: Any = {"arrays": lambda rows: rows, "tensors": lambda rows: {"a": torch.from_numpy(rows), "b": (rows,)}}


def played(log: StepLog, place: Any, batches: int = 3, steps: int = STEPS) -> list[Any]:
    """Return batches of envs whose observation is (env, episode, step). Episodes of env n have n + 2 steps."""
    episodes, found = log.episodes, list[Any]()
    state = np.stack([np.arange(ENVS), np.zeros(ENVS, np.int64), np.zeros(ENVS, np.int64)], 1)
    log.observe(log.all_ids, place(state.copy()))
    for _ in range(batches):
        log.begin(ENVS * steps)
        for _ in range(steps):
            log.act(log.all_ids, {"action": state[:, 2].copy()})
            state[:, 2] += 1
            ended = state[:, 2] == np.arange(ENVS) + 2
            log.receive(log.all_ids, place(state.copy()), np.ones(ENVS), ended, np.zeros(ENVS, np.bool_))
            episodes.taken += 1
            if (rows := ended.nonzero()[0]).size:
                log.end(rows, nest.take(place(state.copy()), rows), None)
                episodes.end(log.all_ids, rows, np.full(ENVS, {}), None)
                state[rows, 1] += 1
                state[rows, 2] = 0
                log.observe(rows, place(state[rows]))
        found.append(log.batch(all_steps=False))
    return found


@pytest.mark.parametrize("kind", [StepLog, ArrivalLog])
def test_a_column_may_be_a_tensor(kind: Any) -> None:
    arrays, tensors = (played(kind(Episodes(ENVS)), FORMS[name]) for name in FORMS)
    for left, right in zip(arrays, tensors, strict=True):
        for read in (lambda batch: batch.obs, lambda batch: batch.next.obs, lambda batch: batch.flatten().next.obs):
            assert isinstance(read(right)["a"], torch.Tensor)
            np.testing.assert_array_equal(read(right)["a"], read(left))
            np.testing.assert_array_equal(read(right)["b"][0], read(left))
        flat = left.flatten()
        assert (flat.next.obs[:, 1:] == np.stack([flat.obs[:, 1], flat.obs[:, 2] + 1], 1)).all()


@pytest.mark.parametrize("kind", [StepLog, ArrivalLog])
def test_after_a_large_batch_the_memory_shrinks(kind: Any) -> None:
    log, usual = kind(Episodes(ENVS)), kind(Episodes(ENVS))
    played(log, FORMS["arrays"], batches=1, steps=1000)
    small = [played(each, FORMS["arrays"], batches=2) for each in (log, usual)]
    np.testing.assert_array_equal(small[0][1].obs[..., 2], small[1][1].obs[..., 2])
    assert nest.nbytes(tuple(log.columns.values())) <= 2 * nest.nbytes(tuple(usual.columns.values()))
