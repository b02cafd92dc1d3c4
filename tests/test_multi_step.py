"""MultiStep: rewards, next observations and ends of several steps, beside a loop that says what they are."""

import numpy as np
import pytest
import torch
from cases import counting

from collector import AsyncDataCollector, MultiStep, SyncDataCollector


def loop(flat, n, gamma):
    """For each row: (sum of rewards, row of the last step)."""
    for row in range(flat.frames):
        total, last = flat.reward[row], row
        for k in range(1, n):
            if row + k >= flat.frames or flat.traj_ids[row + k] != flat.traj_ids[row]:
                break
            total, last = total + gamma**k * flat.reward[row + k], row + k
        yield total, last


@pytest.mark.parametrize("n", [1, 2, 3, 50])
@pytest.mark.parametrize("kind", [SyncDataCollector, AsyncDataCollector])
def test_it_joins_the_steps_of_an_episode(kind, n):
    def pair(batch):
        return batch, MultiStep(n, 0.9)(batch)

    with kind(counting(3, length=4), frames_per_batch=33, postproc=pair, backend="dummy") as collector:
        for _ in range(2):
            batch, joined = collector.next()
            flat = batch.flatten()
            rewards, last = zip(*loop(flat, n, 0.9), strict=True)
            last = np.array(last)
            np.testing.assert_allclose(joined.reward, rewards)
            assert np.array_equal(joined.obs, flat.obs)
            assert np.array_equal(joined.action, flat.action)
            assert np.array_equal(joined.next.obs, flat.next.obs[last])
            assert np.array_equal(joined.terminated, flat.terminated[last])
            assert np.array_equal(joined.truncated, flat.truncated[last])
            assert np.array_equal(joined.extras["steps"], last - np.arange(len(last)) + 1)
            np.testing.assert_allclose(joined.extras["discount"], 0.9 ** joined.extras["steps"])
            assert np.array_equal(joined.extras["original_reward"], flat.reward)


def test_batches_may_be_tensors():
    results = []
    for device in (None, "cpu"):
        postproc = MultiStep(3, 0.9)
        with SyncDataCollector(
            counting(2, length=4), frames_per_batch=20, postproc=postproc, storing_device=device
        ) as collector:
            collector.set_seed(0)
            results.append(collector.next())
    arrays, tensors = results
    assert isinstance(tensors.reward, torch.Tensor)
    np.testing.assert_allclose(tensors.reward.numpy(), arrays.reward)
    assert np.array_equal(tensors.next.obs.numpy(), arrays.next.obs)
    np.testing.assert_allclose(tensors.extras["discount"].numpy(), arrays.extras["discount"])


@pytest.mark.parametrize(("n", "gamma"), [(0, 0.9), (0.99, 3), (True, 0.9), (3, 0.0), (3, 1.5)])
def test_wrong_arguments_are_refused(n, gamma):
    with pytest.raises(ValueError, match=r"MultiStep\(n, gamma\) needs"):
        MultiStep(n, gamma)
