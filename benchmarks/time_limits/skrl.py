"""skrl's PPO on the env whose right value is known."""

from __future__ import annotations

import tempfile
from typing import Any

import gymnasium as gym
import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer

import vecenv
from benchmarks.time_limits.cut_env import ENVS, GAMMA, Ends, cut_envs

STEPS = 16


class Policy(CategoricalMixin, Model):
    def __init__(self, observation_space: Any, action_space: Any):
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        CategoricalMixin.__init__(self)
        self.net = torch.nn.Linear(1, 2)

    def compute(self, inputs: dict[str, Any], role: str = "") -> Any:
        return self.net(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    def __init__(self, observation_space: Any, action_space: Any):
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = torch.nn.Linear(1, 1)

    def compute(self, inputs: dict[str, Any], role: str = "") -> Any:
        return self.net(inputs["observations"]), {}


def ppo(ends: Ends, *, ours: bool, mode: str = "NextStep", bootstrap: bool = False) -> float:
    mode = gym.vector.AutoresetMode(mode)
    envs = wrap_env((vecenv if ours else gym.vector).SyncVectorEnv(cut_envs(ends), autoreset_mode=mode))
    spaces = envs.observation_space, envs.action_space
    models = {"policy": Policy(*spaces), "value": Value(*spaces)}
    config = PPO_CFG(
        rollouts=STEPS,
        mini_batches=1,
        discount_factor=GAMMA,
        learning_rate=0.05,
        value_clip=0,
        grad_norm_clip=0,
        time_limit_bootstrap=bootstrap,
    )
    with tempfile.TemporaryDirectory() as folder:
        config.experiment.directory = folder
        config.experiment.write_interval = config.experiment.checkpoint_interval = 0
        agent = PPO(
            models=models,
            memory=RandomMemory(memory_size=STEPS, num_envs=ENVS, device="cpu"),
            observation_space=spaces[0],
            action_space=spaces[1],
            device="cpu",
            cfg=config,
        )
        trainer = {"timesteps": 50 * STEPS, "headless": True, "disable_progressbar": True}
        SequentialTrainer(env=envs, agents=agent, cfg=trainer).train()
    return models["value"].net(torch.ones(1, 1)).item()
