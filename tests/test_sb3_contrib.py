"""MaskablePPO of sb3-contrib on SB3VecEnv: it asks every env for its mask between two steps."""

import gymnasium as gym
import numpy as np
import pytest
import torch

pytest.importorskip("sb3_contrib")

from gymnasium import spaces
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

from vecenv import SB3VecEnv, ShmemVectorEnv

ACTIONS, STEPS = 6, 16


class Masked(gym.Env):
    """Pays for the action that it shows; half of the others are illegal, other ones in each step."""

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
    """A model that has learned for 2,048 steps, and its mean return."""
    torch.set_num_threads(1)
    try:
        model = MaskablePPO("MlpPolicy", envs, n_steps=64, batch_size=64, learning_rate=3e-3, seed=3, device="cpu")
        model.learn(2048)
        returned, _ = evaluate_policy(model, envs, n_eval_episodes=8, warn=False)
    finally:
        envs.close()
    return {name: value.numpy() for name, value in model.policy.state_dict().items()}, returned


@pytest.mark.slow
def test_maskable_ppo_takes_legal_actions_and_learns_the_same_as_on_dummy_vec_env():
    want, _ = trained(DummyVecEnv([Masked] * 4))
    weights, returned = trained(SB3VecEnv(ShmemVectorEnv([Masked] * 4)))
    assert returned > 0.9 * STEPS  # taking any legal action gives a third of that
    assert weights.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(weights[name], value, name)
