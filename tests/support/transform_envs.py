"""Envs of the tests of transforms. Workers import this module, so it imports little."""

import copy

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv import transforms as tf

IMAGE = spaces.Box(0, 255, (12, 10, 3), np.uint8)
VECTOR = spaces.Box(-2, 3, (5,), np.float32)
MIXED = spaces.Dict(
    {
        "x": spaces.Box(-1, 1, (3,), np.float64),
        "v": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        "which": spaces.Discrete(4, start=2),
        "many": spaces.MultiDiscrete([2, 3]),
        "pixels": IMAGE,
        "deep": spaces.Dict({"y": spaces.Box(0, 1, (2, 2), np.float32)}),
    }
)


class Samples(gymnasium.Env):
    """Env that observes samples of its space, which depend on the seed. Episodes have `length` steps, and alternately
    terminate and are truncated. The reward depends on the action.
    """

    def __init__(self, space=VECTOR, length=4, action_space=None):
        self.observation_space = copy.deepcopy(space)  # envs in other threads use separate copies
        self.action_space = spaces.Box(-2, 6, (2,), np.float32) if action_space is None else action_space
        self.length, self.t, self.episode = length, 0, -1

    def _obs(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        return self._obs(), {"episode": self.episode}

    def step(self, action):
        self.t += 1
        over, odd = self.t >= self.length, self.episode % 2 == 1
        reward = float(np.sum(action)) + float(self.np_random.normal())
        return self._obs(), reward, over and not odd, over and odd, {"t": self.t}


def plain(space, length):
    """Return a function that makes an env."""
    return lambda: Samples(space, length)


def normalised(**options):
    """Return an env with a VecNorm."""
    return tf.TransformedEnv(Samples(VECTOR, 5), tf.VecNorm(**options))


class Goes(Samples):
    """Env with a state. It fails in the steps `fails_at`, counted from its creation."""

    def __init__(self, space=VECTOR, length=4, fails_at=()):
        super().__init__(space, length)
        self.steps, self.fails_at = 0, fails_at

    def step(self, action):
        self.steps += 1
        if self.steps in self.fails_at:
            raise ValueError("boom in step")
        return super().step(action)

    def get_state(self):
        return self.t, self.episode, copy.deepcopy(self.np_random.bit_generator.state)

    def set_state(self, state):
        self.t, self.episode, generator = state
        self.np_random.bit_generator.state = copy.deepcopy(generator)
