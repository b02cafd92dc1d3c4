"""rsl-rl's PPO on the env whose right value is known."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

import vecenv
from benchmarks.time_limits.cut_env import ENVS, GAMMA, LENGTH, Ends, cut_envs


class Adapter(VecEnv):
    """Vector env of gymnasium with the interface of rsl-rl."""

    num_actions, max_episode_length, device = 1, LENGTH, "cpu"
    cfg: dict[str, Any] = {}

    def __init__(self, envs: gym.vector.VectorEnv):
        self.envs, self.num_envs = envs, envs.num_envs
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.obs = self._group(envs.reset(seed=0)[0])

    def _group(self, obs: np.ndarray) -> TensorDict:
        return TensorDict({"policy": torch.as_tensor(obs)}, batch_size=[self.num_envs])

    def get_observations(self) -> TensorDict:
        return self.obs

    def step(self, actions: torch.Tensor) -> Any:
        obs, reward, terminated, truncated, _ = self.envs.step(actions.clamp(-1, 1).cpu().numpy())
        self.obs = self._group(obs)
        extras = {"time_outs": torch.as_tensor(truncated)}
        return self.obs, torch.as_tensor(reward).float(), torch.as_tensor(terminated | truncated), extras


def ppo(ends: Ends, *, ours: bool, mode: str = "SameStep", late: bool = False) -> float:
    module = vecenv if ours else gym.vector
    envs = module.SyncVectorEnv(
        cut_envs(ends, ENVS, continuous=True, late=late), autoreset_mode=gym.vector.AutoresetMode(mode)
    )
    linear = {"class_name": "MLPModel", "hidden_dims": [1], "activation": "identity"}
    config = {
        "num_steps_per_env": 16,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": {
            "class_name": "PPO",
            "gamma": GAMMA,
            "learning_rate": 0.05,
            "schedule": "fixed",
            "num_mini_batches": 1,
            "use_clipped_value_loss": False,
            "max_grad_norm": 1e9,
        },
        "actor": {**linear, "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
        "critic": linear,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        runner = OnPolicyRunner(Adapter(envs), config, log_dir=None, device="cpu")
        runner.learn(300 if late else 60)
    envs.close()
    # Before the last step of an episode, the observation of `late` has its one in place LENGTH - 1.
    row = torch.eye(LENGTH + 1)[None, LENGTH - 1] if late else torch.ones(1, 1)
    with torch.no_grad():
        return runner.alg.critic(TensorDict({"policy": row}, batch_size=[1])).item()
