"""XuanCe's PPO on the env whose right value is known. Its vector envs reset in the same step."""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xuance
import yaml
from xuance.environment import REGISTRY_ENV, RawEnvironment, make_envs
from xuance.torch.agents import PPO_Agent

from benchmarks.time_limits.cut_env import ENVS, GAMMA, LENGTH, CutEnv, Ends

STEPS = 16


class Env(RawEnvironment):
    """Env with the interface of XuanCe."""

    def __init__(self, config: Namespace):
        super().__init__()
        self.env = CutEnv(config.ends, LENGTH - config.env_seed % ENVS)
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        self.max_episode_steps = LENGTH

    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset()

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    def render(self, *args: Any, **kwargs: Any) -> None:
        return None

    def close(self) -> None:
        return None


def ppo(ends: Ends) -> float:
    file = Path(xuance.__file__).parent / "configs/ppo/classic_control/CartPole-v1.yaml"
    basic = Path(xuance.__file__).parent / "configs/basic.yaml"
    REGISTRY_ENV["Cut"] = Env
    options = yaml.safe_load(basic.read_text()) | yaml.safe_load(file.read_text())
    options |= {
        "env_name": "Cut",
        "env_id": "Cut",
        "ends": ends,
        "env_seed": 0,
        "parallels": ENVS,
        "running_steps": 60 * STEPS * ENVS,
        "horizon_size": STEPS,
        "n_epochs": 10,
        "n_minibatch": 1,
        "learning_rate": 0.02,
        "gamma": GAMMA,
        "gae_lambda": 0.95,
        "use_obsnorm": False,
        "use_rewnorm": False,
        "use_grad_clip": False,
        "device": "cpu",
        "distributed_training": False,
        "use_linear_lr_decay": False,
        "end_factor_lr_decay": 1.0,
    }
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            agent = PPO_Agent(Namespace(**options), make_envs(Namespace(**options)))
            agent.train(60 * STEPS)
        finally:
            os.chdir(before)
    with torch.no_grad():
        found = agent.get_actions(np.ones((ENVS, 1), np.float32), return_dists=False, return_logpi=False)
    return float(np.mean(found["values"]))
