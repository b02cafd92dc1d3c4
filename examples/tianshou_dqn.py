"""DQN in the style of tianshou: collect(n_step=) into a replay buffer, learn, and test with collect(n_episode=).

python examples/tianshou_dqn.py [--fast]          docs/guides/from-others.md has tianshou's lines beside these
"""

import argparse

import numpy as np
import torch
from torch import nn

from collector import Collector

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="one epoch, to see that it works")
epochs, N, SIZE = 1 if parser.parse_args().fast else 15, 10, 20_000

torch.manual_seed(0)
torch.set_num_threads(1)  # more threads do not help a small network
net, target = (nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2)) for _ in range(2))
optimizer, rng, buffer, epsilon = torch.optim.Adam(net.parameters(), lr=1e-3), np.random.default_rng(0), [], 0.3


def greedy(obs):  # functions get numpy arrays (k, 4)
    with torch.no_grad():
        return net(torch.as_tensor(obs)).argmax(1).numpy()


def explore(obs):
    return np.where(rng.random(len(obs)) < epsilon, rng.integers(2, size=len(obs)), greedy(obs))


def add(stats):
    rows = stats.batch.flatten()  # at the end of an episode, next.obs is the last observation of the episode
    columns = (rows.obs, rows.action, rows.reward, rows.next.obs, rows.terminated)
    buffer.extend(zip(*(torch.as_tensor(column) for column in columns), strict=True))
    del buffer[:-SIZE]


train, test = (Collector(["CartPole-v1"] * N, policy, frames_per_batch=N) for policy in (explore, greedy))
with train, test:
    train.set_seed(0)
    test.set_seed(1)
    add(train.collect(n_step=1000, random=True))
    for _ in range(epochs):
        for update in range(1000):
            if update % 10 == 0:
                add(train.collect(n_step=100))
            picked = [buffer[i] for i in rng.integers(len(buffer), size=64)]
            obs, action, reward, after, terminated = map(torch.stack, zip(*picked, strict=True))
            with torch.no_grad():
                wanted = reward.float() + 0.99 * ~terminated * target(after).max(1).values
            optimizer.zero_grad()
            nn.functional.smooth_l1_loss(net(obs)[range(64), action], wanted).backward()
            optimizer.step()
            if update % 200 == 0:
                target.load_state_dict(net.state_dict())
        epsilon = max(0.05, 0.7 * epsilon)
        result = test.collect(n_episode=20, keep=False)
print(f"{epochs} epochs, test return {result.returns_stat.mean:.1f} +- {result.returns_stat.std:.1f}")
