"""SheepRL's agents on the env whose right value is known. Its vector envs reset in the same step."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import gymnasium as gym
import torch
from hydra import compose, initialize_config_module
from lightning import Fabric
from omegaconf import OmegaConf
from sheeprl.utils.utils import dotdict

import vecenv
from benchmarks.time_limits.cut_env import ENVS, GAMMA, LENGTH, CutEnv, Ends

STEPS = 16


def make_env(ends: Ends, rank: int) -> CutEnv:
    return CutEnv(ends, LENGTH - rank % ENVS)


@contextmanager
def no_files() -> Iterator[None]:
    """Run in a folder that is removed, because SheepRL logs to the working directory."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def train(name: str, ends: Ends, ours: bool, *options: str) -> Any:
    """Train, and return the agent."""
    module = importlib.import_module(f"sheeprl.algos.{name}.{name}")
    made = []

    def build(*args: Any, **kwargs: Any) -> Any:
        made.append(module_build(*args, **kwargs))
        return made[0]

    def vector_env(sync_env: bool) -> Any:
        cls = vecenv.SyncVectorEnv if ours else gym.vector.SyncVectorEnv
        return partial(cls, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)

    module_build = module.build_agent
    overrides = [
        f"exp={name}",
        "env.id=cut",
        "env.wrapper._target_=benchmarks.time_limits.sheeprl.make_env",
        "~env.wrapper.id",
        "~env.wrapper.render_mode",
        "+env.wrapper.rank=0",
        f"+env.wrapper.ends={ends}",
        f"env.num_envs={ENVS}",
        "env.sync_env=True",
        "env.capture_video=False",
        f"algo.gamma={GAMMA}",
        "algo.run_test=False",
        "metric.log_level=0",
        "checkpoint.save_last=False",
        "checkpoint.every=1000000",
        "model_manager.disabled=True",
        "buffer.memmap=False",
        *options,
    ]
    with initialize_config_module("sheeprl.configs", version_base="1.3"):
        cfg = dotdict(OmegaConf.to_container(compose("config", overrides), resolve=True, throw_on_missing=False))
    patches = {"build_agent": build, "get_vector_env_cls": vector_env}
    with no_files(), mock.patch.multiple(module, **patches):
        fabric = Fabric(accelerator="cpu", devices=1)
        fabric.launch()
        module.main(fabric, cfg)
    return made[0][0]


def ppo(ends: Ends, *, ours: bool) -> float:
    agent = train(
        "ppo",
        ends,
        ours,
        f"algo.rollout_steps={STEPS}",
        f"algo.total_steps={60 * STEPS * ENVS}",
        f"algo.per_rank_batch_size={STEPS * ENVS}",
        "algo.optimizer.lr=0.02",
    )
    with torch.no_grad():
        return agent({"state": torch.ones(1, 1)})[-1].item()
