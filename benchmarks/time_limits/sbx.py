"""SBX's algorithms (SB3 in JAX) on the env whose right value is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from sbx import DQN, PPO, SAC

from benchmarks.time_limits.cut_env import Ends
from benchmarks.time_limits.sb3 import learn

ONES, ZEROS = np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32)


def ppo(ends: Ends, *, ours: bool) -> float:
    model = learn(PPO, ends, ours, 3_200, n_steps=16, batch_size=64, learning_rate=0.05)
    return _mean(model.policy.vf_state, ONES)


def dqn(ends: Ends, *, ours: bool) -> float:
    options = {"learning_starts": 100, "gradient_steps": 4, "target_update_interval": 20}
    return _mean(learn(DQN, ends, ours, 12_000, net=[8], learning_rate=0.02, **options).policy.qf_state, ONES)


def sac(ends: Ends, *, ours: bool) -> float:
    options = {"learning_starts": 100, "tau": 0.1, "ent_coef": 0.0, "gradient_steps": 2}
    model = learn(SAC, ends, ours, 4_000, continuous=True, net=[8], learning_rate=0.01, **options)
    return _mean(model.policy.qf_state, ONES, ZEROS)


def _mean(state: Any, *inputs: np.ndarray) -> float:
    return float(np.asarray(state.apply_fn(state.params, *inputs)).mean())
