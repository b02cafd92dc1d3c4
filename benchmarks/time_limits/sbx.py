"""SBX's algorithms (SB3 in JAX) on the env whose right value is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from sbx import DQN, PPO, SAC
from stable_baselines3.common import vec_env

import vecenv.sb3
from benchmarks.time_limits.cut_env import GAMMA, Ends, cut_envs

ONES, ZEROS = np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32)


def ppo(ends: Ends, *, ours: bool) -> float:
    model = _learn(PPO, ends, ours, 3_200, net=[], n_steps=16, batch_size=64, learning_rate=0.05)
    return _mean(model.policy.vf_state, ONES)


def dqn(ends: Ends, *, ours: bool) -> float:
    options = {"learning_starts": 100, "gradient_steps": 4, "target_update_interval": 20}
    return _mean(_learn(DQN, ends, ours, 12_000, learning_rate=0.02, **options).policy.qf_state, ONES)


def sac(ends: Ends, *, ours: bool) -> float:
    options = {"learning_starts": 100, "tau": 0.1, "ent_coef": 0.0, "gradient_steps": 2}
    model = _learn(SAC, ends, ours, 4_000, continuous=True, learning_rate=0.01, **options)
    return _mean(model.policy.qf_state, ONES, ZEROS)


def _mean(state: Any, *inputs: np.ndarray) -> float:
    return float(np.asarray(state.apply_fn(state.params, *inputs)).mean())


def _learn(
    algorithm: Any, ends: Ends, ours: bool, steps: int, *, net: Any = (8,), continuous: bool = False, **options: Any
) -> Any:
    envs = (vecenv.sb3 if ours else vec_env).DummyVecEnv(cut_envs(ends, continuous=continuous))
    model = algorithm("MlpPolicy", envs, gamma=GAMMA, policy_kwargs={"net_arch": list(net)}, seed=0, **options)
    model.learn(steps)
    envs.close()
    return model
