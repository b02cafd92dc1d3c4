"""gymnasium's vector wrappers around vecenv's AsyncVectorEnv: normalised observations, scaled rewards, statistics.

python examples/gymnasium_wrappers.py [--fast]
"""

import argparse

import gymnasium as gym
import numpy as np
from gymnasium.wrappers.vector import ClipReward, NormalizeObservation, RecordEpisodeStatistics

from vecenv import AsyncVectorEnv  # replaces gymnasium.vector.AsyncVectorEnv; no other line changes

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="few steps, to see that it works")
steps = 600 if parser.parse_args().fast else 20_000

envs = AsyncVectorEnv([lambda: gym.make("CartPole-v1")] * 8)
envs = ClipReward(NormalizeObservation(RecordEpisodeStatistics(envs)), max_reward=0.5)
obs, infos = envs.reset(seed=0)
rewards, returns, seen = 0.0, [], []
for _ in range(steps):
    actions = (obs[:, 2] + obs[:, 3] > 0).astype(int)  # push the cart to the side to which the pole falls
    obs, reward, terminations, truncations, infos = envs.step(actions)
    rewards += reward.sum()
    seen.append(obs)
    if "episode" in infos:
        returns.extend(infos["episode"]["r"][infos["_episode"]])
envs.close()

print(
    f"{len(returns)} episodes, mean return {np.mean(returns):.1f}, rewards {rewards:.1f}, deviation {np.std(seen):.2f}"
)
