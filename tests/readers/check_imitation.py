"""imitation takes the episodes of data sets, and trains with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from imitation.algorithms import bc
from imitation.data import rollout
from imitation.data.types import DictObs, TrajectoryWithRew

from collector import Dataset

Run = Callable[[str], dict[str, Any]]


def test_bits(run: Run) -> None:
    trajectories, data = run("TrajectoryWithRew")["trajectories"], Dataset("data/cartpole")
    for theirs, ours in zip(trajectories, data, strict=True):
        assert len(theirs.obs) == len(theirs) + 1
        assert theirs.terminal == ours.terminated[-1]
        for found, expected in ((theirs.obs, ours.obs), (theirs.acts, ours.action), (theirs.rews, ours.reward)):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
    rows, flat = data.transitions(), rollout.flatten_trajectories_with_rew(trajectories)
    for found, expected in ((flat.obs, rows.obs), (flat.next_obs, rows.next_obs), (flat.dones, rows.terminated)):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_dicts() -> None:
    for ours in Dataset("data/dict"):
        theirs = TrajectoryWithRew(DictObs(ours.obs), ours.action, None, bool(ours.terminated[-1]), ours.reward)
        for key, array in ours.obs.items():
            assert theirs.obs.get(key).dtype == array.dtype
            np.testing.assert_array_equal(theirs.obs.get(key), array)


def test_vector_rewards_do_not_fit() -> None:
    (ours, *_) = Dataset("data/rewards")
    with pytest.raises(ValueError, match="rewards must be 1D"):
        TrajectoryWithRew(ours.obs, ours.action, None, True, ours.reward)


def test_training(run: Run) -> None:
    trajectories, data = run("TrajectoryWithRew")["trajectories"], Dataset("data/cartpole")
    trainer = bc.BC(
        observation_space=data.observation_space,
        action_space=data.action_space,
        rng=np.random.default_rng(0),
        demonstrations=rollout.flatten_trajectories(trajectories),
    )
    trainer.train(n_batches=2)
