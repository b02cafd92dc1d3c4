"""Print what critics learn at a time limit: `python -m benchmarks.time_limits [NAME...]`.

A row per trainer that is installed: the learned value of an endless stream of rewards of 1 (gamma 0.9), for episodes
that are truncated after 5 steps, and for episodes that terminate there. Truncated, 10.0 is right. If both numbers are
equal, the trainer takes a time limit for an end. Terminated, about 2.7 is right for GAE, and 3.6 for targets of one
step; no return exceeds 4.1. NAME selects rows that contain the text.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from benchmarks.time_limits.cut_env import RIGHT

SEED = 0


class Row(NamedTuple):
    trainer: str
    mode: str
    package: str
    function: str  # of the module of this package with the same name as its file
    options: dict[str, Any] = {}
    over: str = "both"  # "own": the vector envs of the library or of gymnasium; "vecenv"; or "both"


SAME, NEXT = "SAME_STEP", "NEXT_STEP"
ROWS = [
    Row("SB3 PPO", "own", "stable-baselines3", "sb3.ppo"),
    Row("SB3 A2C", "own", "stable-baselines3", "sb3.a2c"),
    Row("SB3 DQN", "own", "stable-baselines3", "sb3.dqn"),
    Row("SB3 SAC", "own", "stable-baselines3", "sb3.sac"),
    Row("SBX PPO", "own", "sbx-rl", "sbx.ppo"),
    Row("SBX DQN", "own", "sbx-rl", "sbx.dqn"),
    Row("SBX SAC", "own", "sbx-rl", "sbx.sac"),
    Row("tianshou PPO", "own", "tianshou", "tianshou.ppo"),
    Row("tianshou DQN", "own", "tianshou", "tianshou.dqn"),
    Row("tianshou DQN, 3 steps", "own", "tianshou", "tianshou.dqn", {"steps": 3}),
    Row("CleanRL's ppo.py (its advantages)", NEXT, "torch", "recipes.cleanrl_ppo"),
    Row("skrl PPO", NEXT, "skrl", "skrl.ppo"),
    Row("skrl PPO, time_limit_bootstrap", NEXT, "skrl", "skrl.ppo", {"bootstrap": True}),
    Row("skrl PPO", SAME, "skrl", "skrl.ppo", {"mode": "SameStep"}),
    Row("skrl PPO, time_limit_bootstrap", SAME, "skrl", "skrl.ppo", {"mode": "SameStep", "bootstrap": True}),
    Row("rsl-rl PPO", SAME, "rsl-rl-lib", "rsl_rl.ppo"),
    Row("rsl-rl PPO", NEXT, "rsl-rl-lib", "rsl_rl.ppo", {"mode": "NextStep"}),
    Row("rsl-rl PPO, reward 10 at the end", SAME, "rsl-rl-lib", "rsl_rl.ppo", {"late": True}),
    Row("rl-games PPO", SAME, "rl-games", "rl_games.ppo"),
    Row("rl-games PPO", NEXT, "rl-games", "rl_games.ppo", {"mode": "NextStep"}),
    Row("rl-games PPO, reward 10 at the end", SAME, "rl-games", "rl_games.ppo", {"late": True}),
    Row("RLlib PPO", "own", "ray", "rllib.ppo"),
    Row("TorchRL GAE, GymWrapper(vector env)", SAME, "torchrl", "torchrl.wrapped", {"mode": "SameStep"}),
    Row("TorchRL GAE, GymWrapper(vector env)", "DISABLED", "torchrl", "torchrl.wrapped", {"mode": "Disabled"}),
    Row("TorchRL GAE, GymEnv(num_envs=4)", NEXT, "torchrl", "torchrl.gym_env", over="own"),
    Row("TorchRL GAE, SerialEnv", "own", "torchrl", "torchrl.serial", over="own"),
    Row("TorchRL GAE, ParallelEnv", "own", "torchrl", "torchrl.parallel", over="own"),
    Row("TorchRL GAE, split_trajs", "own", "torchrl", "torchrl.split"),
    Row("TorchRL GAE, split_trajs, set_truncated", "own", "torchrl", "torchrl.split", {"set_truncated": True}),
    Row("TorchRL GAE, SyncDataCollector", "own", "torchrl", "torchrl.batches", over="vecenv"),
    Row("AgileRL PPO", NEXT, "agilerl", "agilerl.ppo"),
    Row("AgileRL PPO", SAME, "agilerl", "agilerl.ppo", {"mode": "SameStep"}),
    Row("XuanCe PPO", "own", "xuance", "xuance.ppo", over="own"),
    Row("SheepRL PPO", "own", "sheeprl", "sheeprl.ppo"),
    Row("examples/ppo_cleanrl.py", NEXT, "torch", "recipes.ppo_cleanrl", over="vecenv"),
    Row("examples/collect.py", "own", "torch", "recipes.collect", over="vecenv"),
    Row("examples/tianshou_dqn.py", "own", "torch", "recipes.tianshou_dqn", over="vecenv"),
]


def learned(row: Row, ours: bool) -> list[str]:
    """Return the values that a trainer learns: truncated, and terminated."""
    import torch

    if row.over not in ("both", "vecenv" if ours else "own"):
        return ["-", "-"]
    values = []
    module, function = row.function.split(".")
    for ends in ("truncated", "terminated"):
        torch.manual_seed(SEED)
        options = {**row.options, "ours": ours} if row.over == "both" else row.options
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                found = getattr(importlib.import_module(f"benchmarks.time_limits.{module}"), function)(ends, **options)
            values.append(f"{found:.2f}")
        except Exception as error:
            values.append(type(error).__name__)
            print(f"{row.trainer}, {row.mode}, {ends}: {error!r}", file=sys.stderr)
    return values


def installed(package: str) -> str | None:
    """Return the version of a package, or None."""
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return None


def main(names: list[str]) -> int:
    print(f"right, truncated: {RIGHT:.2f}\n")
    print(f"{'trainer':42} {'version':10} {'mode':10} {'own: trunc':>10} {'term':>6} {'vecenv: trunc':>14} {'term':>6}")
    for row in ROWS:
        if names and not any(name in f"{row.trainer} {row.mode}" for name in names):
            continue
        found = installed(row.package)
        if found is None:
            print(f"{row.trainer:42} not installed")
            continue
        own, ours = learned(row, False), learned(row, True)
        print(
            f"{row.trainer:42} {found:10} {row.mode:10} {own[0]:>10} {own[1]:>6} {ours[0]:>14} {ours[1]:>6}", flush=True
        )
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows whose trainer or mode contains this text")
    raise SystemExit(main(parser.parse_args().names))
