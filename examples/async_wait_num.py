"""Eight envs with different speeds. Each call returns when two envs have finished a step.

python examples/async_wait_num.py [--fast]
"""

import argparse
import time

import gymnasium as gym
import numpy as np

from vecenv import ShmemVectorEnv

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="few steps, to see that it works")
calls = 200 if parser.parse_args().fast else 1_000


class Uneven(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (3,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        time.sleep(self.np_random.uniform(0, 0.01))  # seconds
        return np.full(3, action, np.float32), 1.0, False, False, {}


with ShmemVectorEnv([Uneven] * 8, wait_num=2) as venv:
    obs, info = venv.reset(seed=0)
    ids, counts = np.arange(8), np.zeros(8, int)
    for _ in range(calls):
        obs, rew, terminated, truncated, info = venv.step(np.ones(len(ids), int), ids)
        ids = np.array([row["env_id"] for row in info])  # the envs that are ready
        counts[ids] += 1

print(f"{counts.sum()} steps in {calls} calls, each environment between {counts.min()} and {counts.max()}")
