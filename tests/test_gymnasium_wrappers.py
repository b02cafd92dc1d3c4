"""gymnasium's wrappers for vector envs do the same around ours as around gymnasium's SyncVectorEnv."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import vector as wrappers
from gymnasium_cases import OURS, Untimed, assert_same

import vecenv
from vecenv.testing import CountingEnv

PENDULUM = [lambda: gym.make("Pendulum-v1", max_episode_steps=7)] * 3
CARTPOLE = [lambda: gym.make("CartPole-v1", max_episode_steps=7)] * 3
DICTS = [lambda i=i: CountingEnv(i, length=3 + i, form="dict") for i in range(3)]
PICTURES = [lambda: Pictures()] * 3
WITH_STATISTICS = [lambda: Untimed(gym.wrappers.RecordEpisodeStatistics(CARTPOLE[0]()))] * 3


class Pictures(gym.Env):
    """Pictures of its own noise, in episodes of four steps."""

    observation_space = spaces.Box(0, 255, (6, 6, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.picture(), {}

    def step(self, action):
        self.t += 1
        return self.picture(), 1.0, self.t == 4, False, {"t": self.t}

    def picture(self):
        return self.np_random.integers(0, 256, (6, 6, 3), dtype=np.uint8)


WRAPPERS = {
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
    "VectorizeTransformReward": (
        PENDULUM,
        lambda envs: wrappers.VectorizeTransformReward(
            envs, gym.wrappers.TransformReward, func=lambda reward: reward / 2
        ),
    ),
    "DictInfoToList": (WITH_STATISTICS, wrappers.DictInfoToList),
    "TransformObservation": (PENDULUM, lambda envs: wrappers.TransformObservation(envs, lambda obs: obs + 1)),
    "FilterObservation": (DICTS, lambda envs: wrappers.FilterObservation(envs, ["who"])),
    "FlattenObservation": (DICTS, wrappers.FlattenObservation),
    "GrayscaleObservation": (PICTURES, wrappers.GrayscaleObservation),
    "ReshapeObservation": (PICTURES, lambda envs: wrappers.ReshapeObservation(envs, (36, 3))),
    "RescaleObservation": (PICTURES, lambda envs: wrappers.RescaleObservation(envs, 0, 1)),
    "DtypeObservation": (PICTURES, lambda envs: wrappers.DtypeObservation(envs, np.float64)),
    "NormalizeObservation": (CARTPOLE, wrappers.NormalizeObservation),
    "TransformAction": (PENDULUM, lambda envs: wrappers.TransformAction(envs, lambda actions: actions / 2)),
    "ClipAction": (PENDULUM, wrappers.ClipAction),
    "RescaleAction": (PENDULUM, lambda envs: wrappers.RescaleAction(envs, -1, 1)),
    "TransformReward": (PENDULUM, lambda envs: wrappers.TransformReward(envs, lambda rewards: rewards / 2)),
    "ClipReward": (PENDULUM, lambda envs: wrappers.ClipReward(envs, -1, 0)),
    "NormalizeReward": (CARTPOLE, wrappers.NormalizeReward),
    "RecordEpisodeStatistics": (CARTPOLE, wrappers.RecordEpisodeStatistics),
    "all of a PPO": (
        PENDULUM,
        lambda envs: wrappers.NormalizeReward(
            wrappers.NormalizeObservation(wrappers.ClipAction(wrappers.RecordEpisodeStatistics(envs)))
        ),
    ),
}


def played(envs):
    """All that 30 wrapped steps return."""
    log = [envs.reset(seed=3)]
    envs.action_space.seed(1)
    for _ in range(30):
        obs, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
        if isinstance(infos, dict) and isinstance(infos.get("episode"), dict):
            infos["episode"].pop("t", None)
        log.append((obs, rewards, terminations, truncations, infos))
    return log


def outcome(base, wrap):
    """What `played` returns, or the error with which the wrapper refuses the vector env."""
    try:
        envs = wrap(base)
    except ValueError as error:
        base.close()
        return str(error)
    log = played(envs)
    envs.close()
    return log


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_does_the_same_as_around_gymnasiums_class(name, mode):
    env_fns, wrap = WRAPPERS[name]
    expected = outcome(gym.vector.SyncVectorEnv(env_fns, autoreset_mode=mode), wrap)
    assert_same(outcome(vecenv.AsyncVectorEnv(env_fns, autoreset_mode=mode), wrap), expected)


@pytest.mark.parametrize("kind", OURS)
def test_statistics_survive_the_reset_of_other_envs(kind):
    """gymnasium's vector envs take the mask out of the options, and the wrapper then forgets all envs."""
    envs = wrappers.RecordEpisodeStatistics(
        OURS[kind]([lambda: CountingEnv(0, length=2), lambda: CountingEnv(1, length=4)], autoreset_mode="Disabled")
    )
    envs.reset()
    for _ in range(2):
        envs.step([0, 0])
    envs.reset(options={"reset_mask": np.array([True, False])})
    envs.step([0, 0])
    *_, infos = envs.step([0, 0])
    assert infos["episode"]["l"].tolist() == [2, 4]
    envs.close()


def test_wrappers_around_each_env_go_by_make_vec():
    """Where a wrapper around the vector env is refused, in SAME_STEP mode, one around each env does it."""
    envs = vecenv.make_vec(
        "CartPole-v1", 2, wrappers=[gym.wrappers.NormalizeObservation], vector_kwargs={"autoreset_mode": "SameStep"}
    )
    envs.reset(seed=1)
    for _ in range(30):
        obs, *_, infos = envs.step([0, 0])
        if "final_obs" in infos:
            break
    assert obs.dtype == np.float32
    assert infos["_final_obs"].any()
    envs.close()
