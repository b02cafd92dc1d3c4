"""MaskablePPO of sb3-contrib on SB3VecEnv. It asks every env for its mask between two steps."""

import gymnasium as gym
import numpy as np
import pytest
import torch

pytest.importorskip("sb3_contrib")

from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import DummyVecEnv

from vecenv import SB3VecEnv, ShmemVectorEnv

ACTIONS, STEPS = 6, 16


class Masked(gym.Env):
    """Env that rewards the action in its observation. In each step, half of the other actions are illegal."""

    observation_space = spaces.Box(0, 1, (ACTIONS,), np.float32)
    action_space = spaces.Discrete(ACTIONS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.draw(), {}

    def draw(self):
        shown, *others = self.np_random.permutation(ACTIONS)
        self.shown, self.illegal = shown, others[: ACTIONS // 2]
        return np.eye(ACTIONS, dtype=np.float32)[shown]

    def action_masks(self):
        return np.isin(np.arange(ACTIONS), self.illegal, invert=True)

    def step(self, action):
        if action in self.illegal:
            raise ValueError(f"action {action} is illegal")
        self.t += 1
        reward = float(action == self.shown)
        return self.draw(), reward, False, self.t == STEPS, {}


def trained(envs):
    """Return the weights after 512 steps."""
    torch.set_num_threads(1)
    try:
        model = MaskablePPO("MlpPolicy", envs, n_steps=64, batch_size=64, learning_rate=3e-3, seed=3, device="cpu")
        model.learn(512)
    finally:
        envs.close()
    return {name: value.numpy() for name, value in model.policy.state_dict().items()}


@pytest.mark.slow
def test_maskable_ppo_takes_legal_actions_and_learns_the_same_as_on_dummy_vec_env():
    weights, want = trained(SB3VecEnv(ShmemVectorEnv([Masked] * 4))), trained(DummyVecEnv([Masked] * 4))
    np.testing.assert_equal(weights, want)
