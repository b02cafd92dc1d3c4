"""Eight CartPole envs that step together. An env is reset when its episode ends.

python examples/sync.py [--fast]
"""

import argparse

import gymnasium as gym
import numpy as np

from vecenv import ShmemVectorEnv

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="few steps, to see that it works")
steps = 200 if parser.parse_args().fast else 20_000

with ShmemVectorEnv([lambda: gym.make("CartPole-v1")] * 8) as venv:
    obs, info = venv.reset(seed=0)  # seeds 0 to 7
    returns, finished = np.zeros(len(venv)), []
    for _ in range(steps):
        action = (obs[:, 2] > 0).astype(int)  # push the cart to the side to which the pole leans
        obs, rew, terminated, truncated, info = venv.step(action)
        returns += rew
        done = np.flatnonzero(terminated | truncated)
        if done.size:
            finished.extend(returns[done])
            returns[done] = 0
            obs[done], _ = venv.reset(done)  # resets only these envs

print(f"{steps * len(venv)} steps, {len(finished)} episodes, mean return {np.mean(finished):.1f}")
