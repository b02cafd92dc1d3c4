"""TorchRL's advantages on the env whose right value is known, over each of its kinds of vector envs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, GymEnv, GymWrapper, ParallelEnv, SerialEnv
from torchrl.objectives.value import GAE

import collector
import vecenv
from benchmarks.time_limits.cut_env import ENVS, GAMMA, LENGTH, CutEnv, Ends, cut_envs

STEPS = 16


def gae(batches: Iterator[TensorDictBase]) -> float:
    """Train a critic with TorchRL's GAE on 40 batches, and return the value of the constant observation."""
    critic = torch.nn.Linear(1, 1)
    module = TensorDictModule(critic, in_keys=["observation"], out_keys=["state_value"])
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.1)
    estimate = GAE(gamma=GAMMA, lmbda=0.95, value_network=module)
    for _, batch in zip(range(40), batches, strict=False):
        with torch.no_grad():
            target = estimate(batch)["value_target"]
        for _ in range(5):
            loss = (critic(batch["observation"]) - target)[_used(batch)].pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return critic(torch.ones(1)).item()


def _used(batch: TensorDictBase) -> Any:
    mask = batch.get("mask", None)  # padding of split trajectories
    if mask is None:
        mask = batch.get(("collector", "mask"), None)
    return slice(None) if mask is None else mask.reshape(batch.shape)


@contextmanager
def collected(env: EnvBase, **options: Any) -> Iterator[Any]:
    batches = Collector(env, None, frames_per_batch=STEPS * ENVS, total_frames=-1, **options)
    try:
        yield iter(batches)
    finally:
        batches.shutdown()


def over(make: Callable[[Ends], EnvBase], ends: Ends, **options: Any) -> float:
    with collected(make(ends), **options) as batches:
        return gae(batches)


def wrapped(ends: Ends, *, ours: bool) -> float:
    """GymWrapper around a vector env in SAME_STEP mode."""
    mode = gym.vector.AutoresetMode.SAME_STEP
    envs = (vecenv if ours else gym.vector).SyncVectorEnv(cut_envs(ends), autoreset_mode=mode)
    return over(lambda _: GymWrapper(envs), ends)


def gym_env(ends: Ends) -> float:
    """GymEnv with num_envs, which makes gymnasium's AsyncVectorEnv."""
    return over(lambda _: GymEnv(f"benchmarks.time_limits.cut_env:Cut-{ends}-v0", num_envs=ENVS), ends)


def one(ends: Ends, first: int) -> EnvBase:
    return GymWrapper(CutEnv(ends, first))


def _each(ends: Ends) -> list[Any]:
    return [partial(one, ends, LENGTH - i) for i in range(ENVS)]


def serial(ends: Ends) -> float:
    return over(lambda ends: SerialEnv(ENVS, _each(ends)), ends)


def parallel(ends: Ends) -> float:
    return over(lambda ends: ParallelEnv(ENVS, _each(ends)), ends)


def converted(ends: Ends) -> float:
    return over(lambda ends: collector.to_torchrl(vecenv.DummyVectorEnv(cut_envs(ends))), ends)


def split(ends: Ends, *, ours: bool, set_truncated: bool = False) -> float:
    """Batches of padded trajectories."""
    options = {"split_trajs": True, "set_truncated": set_truncated}
    if not ours:
        return over(lambda ends: SerialEnv(ENVS, _each(ends)), ends, **options)
    with collector.SyncDataCollector(cut_envs(ends), None, frames_per_batch=STEPS * ENVS, **options) as batches:
        return gae(batch.to_tensordict() for batch in batches)


def batches(ends: Ends, *, flat: bool = False) -> float:
    """Batches of vecenv's collector."""
    with collector.SyncDataCollector(cut_envs(ends), None, frames_per_batch=STEPS * ENVS) as found:
        return gae((batch.flatten() if flat else batch).to_tensordict() for batch in found)
