"""Helpers of the tests of the SB3 facade."""

import gymnasium as gym
import numpy as np
from cases import equal_bits


def cartpoles(n, max_episode_steps=10, **options):
    """Short episodes, so that some are cut off and some end."""
    return [lambda: gym.make("CartPole-v1", max_episode_steps=max_episode_steps, **options)] * n


def closing(*envs):
    for env in envs:
        env.close()


def assert_same(got, want):
    """Equal in type, dtype and value, all the way down; a number of numpy's is as good as Python's."""
    if isinstance(want, dict):
        assert isinstance(got, dict)
        assert got.keys() == want.keys()
        for key in want:
            assert_same(got[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert type(got) is type(want)
        assert len(got) == len(want)
        for left, right in zip(got, want, strict=True):
            assert_same(left, right)
    elif isinstance(want, np.ndarray):
        assert equal_bits(got, want)
    else:
        assert got == want
