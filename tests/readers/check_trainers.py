"""rsl-rl, rl-games and skrl learn the same weights over vecenv's vector envs and over gymnasium's, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import vecenv

Run = Callable[..., dict[str, Any]]
ENVS, STEPS, ITERATIONS = 4, 32, 14
"""14 iterations of 32 steps: two time limits of Pendulum, which has 200 steps, and a batch after the second one."""


def make_envs(module: Any, kind: str, n: int = ENVS) -> gym.vector.VectorEnv:
    return getattr(module, kind)(
        [lambda: gym.make("Pendulum-v1")] * n, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )


def rsl_rl(envs: gym.vector.VectorEnv, run: Run, folder: Path) -> Any:
    from rsl_rl.runners import OnPolicyRunner

    network = {"class_name": "MLPModel", "hidden_dims": [16], "activation": "tanh"}
    config = {
        "num_steps_per_env": STEPS,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": {"class_name": "PPO"},
        "actor": {**network, "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
        "critic": network,
    }
    runner = OnPolicyRunner(run("import VecEnv")["RslRlEnv"](envs, 200), config, log_dir=None, device="cpu")
    runner.learn(ITERATIONS)
    return [runner.alg.actor, runner.alg.critic]


def rl_games(envs: gym.vector.VectorEnv, run: Run, folder: Path) -> Any:
    from rl_games.torch_runner import Runner

    run("import env_configurations")["register"]("pendulum", lambda num_actors: envs)
    network = {
        "name": "actor_critic",
        "separate": False,
        "space": {
            "continuous": {
                "mu_activation": "None",
                "sigma_activation": "None",
                "mu_init": {"name": "default"},
                "sigma_init": {"name": "const_initializer", "val": 0},
                "fixed_sigma": True,
            }
        },
        "mlp": {
            "units": [16],
            "activation": "elu",
            "initializer": {"name": "default"},
            "regularizer": {"name": "None"},
        },
    }
    config = {
        "name": "pendulum",
        "env_name": "pendulum",
        "reward_shaper": {"scale_value": 0.1},
        "normalize_advantage": True,
        "value_bootstrap": True,
        "gamma": 0.99,
        "tau": 0.95,
        "learning_rate": 1e-3,
        "score_to_win": 1e9,
        "grad_norm": 1.0,
        "truncate_grads": True,
        "entropy_coef": 0.0,
        "bounds_loss_coef": 1e-4,
        "e_clip": 0.2,
        "clip_value": False,
        "num_actors": ENVS,
        "horizon_length": STEPS,
        "minibatch_size": STEPS,
        "mini_epochs": 4,
        "critic_coef": 2,
        "lr_schedule": None,
        "normalize_input": False,
        "device": "cpu",
        "device_name": "cpu",
        "max_epochs": ITERATIONS,
        "print_stats": False,
    }
    names = {"algo": {"name": "a2c_continuous"}, "model": {"name": "continuous_a2c_logstd"}}
    runner = Runner()
    runner.load({"params": {**names, "network": network, "config": config, "seed": 0}})
    agent = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
    agent.train()
    return [agent.model]


def skrl(envs: gym.vector.VectorEnv, run: Run, folder: Path) -> Any:
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.trainers.torch import SequentialTrainer

    class Policy(GaussianMixin, Model):
        def __init__(self, **spaces: Any) -> None:
            Model.__init__(self, **spaces, device="cpu")
            GaussianMixin.__init__(self)
            self.net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
            self.log_std = torch.nn.Parameter(torch.zeros(1))

        def compute(self, inputs: dict[str, Any], role: str = "") -> Any:
            return self.net(inputs["observations"]), {"log_std": self.log_std}

    class Value(DeterministicMixin, Model):
        def __init__(self, **spaces: Any) -> None:
            Model.__init__(self, **spaces, device="cpu")
            DeterministicMixin.__init__(self)
            self.net = torch.nn.Linear(3, 1)

        def compute(self, inputs: dict[str, Any], role: str = "") -> Any:
            return self.net(inputs["observations"]), {}

    env = run("import wrap_env", envs=envs)["env"]
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    models = {"policy": Policy(**spaces), "value": Value(**spaces)}
    config = PPO_CFG(rollouts=STEPS, mini_batches=2)
    config.experiment.directory, config.experiment.write_interval = str(folder), 0
    config.experiment.checkpoint_interval = 0
    memory = RandomMemory(memory_size=STEPS, num_envs=ENVS, device="cpu")
    agent = PPO(models=models, memory=memory, **spaces, device="cpu", cfg=config)
    settings = {"timesteps": ITERATIONS * STEPS, "headless": True, "disable_progressbar": True}
    settings["close_environment_at_exit"] = False
    SequentialTrainer(env=env, agents=agent, cfg=settings).train()
    return list(models.values())


@pytest.mark.parametrize("train", [rsl_rl, rl_games, skrl])
def test_weights_are_those_over_gymnasiums_vector_env(
    train: Callable[..., Any], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # rl-games writes into the working directory
    found = []
    for module, kind in ((gym.vector, "SyncVectorEnv"), (vecenv, "SyncVectorEnv"), (vecenv, "AsyncVectorEnv")):
        torch.manual_seed(0)
        np.random.seed(0)
        envs = make_envs(module, kind)
        found.append([model.state_dict() for model in train(envs, run, tmp_path)])
        assert envs.call("get_wrapper_attr", "_elapsed_steps") == (ITERATIONS * STEPS % 200,) * ENVS
        envs.close()
    theirs, *ours = found
    for each in ours:
        for left, right in zip(theirs, each, strict=True):
            assert left.keys() == right.keys()
            assert all(torch.equal(left[name], right[name]) for name in left)
