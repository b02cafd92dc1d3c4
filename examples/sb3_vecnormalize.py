"""PPO and VecNormalize of Stable-Baselines3 on Pendulum in worker processes, saved and loaded. Needs vecenv[sb3].

python examples/sb3_vecnormalize.py [--fast]
"""

import argparse
import tempfile
from pathlib import Path

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from vecenv.sb3 import SubprocVecEnv  # was: from stable_baselines3.common.vec_env import SubprocVecEnv

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="few steps, to see that it works")
steps = 512 if parser.parse_args().fast else 200_000
torch.set_num_threads(1)  # more threads do not help a small network, and the workers need the CPUs


def make_envs(env_num):
    return VecMonitor(
        SubprocVecEnv([lambda: gym.make("Pendulum-v1")] * env_num)
    )  # below VecNormalize, so that returns are not scaled


with tempfile.TemporaryDirectory() as folder:
    envs = VecNormalize(make_envs(8), gamma=0.9)
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=128, gamma=0.9, learning_rate=1e-3, seed=0, device="cpu")
    model.learn(steps)
    model.save(Path(folder) / "model.zip")
    envs.save(str(Path(folder) / "statistics.pkl"))  # statistics of observations and rewards, which the policy needs
    envs.close()

    test = VecNormalize.load(str(Path(folder) / "statistics.pkl"), make_envs(8))
    test.training = test.norm_reward = False  # freeze the statistics, and do not scale rewards
    mean, std = evaluate_policy(PPO.load(Path(folder) / "model.zip", device="cpu"), test, n_eval_episodes=8)
    test.close()

print(f"{model.num_timesteps} steps, then a mean return of {mean:.1f} over 8 episodes (deviation {std:.1f})")
