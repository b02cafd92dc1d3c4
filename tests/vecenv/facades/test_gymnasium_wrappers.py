"""gymnasium's wrappers for vector envs behave the same around vecenv's as around gymnasium's SyncVectorEnv."""

import contextlib
import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import vector as wrappers

import vecenv
from tests.support.backends import FULL, OLD_GYMNASIUM, one_of
from tests.support.gymnasium_cases import MODES, Untimed, assert_same
from vecenv.testing import CountingEnv

PENDULUM = [lambda: gym.make("Pendulum-v1", max_episode_steps=7)] * 3
CARTPOLE = [lambda: gym.make("CartPole-v1", max_episode_steps=7)] * 3
DICTS = [lambda i=i: CountingEnv(i, length=3 + i, form="dict") for i in range(3)]
WITH_STATISTICS = [lambda: Untimed(gym.wrappers.RecordEpisodeStatistics(CARTPOLE[0]()))] * 3


WRAPPERS = {
    "all of a PPO": (
        PENDULUM,
        lambda envs: wrappers.NormalizeReward(
            wrappers.NormalizeObservation(wrappers.ClipAction(wrappers.RecordEpisodeStatistics(envs)))
        ),
    ),
    "VectorizeTransformObservation": (
        PENDULUM,
        lambda envs: wrappers.VectorizeTransformObservation(
            envs, gym.wrappers.TransformObservation, func=lambda obs: obs * 2, observation_space=None
        ),
    ),
    "VectorizeTransformAction": (
        PENDULUM,
        lambda envs: wrappers.VectorizeTransformAction(
            envs, gym.wrappers.TransformAction, func=lambda action: action / 2, action_space=None
        ),
    ),
    "DictInfoToList": (WITH_STATISTICS, wrappers.DictInfoToList),
    "FilterObservation": (DICTS, lambda envs: wrappers.FilterObservation(envs, ["who"])),
    "FlattenObservation": (DICTS, wrappers.FlattenObservation),
    "NormalizeObservation": (CARTPOLE, wrappers.NormalizeObservation),
    "RescaleAction": (PENDULUM, lambda envs: wrappers.RescaleAction(envs, -1, 1)),
    "RecordEpisodeStatistics": (CARTPOLE, wrappers.RecordEpisodeStatistics),
}


def played(envs):
    """Return all results of 30 wrapped steps."""
    log = [envs.reset(seed=3)]
    envs.action_space.seed(1)
    for _ in range(30):
        obs, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
        if isinstance(infos, dict) and isinstance(infos.get("episode"), dict):
            infos["episode"].pop("t", None)
        log.append((obs, rewards, terminations, truncations, infos))
    return log


def outcome(base, wrap):
    """Return the result of `played`, or the error with which the wrapper refuses the vector env."""
    try:
        envs = wrap(base)
    except ValueError as error:
        base.close()
        return str(error)
    log = played(envs)
    envs.close()
    return log


@pytest.mark.parametrize("name", one_of([*WRAPPERS]))
def test_a_wrapper_does_the_same_as_around_gymnasiums_class(name):
    env_fns, wrap = WRAPPERS[name]
    for mode in MODES[: 1 if OLD_GYMNASIUM and "all" in name else 2]:
        expected = outcome(gym.vector.SyncVectorEnv(env_fns, autoreset_mode=mode), wrap)
        assert_same(outcome(vecenv.SyncVectorEnv(env_fns, autoreset_mode=mode), wrap), expected)


@pytest.mark.parametrize(("mode", "fails"), [("NextStep", False), ("SameStep", True)])
def test_numpy_to_torch_works_in_the_mode_in_which_it_works_around_gymnasiums_class(mode, fails):
    torch = pytest.importorskip("torch")
    logs = []
    for cls in (gym.vector.SyncVectorEnv, vecenv.SyncVectorEnv):
        envs = wrappers.NumpyToTorch(cls(CARTPOLE, autoreset_mode=mode))
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
    assert isinstance(envs.unwrapped, vecenv.GymnasiumVectorEnv)
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
    envs = wrappers.RecordEpisodeStatistics(
        vecenv.SyncVectorEnv(
            [lambda: CountingEnv(0, length=2), lambda: CountingEnv(1, length=4)], autoreset_mode="Disabled"
        )
    )
    envs.reset()
    for _ in range(2):
        envs.step([0, 0])
    envs.reset(options={"reset_mask": np.array([True, False])})
    envs.step([0, 0])
    *_, infos = envs.step([0, 0])
    assert infos["episode"]["l"].tolist() == [2, 4]
    envs.close()
