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
from tests.support.play_package import status
from tests.works_with import ROWS, STATUSES
from vecenv import DMControlEnv, ParallelVectorEnv, PettingZooEnv, ShmemVectorEnv, nest
from vecenv.backends.host.own_process import ONE_PER_PROCESS

PAGE = (ROOT / "docs/guides/works-with.md").read_text("utf-8")
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
    constraints = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    assert {row: rows[row] for row in PACKAGES} == {row: constraints[package] for row, package in PACKAGES.items()}
    assert f"MuJoCo {constraints['mujoco']}" in PAGE


def test_the_page_names_the_packages_that_get_a_process_per_env() -> None:
    table = PAGE.partition("## Envs that share state in their process")[2].partition("## ")[0]
    rows = re.findall(r"^\| ([\w-]+) \| [\d.]+ \| ([^|]+) \|", table, re.MULTILINE)
    named = {module: package for package, modules in rows for module in re.findall(r"`(\w+)`", modules)}
    assert named == ONE_PER_PROCESS


def test_the_table_of_packages_has_rows_that_the_command_understands() -> None:
    assert {row["status"] for row in ROWS.values()} == STATUSES
    assert {name for name, row in ROWS.items() if row["status"] == "one"} == set(ONE_PER_PROCESS.values())
    constraints = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    known = ROWS.keys() & constraints.keys()
    assert known >= {"ale-py", "pettingzoo"}
    assert {name: ROWS[name]["version"] for name in known} == {name: constraints[name] for name in known}


class Draws(gymnasium.Env[Any, Any]):
    """Env with a random observation, from a generator of a given kind. Episodes have four steps."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, ()), gymnasium.spaces.Discrete(2)

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self.kind == "random" or (self.kind == "first" and seed is None):
            self.np_random = np.random.default_rng()
        self.left = 4
        return self._draw(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return self._draw(), 1.0, self.left == 0, False, {}

    def _draw(self) -> Any:
        source = np.random if self.kind == "global" else self.np_random
        return np.float32(source.random())


@FULL
@pytest.mark.parametrize("kind", ["equal", "first", "random", "global"])
def test_the_command_for_packages_tells_envs_that_repeat_from_others(kind: str) -> None:
    assert status(partial(Draws, kind)) == kind


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


@FULL
def test_parallel_games_of_pettingzoo_run_by_their_ids() -> None:
    with ParallelVectorEnv(["classic/rps-v2"] * 2) as envs:
        envs.reset(seed=0)
        agents = envs.possible_agents
        _, rewards, *_ = envs.step({agent: np.array([0, i]) for i, agent in enumerate(agents)})
    assert {agent: rewards[agent].tolist() for agent in agents} == {agents[0]: [0.0, -1.0], agents[1]: [0.0, 1.0]}
