"""The page "Works with" lists the tested versions. The libraries of the development extra are run here.

The slow tests of facades and examples run other trainers (sb3-contrib, tianshou, TorchRL, RLlib).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support.backends import FULL, NEEDS_DM_CONTROL
from tests.support.paths import ROOT
from tests.works_with import ROWS, STATUSES
from vecenv import DMControlEnv, PettingZooEnv, ShmemVectorEnv, nest
from vecenv.backends.host.own_process import ONE_PER_PROCESS

PAGE = (ROOT / "docs/guides/works-with.md").read_text("utf-8")
VERSIONS = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
PACKAGES = {
    "Stable-Baselines3": "stable-baselines3",
    "sb3-contrib": "sb3-contrib",
    "TorchRL": "torchrl",
    "RLlib": "ray",
    "gymnasium (with MuJoCo 3.17.0)": "gymnasium",
    "ALE": "ale-py",
    "PettingZoo": "pettingzoo",
    "dm_control": "dm-control",
    "EnvPool (1.2.5 on Python 3.11)": "envpool",
}
SUITES: dict[str, Any] = {
    "gymnasium": partial(gymnasium.make, "CartPole-v1"),
    "MuJoCo": partial(gymnasium.make, "HalfCheetah-v5"),
    "ALE": partial(gymnasium.make, "ale_py:ALE/Pong-v5"),
    "PettingZoo": partial(PettingZooEnv, "classic/rps-v2"),
    "dm_control": pytest.param(partial(DMControlEnv, "walker", "walk"), marks=NEEDS_DM_CONTROL),
}


def test_the_versions_on_the_page_are_those_that_the_tests_run_with() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+) \|", PAGE, re.MULTILINE))
    assert rows.keys() >= PACKAGES.keys()
    assert {row: rows[row] for row in PACKAGES} == {row: VERSIONS[package] for row, package in PACKAGES.items()}
    assert f"MuJoCo {VERSIONS['mujoco']}" in PAGE


def test_the_page_names_the_packages_that_get_a_process_per_env() -> None:
    table = PAGE.partition("## Envs that share state in their process")[2].partition("## ")[0]
    rows = re.findall(r"^\| ([\w-]+) \| [\d.]+ \| ([^|]+) \|", table, re.MULTILINE)
    named = {module: package for package, modules in rows for module in re.findall(r"`(\w+)`", modules)}
    assert named == ONE_PER_PROCESS


def test_the_table_of_packages_has_rows_that_the_command_understands() -> None:
    assert {row["status"] for row in ROWS.values()} == STATUSES
    assert {name for name, row in ROWS.items() if row["status"] == "one"} == set(ONE_PER_PROCESS.values())
    known = ROWS.keys() & VERSIONS.keys()
    assert known >= {"ale-py", "pettingzoo"}
    assert {name: ROWS[name]["version"] for name in known} == {name: VERSIONS[name] for name in known}


def played(env_fn: Callable[[], Any], seed: int, actions: list[Any]) -> list[Any]:
    """Return the observations and rewards of a single env."""
    env = env_fn()
    env.action_space.seed(seed)
    found = [(env.reset(seed=seed)[0], 0.0)]
    for _ in range(12):
        actions.append(env.action_space.sample())
        obs, reward, *_ = env.step(actions[-1])
        found.append((nest.map(np.copy, obs), reward))
    env.close()
    return found


@FULL
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*Overriding environment")
@pytest.mark.parametrize("env_fn", SUITES.values(), ids=SUITES)
def test_a_suite_gives_the_same_numbers_in_workers(env_fn: Callable[[], Any]) -> None:
    actions: list[list[Any]] = [[], []]
    alone = [played(env_fn, seed, own) for seed, own in enumerate(actions)]
    with ShmemVectorEnv([env_fn] * 2) as venv:
        rounds = [(venv.reset(seed=[0, 1])[0], np.zeros(2))]
        rounds += [venv.step(list(each))[:2] for each in zip(*actions, strict=True)]
    for obs, reward in rounds:
        for env_id, rows in enumerate(alone):
            own_obs, own_reward = rows.pop(0)
            np.testing.assert_array_equal(reward[env_id], own_reward)
            np.testing.assert_equal(nest.take(obs, env_id), own_obs)
