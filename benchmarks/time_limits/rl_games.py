"""rl-games' PPO on the env whose right value is known."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from rl_games.common import env_configurations, ivecenv
from rl_games.common import vecenv as registry
from rl_games.torch_runner import Runner

import vecenv
from benchmarks.time_limits.cut_env import ENVS, GAMMA, LENGTH, Ends, cut_envs


class Adapter(ivecenv.IVecEnv):
    """Vector env of gymnasium with the interface of rl-games."""

    def __init__(self, envs: gym.vector.VectorEnv):
        self.envs = envs

    def reset(self) -> np.ndarray:
        return self.envs.reset(seed=0)[0]

    def step(self, actions: np.ndarray) -> Any:
        obs, reward, terminated, truncated, _ = self.envs.step(actions)
        return obs, reward.astype(np.float32), terminated | truncated, {"time_outs": truncated}

    def get_env_info(self) -> dict[str, Any]:
        return {"observation_space": self.envs.single_observation_space, "action_space": self.envs.single_action_space}


def ppo(ends: Ends, *, ours: bool, mode: str = "SameStep", late: bool = False) -> float:
    module = vecenv if ours else gym.vector
    mode = gym.vector.AutoresetMode(mode)
    envs = module.SyncVectorEnv(cut_envs(ends, late=late), autoreset_mode=mode)
    registry.register("CUT", lambda *_, **__: Adapter(envs))
    env_configurations.register("cut", {"vecenv_type": "CUT", "env_creator": lambda **_: None})
    network = {
        "name": "actor_critic",
        "separate": True,
        "space": {"discrete": None},
        "mlp": {
            "units": [1],
            "activation": "None",
            "initializer": {"name": "default"},
            "regularizer": {"name": "None"},
        },
    }
    config = {
        "name": "cut",
        "env_name": "cut",
        "reward_shaper": {"scale_value": 1.0},
        "normalize_advantage": True,
        "gamma": GAMMA,
        "tau": 0.95,
        "learning_rate": 0.05,
        "score_to_win": 1e9,
        "grad_norm": 1e9,
        "truncate_grads": False,
        "entropy_coef": 0.0,
        "e_clip": 0.2,
        "clip_value": False,
        "num_actors": ENVS,
        "horizon_length": 16,
        "minibatch_size": 64,
        "mini_epochs": 5,
        "critic_coef": 2,
        "lr_schedule": None,
        "normalize_input": False,
        "device": "cpu",
        "device_name": "cpu",
        "max_epochs": 250 if late else 60,
        "print_stats": False,
    }
    params = {
        "algo": {"name": "a2c_discrete"},
        "model": {"name": "discrete_a2c"},
        "network": network,
        "config": config,
        "seed": 0,
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        before = os.getcwd()
        os.chdir(folder)
        try:
            runner = Runner()
            runner.load({"params": params})
            agent = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
            agent.train()
        finally:
            os.chdir(before)
    envs.close()
    # Before the last step of an episode, the observation of `late` has its one in place LENGTH - 1.
    row = torch.eye(LENGTH + 1)[None, LENGTH - 1] if late else torch.ones(1, 1)
    return agent.get_values({"obs": row}).item()
