"""Wrappers and trainers for gymnasium's vector envs work around vecenv's. test_programs.py draws most wrappers."""

import contextlib
import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import vector as wrappers

import vecenv
from tests.support.backends import FULL
from tests.support.gymnasium_cases import cartpoles
from vecenv.testing import CountingEnv


@pytest.mark.parametrize(("mode", "fails"), [("NextStep", False), ("SameStep", True)])
def test_numpy_to_torch_works_in_the_mode_in_which_it_works_around_gymnasiums_class(mode, fails):
    torch = pytest.importorskip("torch")
    logs = []
    for cls in (gym.vector.SyncVectorEnv, vecenv.SyncVectorEnv):
        envs = wrappers.NumpyToTorch(cls(cartpoles(3, 7), autoreset_mode=mode))
        log = [envs.reset(seed=3)]
        with pytest.raises((BufferError, TypeError)) if fails else contextlib.nullcontext():
            log.extend(envs.step(torch.ones(3, dtype=torch.int64)) for _ in range(30))
        envs.close()
        logs.append(repr(log))
    assert logs[0] == logs[1]


@FULL
def test_rllib_can_drive_ours():
    """Calls of RLlib's SingleAgentEnvRunner: an id with entry points, rows, lists of actions, infos as dicts."""
    gym.register(
        "RllibSingleAgentEnv-v0",
        entry_point=functools.partial(gym.make, "CartPole-v1", max_episode_steps=7),
        vector_entry_point="vecenv.facades.make_vec:RllibSingleAgentEnv-v0",
    )
    mode = gym.VectorizeMode.VECTOR_ENTRY_POINT
    try:
        envs = wrappers.DictInfoToList(gym.make_vec("RllibSingleAgentEnv-v0", 2, mode, backend="shmem"))
    finally:
        del gym.registry["RllibSingleAgentEnv-v0"]
    assert isinstance(envs.unwrapped, gym.vector.VectorEnv)
    obs, infos = envs.reset(seed=3, options=None)
    lengths, ended = [0, 0], np.zeros(2, np.bool_)
    for _ in range(9):
        assert all(obs[i] in envs.single_observation_space and type(infos[i]) is dict for i in range(envs.num_envs))
        actions = [envs.single_action_space.sample() for _ in range(envs.num_envs)]
        obs, rewards, terminateds, truncateds, infos = envs.step(actions)
        lengths = [0 if ended[i] else length + rewards[i] for i, length in enumerate(lengths)]
        ended = terminateds | truncateds
        assert all(lengths[i] == 7 or terminateds[i] for i in np.flatnonzero(ended))
    envs.close()


def test_statistics_survive_the_reset_of_other_envs():
    """gymnasium's vector envs remove the mask from the options, so that the wrapper forgets all envs."""
    env_fns = [lambda i=i: CountingEnv(i, length=2 + 2 * i) for i in range(2)]
    envs = wrappers.RecordEpisodeStatistics(vecenv.SyncVectorEnv(env_fns, autoreset_mode="Disabled"))
    envs.reset()
    for _ in range(2):
        envs.step([0, 0])
    envs.reset(options={"reset_mask": np.array([True, False])})
    envs.step([0, 0])
    assert envs.step([0, 0])[-1]["episode"]["l"].tolist() == [2, 4]
