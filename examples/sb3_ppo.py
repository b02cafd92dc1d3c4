"""PPO of Stable-Baselines3 on eight CartPole envs in worker processes. Only an import changes. Needs vecenv[sb3].

python examples/sb3_ppo.py [--fast]
"""

import argparse

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

from vecenv.sb3 import SubprocVecEnv  # was: from stable_baselines3.common.vec_env import SubprocVecEnv

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="few steps, to see that it works")
fast = parser.parse_args().fast

torch.set_num_threads(1)  # more threads do not help a small network, and the workers need the CPUs
envs = VecMonitor(SubprocVecEnv([lambda: gym.make("CartPole-v1")] * 8))
try:
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=128, seed=0, device="cpu")
    model.learn(512 if fast else 50_000)
    mean, std = evaluate_policy(model, envs, n_eval_episodes=8)
finally:
    envs.close()

print(f"{model.num_timesteps} steps, then a mean return of {mean:.1f} over 8 episodes (deviation {std:.1f})")
