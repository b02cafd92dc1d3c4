"""MultiStep: n-step rewards, next observations and ends equal the results of a plain loop."""

import numpy as np
import pytest
import torch

from collector import MultiStep, SyncDataCollector
from tests.support.cases import counting
from tests.support.collector_envs import kinds, pendulums


def loop(flat, n, gamma):
    """For each row: (sum of rewards, row of the last step)."""
    for row in range(flat.frames):
        total, last = flat.reward[row], row
        for k in range(1, n):
            if row + k >= flat.frames or flat.traj_ids[row + k] != flat.traj_ids[row]:
                break
            total, last = total + gamma**k * flat.reward[row + k], row + k
        yield total, last


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("n", [1, 3, 50])
@kinds
def test_it_joins_the_steps_of_an_episode(kind, n, device):
    options = {"frames_per_batch": 33, "backend": "dummy", "storing_device": device}
    with kind(counting(3, length=4), postproc=lambda batch: (batch, MultiStep(n, 0.9)(batch)), **options) as collector:
        for _ in range(2):
            batch, joined = collector.next()
            assert isinstance(joined.reward, torch.Tensor if device else np.ndarray)
            flat = batch.flatten()
            rewards, last = zip(*loop(flat, n, 0.9), strict=True)
            last = np.array(last)
            np.testing.assert_allclose(joined.reward, rewards, atol=1e-6)
            assert np.array_equal(joined.obs, flat.obs)
            assert np.array_equal(joined.action, flat.action)
            assert np.array_equal(joined.next.obs, flat.next.obs[last])
            assert np.array_equal(joined.terminated, flat.terminated[last])
            assert np.array_equal(joined.truncated, flat.truncated[last])
            assert np.array_equal(joined.extras["steps"], last - np.arange(len(last)) + 1)
            np.testing.assert_allclose(joined.extras["discount"], 0.9 ** joined.extras["steps"], atol=1e-6)
            assert np.array_equal(joined.extras["original_reward"], flat.reward)


def n_step_batch(fns, n, **options):
    with SyncDataCollector(fns, frames_per_batch=20, postproc=MultiStep(n, 0.9), **options) as collector:
        return collector.next()


@pytest.mark.parametrize("case", ["no episode ends", "episodes end", "split"])
def test_rows_of_a_tensordict_are_done_where_their_steps_end_an_episode_or_the_batch_ends(case):
    fns = pendulums(2) if case == "no episode ends" else counting(2, length=4)
    batch = n_step_batch(fns, 3, split_trajs=case == "split")
    last = np.diff(batch.env_ids, append=-1) != 0
    found = batch.to_tensordict()
    ends = batch.terminated | batch.truncated
    assert ends.any() == (case != "no episode ends")
    np.testing.assert_array_equal(batch.done, ends | last)
    np.testing.assert_array_equal(found["next", "terminated"][:, 0], batch.terminated)
    np.testing.assert_array_equal(found["next", "truncated"][:, 0], batch.truncated | (last & ~batch.terminated))
    np.testing.assert_array_equal(found["next", "done"][:, 0], batch.done)
    np.testing.assert_array_equal(found["steps_to_next_obs"], batch.extras["steps"])
