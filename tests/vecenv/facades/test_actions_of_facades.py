"""Envs behind the facades get the same actions as in gymnasium and SB3: the same numbers in the same types."""

import functools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv as SB3DummyVecEnv

from tests.support.action_cases import ROWS, N, actions_of, arrived, described
from tests.support.backends import BACKENDS, and_ray
from tests.support.cases import Records, custom
from vecenv import DummyVectorEnv, GymnasiumVectorEnv, SB3VecEnv, SyncVectorEnv, VectorEnvNormObs, from_gymnasium
from vecenv.sb3 import DummyVecEnv

backend = and_ray(BACKENDS)
with_gymnasium = functools.cache(functools.partial(arrived, gym.vector.SyncVectorEnv))
PAIR = spaces.Box(-9, 9, (2,), np.float32)


@pytest.mark.guarantee("G5.6")
def test_envs_get_what_gymnasium_hands_them(backend):
    make = functools.partial(backend, num_workers=2)
    assert arrived(lambda env_fns: GymnasiumVectorEnv(make(env_fns))) == with_gymnasium()


@pytest.mark.guarantee("G5.6")
@pytest.mark.parametrize("make", [custom, lambda env_fns: VectorEnvNormObs(DummyVectorEnv(env_fns))])
def test_envs_of_own_workers_and_below_wrappers_get_it_too_and_with_sb3_what_sb3_hands_them(make):
    assert arrived(lambda env_fns: GymnasiumVectorEnv(make(env_fns))) == with_gymnasium()
    assert arrived(lambda env_fns: SB3VecEnv(make(env_fns)), ROWS) == arrived(SB3DummyVecEnv, ROWS)


@pytest.mark.guarantee("G5.7")
@pytest.mark.parametrize("batch", [torch.ones(N, 2, dtype=torch.float64), [torch.ones(2, dtype=torch.float64)] * N])
def test_tensors_arrive_as_arrays_of_their_own_dtype(batch):
    envs = GymnasiumVectorEnv(DummyVectorEnv([lambda: Records(PAIR)] * N))
    (got,), *_ = actions_of(envs, [batch])
    assert described(got) == described(np.ones(2))


@pytest.mark.guarantee("G5.8")
@pytest.mark.parametrize(("own", "kind"), [(SyncVectorEnv, gym.vector.SyncVectorEnv), (DummyVecEnv, SB3DummyVecEnv)])
def test_with_tensors_envs_play_as_the_originals_do_with_arrays(own, kind):
    """Pendulum-v1 gives other last bits in the originals with tensors, because it then computes in float32 tensors."""
    actions = np.random.default_rng(0).uniform(-2, 2, (50, 2, 1)).astype(np.float32)

    def played(envs, convert):
        envs.reset(seed=0) if hasattr(envs, "single_action_space") else (envs.seed(0), envs.reset())
        return np.array([envs.step(convert(action))[0] for action in actions])

    make = [functools.partial(gym.make, "Pendulum-v1")] * 2
    np.testing.assert_array_equal(played(own(make), torch.from_numpy), played(kind(make), np.asarray))


def test_check_actions_looks_at_the_value_not_at_the_type():
    envs = GymnasiumVectorEnv(DummyVectorEnv([lambda: Records(PAIR)] * N, check_actions=True))
    assert [described(got) for (got,) in actions_of(envs, [np.full((N, 2), 0.1)])] == [described(np.full(2, 0.1))] * N
    with pytest.raises(ValueError, match=r"action for env 0 is .*, which is not in its action space"):
        envs.step(np.full((N, 2), 9.1))


def test_envs_that_step_together_get_the_dtype_of_their_space():
    envs = GymnasiumVectorEnv(from_gymnasium(gym.vector.SyncVectorEnv([lambda: Records(spaces.Discrete(9))] * 2)))
    assert [list(map(described, got)) for got in actions_of(envs, np.ones((1, 2), np.int32))] == [
        [described(np.int64(1))]
    ] * 2
