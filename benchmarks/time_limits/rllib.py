"""RLlib's PPO on the env whose right value is known, in the local env runner."""

from __future__ import annotations

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.time_limits.cut_env import ENVS, GAMMA, Ends

STEPS = 16


def ppo(ends: Ends, *, ours: bool) -> float:
    ray.init(
        "local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        ignore_reinit_error=True,
    )
    mode = "vector_entry_point" if ours else "sync"
    config = (
        PPOConfig()
        .environment(f"benchmarks.time_limits.cut_env:Cut-{ends}-v0")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=ENVS, gym_env_vectorize_mode=mode)
        .training(
            train_batch_size_per_learner=STEPS * ENVS,
            minibatch_size=STEPS * ENVS,
            num_epochs=10,
            lr=0.02,
            gamma=GAMMA,
            lambda_=0.95,
            vf_clip_param=float("inf"),
            grad_clip=None,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[4], fcnet_activation="linear"))
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    for _ in range(40):
        algorithm.train()
    module = algorithm.learner_group._learner.module["default_policy"]  # the module of env runners has no critic
    with torch.no_grad():
        value = module.compute_values({Columns.OBS: torch.ones(1, 1)}).item()
    algorithm.stop()
    ray.shutdown()
    return value
