"""Suites of envs, and envs that return what a published package returns, if this differs from gymnasium's own envs.

The page "Works with" has a row for each package.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from collector import Dataset, RecordEpisodes
from tests.fuzz.envs import assert_same
from tests.support.backends import FULL, NEEDS_DM_CONTROL, full
from vecenv import (
    DMControlEnv,
    DummyVectorEnv,
    EnvContractError,
    PettingZooEnv,
    ShmemVectorEnv,
    SyncVectorEnv,
    ThreadVectorEnv,
    nest,
)

STEPS = 12


class Published(gymnasium.Env[Any, Any]):
    """Env whose observations and rewards come from its generator. Episodes have STEPS steps."""

    observation_space: Any = spaces.Box(0, 1, (2,))
    action_space: Any = spaces.Discrete(3)
    info: Any = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), self.reward(), self.t == STEPS, False, self.info

    def observe(self) -> Any:
        return self.np_random.random(2, np.float32)

    def reward(self) -> Any:
        return np.float32(self.np_random.random())


class Foraging(Published):
    """As rware 2.0.0 and lbforaging 2.0.0: a tuple of observations and a list of rewards, one per agent."""

    observation_space = spaces.Tuple([spaces.Box(0, 1, (2,))] * 2)
    action_space = spaces.Tuple([spaces.Discrete(5)] * 2)

    def observe(self) -> Any:
        return super().observe(), super().observe()

    def reward(self) -> Any:
        return [0, np.float64(self.np_random.random())]


class Highway(Published):
    """As highway-env 1.12.1: each reset makes new spaces."""

    def reset(self, **kwargs: Any) -> Any:
        self.observation_space, self.action_space = spaces.Box(0, 1, (2,)), spaces.Discrete(3)
        return super().reset(**kwargs)


class MetaWorld(Published):
    """As metaworld 3.1.1: float64 observations outside of the bounds of their space."""

    observation_space = spaces.Box(0, 1, (2,), np.float64)

    def observe(self) -> Any:
        return self.np_random.random(2) - 7


class Grid(Published):
    """As gym_compat of grid2op 1.12.6: an OrderedDict with Python ints, and exceptions in a list of the info."""

    observation_space = spaces.Dict(line=spaces.Box(0, 1, (2,)), month=spaces.Discrete(13))
    info = {"exception": [ValueError("illegal")], "lines": []}

    def observe(self) -> Any:
        return OrderedDict(line=super().observe(), month=self.t)


def loop(make: Callable[[], Any], seed: int) -> list[Any]:
    """Return the actions and results of the env alone."""
    env, found = make(), []
    env.action_space.seed(seed)
    env.reset(seed=seed)
    for _ in range(STEPS):
        action = env.action_space.sample()
        obs, *others = env.step(action)
        found.append((action, nest.map(np.array, obs), *others))
    env.close()
    return found


SUITES = [
    partial(gymnasium.make, "CartPole-v1"),
    partial(gymnasium.make, "HalfCheetah-v5"),
    partial(gymnasium.make, "ale_py:ALE/Pong-v5"),
    partial(PettingZooEnv, "classic/rps-v2"),
    pytest.param(partial(DMControlEnv, "walker", "walk"), marks=[FULL, NEEDS_DM_CONTROL]),
]


@pytest.mark.guarantee("G1.1")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*Overriding environment")
@pytest.mark.parametrize("make", [DummyVectorEnv, *full([ThreadVectorEnv, ShmemVectorEnv])])
@pytest.mark.parametrize("env", [Foraging, Highway, MetaWorld, Grid, *full(SUITES[:-1]), SUITES[-1]])
def test_results_are_those_of_the_env_alone(env: Any, make: Any) -> None:
    alone = loop(env, 1), loop(env, 2)
    with make([env] * 2) as venv:
        venv.reset(seed=[1, 2])
        for want in zip(*alone, strict=True):
            obs, rew, terminated, truncated, infos = venv.step([action for action, *_ in want])
            for i, (_, last_obs, *others, info) in enumerate(want):
                assert_same(nest.map(np.asarray, nest.take(obs, i)), last_obs, "obs")
                for column, value in zip((rew, terminated, truncated), others, strict=True):
                    assert np.array_equal(column[i], value)
                assert str(infos[i]) == str({**info, "env_id": i})


def test_the_facade_of_gymnasium_and_data_sets_keep_a_reward_per_agent(tmp_path: Path) -> None:
    """gymnasium's SyncVectorEnv raises "setting an array element with a sequence"."""
    envs = RecordEpisodes(SyncVectorEnv([Foraging] * 2), tmp_path)
    envs.reset(seed=1)
    rewards = [envs.step(envs.action_space.sample())[1] for _ in range(STEPS)]
    envs.close()
    assert [each.shape for each in rewards] == [(2, 2)] * STEPS
    assert np.array_equal(Dataset(tmp_path)[0].reward, [each[0] for each in rewards])


def test_sb3_takes_one_reward_and_the_error_names_the_wrapper() -> None:
    sb3 = pytest.importorskip("vecenv.sb3")
    envs = sb3.DummyVecEnv([Foraging])
    envs.reset()
    with pytest.raises(EnvContractError, match=r"the shape \(2,\); .*TransformReward\(env, sum\)"):
        envs.step([(0, 0)])
    envs.close()
    envs = sb3.DummyVecEnv([lambda: gymnasium.wrappers.TransformReward(Foraging(), sum)])
    envs.seed(1)
    envs.reset()
    assert envs.step([(0, 0)])[1].tolist() == [np.float32(loop(Foraging, 1)[0][2][1])]
    envs.close()
