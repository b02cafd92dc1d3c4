"""Defects of gymnasium's vector envs that vecenv must not have. The docstring of a test names the defect's number.

Others are in random programs (test_programs.py), in the table of messages (W3: a wrong number of actions), and in the
table of faults (W5, W6: errors that cannot be pickled).
"""

import os

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.support.backends import one_of
from tests.support.gymnasium_cases import OURS, Echo, Foreign, OneBuffer, Remembers, Reports
from vecenv import AsyncVectorEnv, DummyVectorEnv, GymnasiumVectorEnv, SyncVectorEnv, VectorEnvNormObs


def test_a_reused_options_dict_resets_the_same_envs_again():
    """W10"""
    envs = SyncVectorEnv([Remembers] * 3)
    options = {"reset_mask": np.array([True, False, True]), "a": 1}
    envs.reset()
    for _ in range(2):
        envs.reset(options=options)
    assert list(options) == ["reset_mask", "a"]
    assert [len(resets) for resets in envs.get_attr("resets")] == [3, 1, 3]


@pytest.mark.parametrize("kind", one_of(["sync", "async"]))
def test_final_observations_and_infos_are_those_of_the_last_step_though_the_env_reuses_its_arrays(kind):
    """W11"""
    envs = OURS[kind]([OneBuffer, lambda: OneBuffer(length=9)], autoreset_mode="SameStep")
    envs.reset()
    envs.step([0, 0])
    obs, *_, infos = envs.step([0, 0])
    envs.step([0, 0])
    assert obs.tolist() == [[0, 0], [2, 2]]
    assert infos["final_obs"][0].tolist() == [2, 2]
    assert infos["final_info"]["own"].tolist() == [[2], [0]]
    assert infos["own"].tolist() == [[-1], [2]]
    envs.close()


@pytest.mark.guarantee("G7.9")
def test_a_finished_env_is_not_stepped_unnoticed_when_autoreset_is_disabled():
    """W13"""
    envs = SyncVectorEnv([lambda: Reports(length=1), Reports, Reports], autoreset_mode="Disabled")
    envs.reset()
    envs.step([1, 1, 1])
    with pytest.raises(gym.error.ResetNeeded):
        envs.step([1, 1, 1])
    obs, _ = envs.reset(options={"reset_mask": np.array([True, False, False])})
    assert obs[:, 0].tolist() == [0, 1, 1]
    assert envs.step([1, 1, 1])[0][:, 0].tolist() == [1, 2, 2]


class Rewards(Reports):
    """Env with the same reward in each step of its episodes of two steps."""

    def __init__(self, reward):
        super().__init__(length=2)
        self.reward = reward

    def step(self, action):
        obs, _, *rest = super().step(action)
        return (obs, self.reward, *rest)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([np.array([3.0]), np.array([4.0])], [3.0, 4.0]), ([[1, 2], np.array([3, 4])], [[1, 2], [3, 4]])],
)
def test_rewards_of_one_number_are_numbers_and_vectors_are_rows(rewards, expected, mode):
    """W14: gymnasium #1445. Also in the step in which all envs are reset."""
    envs = SyncVectorEnv([lambda reward=reward: Rewards(reward) for reward in rewards], autoreset_mode=mode)
    envs.reset()
    nothing = (0 * np.array(expected)).tolist()
    assert [envs.step([1, 1])[1].tolist() for _ in range(4)] == [
        expected,
        expected,
        nothing if mode == "NextStep" else expected,
        expected,
    ]


@pytest.mark.parametrize("mode", one_of(["same", "different"]))
def test_every_env_is_made_once_and_none_in_this_process(tmp_path, mode):
    """W15"""

    def env_fn():
        (tmp_path / f"{os.getpid()}-{len(list(tmp_path.iterdir()))}").touch()
        return Reports()

    envs = AsyncVectorEnv([env_fn] * 3, observation_mode=mode, num_workers=1)
    made = [path.name.split("-")[0] for path in tmp_path.iterdir()]
    assert len(made) == 3
    assert str(os.getpid()) not in made
    envs.close()


def test_normalised_observations_work_with_same_step_autoreset():
    """W16: gymnasium's observation wrappers refuse this mode."""
    venv = VectorEnvNormObs(DummyVectorEnv([lambda: Reports(length=2)] * 2))
    envs = GymnasiumVectorEnv(venv, autoreset_mode="SameStep")
    envs.reset()
    envs.step([0, 0])
    obs, *_, infos = envs.step([0, 0])
    assert np.abs(obs).max() < 2
    assert infos["final_obs"][0].max() < 2
    masked, _ = envs.reset(options={"reset_mask": np.array([True, False])})
    assert masked[1].tolist() == obs[1].tolist()
    envs.close()


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (np.int64(7), [7, 8, 9]),
        (np.array(7, np.int32), [7, 8, 9]),
        (np.array([3, 4, 5], np.uint8), [3, 4, 5]),
        ((np.int32(1), np.uint8(2), 3), [1, 2, 3]),
        (None, [None] * 3),
    ],
    ids=repr,
)
def test_seeds_may_be_numbers_and_arrays_of_numpy(seed, expected):
    """W17"""
    envs = SyncVectorEnv([Remembers] * 3)
    envs.reset(seed=seed, options={"a": 1})
    assert envs.get_attr("resets") == tuple([(s, {"a": 1})] for s in expected)


@pytest.mark.guarantee("G5.1")
@pytest.mark.parametrize("foreign", [lambda values: torch.tensor(values), Foreign], ids=["torch", "any other"])
def test_actions_may_be_arrays_of_any_library(foreign):
    """W17"""
    space = spaces.Dict(a=spaces.Discrete(9), b=spaces.Box(-9, 9, (2,)))
    envs = SyncVectorEnv([lambda: Echo(space)] * 2)
    envs.reset()
    actions = {"a": foreign([3, 4]), "b": foreign([[1.0, 1.0], [1.0, 1.0]])}
    if foreign is not Foreign:
        actions["b"].requires_grad_()
    obs, *_ = envs.step(actions)
    assert (obs["a"].tolist(), obs["b"].tolist()) == ([3, 4], [[1, 1], [1, 1]])
    envs = SyncVectorEnv([lambda: Echo(space["a"])] * 2)
    envs.reset()
    assert envs.step(foreign([3, 4]))[0].tolist() == [3, 4]
