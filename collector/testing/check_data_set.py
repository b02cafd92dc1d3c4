"""`check_data_set`: checks that a data set on disk keeps the guarantees of data sets."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from collector.episodes.episode import Episode
from collector.store.dataset import Dataset
from vecenv import nest

BATCH_SIZE = 256


def check_data_set(folder: str | os.PathLike[str]) -> None:
    """Check the committed episodes of a data set.

    - Each shard has the content that the manifest says.
    - Each episode is whole: it has an observation more than steps, and only its last step is terminated or truncated.
    - Returns are sums of the rewards.
    - Each transition comes once in a pass, with its own next observation.

    folder: folder that a job, `StoreWriter`, `RecordEpisodes` or a program of your own wrote.

    Raises `DatasetError` if the folder cannot be read, and AssertionError if a check fails.
    """
    data = Dataset(folder)
    assert not (problems := data.verify()), "; ".join(problems)
    numbers = data.numbers
    assert (np.diff(numbers) > 0).all(), f"the numbers of the episodes do not increase: {numbers}"
    begin = 0
    for number, length, total, episode in zip(numbers, data.lengths, data.total_rewards, data, strict=True):
        where = f"episode {number}"
        assert (episode.number, len(episode)) == (number, length), f"{where} is episode {episode.number}: {episode}"
        check_episode(episode, where)
        _equal(episode.total_reward, total, f"{where}: the return in the manifest")
        rows = data.take(np.arange(begin, begin + length))
        begin += int(length)
        _equal(rows.episode, np.full(length, number), f"{where}: the numbers of its transitions")
        for name, column in (
            ("obs", nest.take(episode.obs, slice(0, -1))),
            ("next_obs", nest.take(episode.obs, slice(1, None))),
            ("action", episode.action),
            ("reward", episode.reward),
            ("terminated", episode.terminated),
            ("truncated", episode.truncated),
        ):
            _equal(getattr(rows, name), column, f"{where}: {name} of its transitions")
    assert begin == data.steps, f"the episodes have {begin} steps, the data set says {data.steps}"
    if begin:
        drawn = np.concatenate([*data.batch_order(BATCH_SIZE, seed=0, passes=1)])
        _equal(np.sort(drawn), np.arange(begin), "the transitions of a pass")


def check_episode(episode: Episode, where: str) -> None:
    """Raise AssertionError unless the episode is whole."""
    steps = len(episode)
    assert steps, f"{where} has no steps"
    for name, more in (("obs", 1), ("action", 0), ("reward", 0), ("terminated", 0), ("truncated", 0), ("info", 0)):
        for leaf in nest.leaves(getattr(episode, name)):
            assert len(leaf) == steps + more, f"{where}: {name} has {len(leaf)} rows, expected {steps + more}"
    ends = np.flatnonzero(episode.terminated | episode.truncated)
    _equal(ends, [steps - 1], f"{where}: the steps that end it")


def _equal(found: Any, expected: Any, text: str) -> None:
    for mine, other in zip(nest.leaves(found), nest.leaves(expected), strict=True):
        if not _same(np.asarray(mine), np.asarray(other)):
            raise AssertionError(f"{text}: got {mine}, expected {other}")


def _same(mine: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(mine, other, equal_nan=mine.dtype.kind == other.dtype.kind == "f")
