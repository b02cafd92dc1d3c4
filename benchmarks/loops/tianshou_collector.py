"""tianshou's collector on its vector envs: batches of 64 steps per env, and two epochs of Adam on each batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import tianshou.env
import torch
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.data import Collector, VectorReplayBuffer
from torch import nn

from benchmarks.loops.small_policy import STEPS, Learner, Logits


class Actor(nn.Module):
    """Network with the results that tianshou requires: logits and a state."""

    def __init__(self, policy: Logits) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
        return self.policy(torch.as_tensor(obs)), state


def collect(vector_env: str, env_id: str, num_envs: int, **env_kwargs: Any) -> Iterator[tuple[int, float]]:
    envs = getattr(tianshou.env, vector_env)([partial(gym.make, env_id, **env_kwargs)] * num_envs)
    frames, policy = STEPS * num_envs, Logits()
    learner = Learner(policy)
    acting = DiscreteActorPolicy(
        actor=Actor(policy),
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=envs.action_space[0],
    )
    buffer = VectorReplayBuffer(frames, num_envs)
    collector = Collector(acting, envs, buffer)
    collector.reset()
    try:
        while True:
            with torch.no_grad():
                collector.collect(n_step=frames)
            learning_began = time.perf_counter()
            batch = buffer[buffer.sample_indices(0)]
            learner.two_epochs(*(torch.as_tensor(column).float() for column in (batch.obs, batch.act, batch.rew)))
            yield len(batch.rew), time.perf_counter() - learning_began
            collector.reset_buffer()
    finally:
        collector.close()
