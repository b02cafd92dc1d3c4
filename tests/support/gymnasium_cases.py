"""Envs and helpers of the facades' tests. Workers import this module, so it imports little."""

import functools

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.support.compare import assert_same as assert_same
from tests.support.steps import Steps
from vecenv import AsyncVectorEnv, SyncVectorEnv

OURS = {
    "sync": SyncVectorEnv,
    "async": AsyncVectorEnv,
    "async-subproc": functools.partial(AsyncVectorEnv, shared_memory=False),
}


class Reports(Steps):
    """Env that returns the infos of a list in turn. The observation counts the steps; an episode has `length` steps."""

    observation_space = spaces.Box(0, 100, (2,), np.float32)
    action_space = spaces.Discrete(5)

    def __init__(self, *infos, length=100):
        self.infos, self.length = infos, length

    def observe(self):
        return np.full(2, self.taken, np.float32)

    def tell(self):
        return dict(self.infos[(self.taken - 1) % len(self.infos)]) if self.infos and self.taken else {}


class OneBuffer(Reports):
    """Env that returns the same array in each step, and overwrites it. The info does the same."""

    def __init__(self, length=2):
        super().__init__(length=length)
        self.buffer, self.own = np.zeros(2, np.float32), np.zeros(1)

    def observe(self):
        self.buffer[:] = self.taken
        return self.buffer

    def tell(self):
        self.own[:] = self.taken or -1
        return {"own": self.own}


class Echo(gym.Env):
    """Env that observes its last action, for any space."""

    def __init__(self, space):
        self.observation_space = self.action_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return action, 0.0, False, False, {}


class Remembers(gym.Env):
    """Env that keeps the arguments of its resets, and whose reward is the action."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(3)
    metadata = {"render_modes": []}

    def __init__(self):
        self.resets = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets.append((seed, options))
        return self.np_random.random(1, dtype=np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action), False, False, {}

    def add(self, a, b=0):
        return a + b


def cartpoles(n, max_episode_steps=10, **options):
    """Return CartPoles with short episodes: some are truncated, some terminate."""
    return [lambda: gym.make("CartPole-v1", max_episode_steps=max_episode_steps, **options)] * n


class Foreign:
    """Array of another library, for example jax, of which numpy can only read the content."""

    def __init__(self, values):
        self.values = np.array(values)

    def __array__(self, dtype=None, copy=None):
        return self.values.astype(dtype or self.values.dtype)

    def __len__(self):
        return len(self.values)
