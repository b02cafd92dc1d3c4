"""tianshou's PPO and DQN on the env whose right value is known."""

from __future__ import annotations

from typing import Any

import tianshou.env
import torch
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode

import vecenv
from benchmarks.time_limits.cut_env import ENVS, GAMMA, Ends, cut_envs

STEPS = 16


class Net(torch.nn.Module):
    """Linear layer with the results that tianshou requires: the output, and a state for actors."""

    def __init__(self, out: int, *, stateful: bool = True):
        super().__init__()
        self.layer, self.stateful = torch.nn.Linear(1, out), stateful

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
        out = self.layer(torch.as_tensor(obs, dtype=torch.float32))
        return (out, state) if self.stateful else out


def _envs(ends: Ends, ours: bool) -> Any:
    return (vecenv if ours else tianshou.env).DummyVectorEnv(cut_envs(ends))


def ppo(ends: Ends, *, ours: bool) -> float:
    envs, critic = _envs(ends, ours), Net(1, stateful=False)
    policy = DiscreteActorPolicy(
        actor=Net(2),
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=envs.action_space[0],
    )
    algorithm = PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=0.05), gamma=GAMMA)
    buffer = VectorReplayBuffer(STEPS * ENVS, ENVS)
    collector = Collector(policy, envs, buffer)
    collector.reset()
    for _ in range(50):
        collector.collect(n_step=STEPS * ENVS)
        with policy_within_training_step(policy), torch_train_mode(algorithm):
            algorithm.update(buffer=buffer, batch_size=None, repeat=10)
        collector.reset_buffer(keep_statistics=True)
    collector.close()
    return critic.layer(torch.ones(1)).item()


def dqn(ends: Ends, *, ours: bool, steps: int = 1) -> float:
    envs, net = _envs(ends, ours), Net(2)
    policy = DiscreteQLearningPolicy(model=net, action_space=envs.action_space[0])
    options = {"gamma": GAMMA, "n_step_return_horizon": steps, "target_update_freq": 20}
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=0.05), **options)
    buffer = VectorReplayBuffer(STEPS * ENVS * 10, ENVS)
    collector = Collector(policy, envs, buffer)
    collector.reset()
    for _ in range(40):
        collector.collect(n_step=STEPS * ENVS, random=True)
        with policy_within_training_step(policy), torch_train_mode(algorithm):
            for _ in range(30):
                algorithm.update(buffer=buffer, sample_size=64)
    collector.close()
    return net.layer(torch.ones(1)).mean().item()
