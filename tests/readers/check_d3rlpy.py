"""d3rlpy reads the exports of data sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import d3rlpy
import numpy as np
import pytest
from d3rlpy.dataset import InfiniteBuffer, ReplayBuffer

from collector import Dataset, Episode
from vecenv import nest

Run = Callable[[str], dict[str, Any]]

SETS = ["cartpole", "dict", "rgb", "stack_first", "stack_last", "tuple"]


def channels_first(array: np.ndarray) -> np.ndarray:
    is_picture = array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] < array.shape[1]
    return np.moveaxis(array, 3, 1) if is_picture else array.reshape(len(array), -1) if array.ndim == 1 else array


def columns_of(theirs: d3rlpy.dataset.EpisodeBase) -> list[np.ndarray]:
    several = isinstance(theirs.observations, (list, tuple))
    return [*(theirs.observations if several else [theirs.observations]), theirs.actions, theirs.rewards]


def same(theirs: d3rlpy.dataset.EpisodeBase, ours: Episode) -> None:
    steps, terminated = len(ours), bool(ours.terminated[-1])
    assert (theirs.terminated, theirs.transition_count) == (terminated, steps)
    *obs, actions, rewards = columns_of(theirs)
    for found, leaf in zip(obs, nest.leaves(ours.obs), strict=True):
        expected = channels_first(leaf)[: steps + 1 - terminated]
        assert found.dtype == leaf.dtype
        np.testing.assert_array_equal(found, expected)
    for found, array in ((actions, ours.action), (rewards, ours.reward)):
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found[:steps], array.reshape(steps, -1))


@pytest.mark.parametrize("name", SETS)
def test_bits(name: str) -> None:
    with open(f"data/{name}-d3rlpy.h5", "rb") as file:
        buffer = ReplayBuffer.load(file, InfiniteBuffer())
    for theirs, ours in zip(buffer.episodes, Dataset(f"data/{name}"), strict=True):
        same(theirs, ours)


def test_every_transition_arrives(run: Run) -> None:
    """The next observation of the last step of a truncated episode too, which MDPDataset drops."""
    buffer, rows = run("import d3rlpy")["buffer"], Dataset("data/cartpole").transitions()
    assert buffer.transition_count == len(rows)
    theirs = [
        buffer.transition_picker(episode, step)
        for episode in buffer.episodes
        for step in range(episode.transition_count)
    ]
    np.testing.assert_array_equal([each.observation for each in theirs], rows.obs)
    np.testing.assert_array_equal([each.terminal for each in theirs], rows.terminated)
    going = ~rows.terminated  # d3rlpy has zeros as the next observation of a terminated episode
    found = np.array([each.next_observation for each in theirs])
    np.testing.assert_array_equal(found[going], rows.next_obs[going])


@pytest.mark.parametrize("name", ["cartpole", "stack_last"])
def test_training(name: str) -> None:
    with open(f"data/{name}-d3rlpy.h5", "rb") as file:
        buffer = ReplayBuffer.load(file, InfiniteBuffer())
    learner = d3rlpy.algos.DiscreteCQLConfig(batch_size=4).create(device="cpu:0")
    learner.fit(buffer, n_steps=2, n_steps_per_epoch=2, show_progress=False, save_interval=100)
