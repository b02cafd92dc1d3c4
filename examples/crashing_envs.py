"""Envs that raise, hang and kill their process. The loop continues, with automatic or manual resets.

python examples/crashing_envs.py
"""

import os
import threading
from functools import partial

import gymnasium as gym
import numpy as np

from vecenv import ShmemVectorEnv


class Crashing(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 50, (1,)), gym.spaces.Discrete(2)

    def __init__(self, at):
        self.at = at

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.at:
            failures[self.at]()
        return np.full(1, self.steps, np.float32), 1.0, False, self.steps == 50, {}


failures = {9: lambda: 1 / 0, 16: lambda: threading.Event().wait(), 25: lambda: os.kill(os.getpid(), 9)}
env_fns = [partial(Crashing, at) for at in (0, *failures)]  # the first env never fails
options = {"num_workers": 4, "step_timeout": 0.5}  # a worker per env, so that a failure stops only one env

# With on_error="restart", a failure truncates the episode. Reset the env as after any other episode.
with ShmemVectorEnv(env_fns, on_error="restart", **options) as venv:
    obs, info = venv.reset(seed=0)
    for _ in range(30):
        obs, rew, terminated, truncated, info = venv.step(np.ones(4, int))
        for row in info[[row.get("restarted", False) for row in info]]:
            print(f"restarted env {row['env_id']}: {row['error'].partition(':')[0]}")
        if (done := terminated | truncated).any():
            obs[done], _ = venv.reset(done)

# With on_error="raise", the default, the error holds the rows of the other envs.
with ShmemVectorEnv(env_fns, **options) as venv:
    obs, info = venv.reset(seed=0)
    for _ in range(30):
        try:
            step = venv.step(np.ones(4, int))
        except Exception as error:
            if getattr(error, "partial", None) is None:
                raise  # no env has finished
            print(f"caught {type(error).__name__}, kept the rows of envs {error.partial.env_id.tolist()}")
            step = error.partial.merge_into(obs)  # marks the failed env as truncated
        obs, rew, terminated, truncated, info = step
        if (done := terminated | truncated).any():
            obs[done], _ = venv.reset(done)  # starts a new worker if needed
