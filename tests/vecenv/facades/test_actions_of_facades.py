"""Envs behind the facades get the same actions as in gymnasium and SB3: the same numbers in the same types."""

import functools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv as SB3DummyVecEnv

from tests.fuzz.envs import assert_same
from tests.support.backends import BACKENDS, and_ray
from tests.support.cases import Records, custom, discrete
from vecenv import DummyVectorEnv, GymnasiumVectorEnv, SB3VecEnv, SyncVectorEnv, VectorEnvNormObs, from_gymnasium
from vecenv.sb3 import DummyVecEnv

N = 3
PAIR = spaces.Box(-9, 9, (2,), np.float32)
TENTHS, INTS = np.arange(1, 2 * N + 1).reshape(N, 2) / 10, np.arange(N)
ONE, NUMBER, CHOICE = (*(spaces.Box(-9, 9, shape, np.float32) for shape in ((1,), ())), spaces.Discrete(9))
VALUES = [
    (PAIR, TENTHS),
    *((space, values) for space in (ONE, NUMBER) for values in (TENTHS[:, 0], TENTHS[:, :1])),
    *((CHOICE, values) for values in (INTS, INTS[:, None])),
    (discrete(9, np.int32), INTS),
    (spaces.MultiDiscrete([9, 9]), np.ones((N, 2), int)),
    (spaces.MultiBinary(2), np.ones((N, 2), np.int8)),
]
"""Actions of N envs per space. `(n,)` and `(n, 1)` are taken for each other."""
DTYPES = (np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8, np.bool_, object)
FORMS = [
    *(functools.partial(np.asarray, dtype=dtype) for dtype in DTYPES),
    np.asfortranarray,
    np.ndarray.tolist,
    lambda batch: tuple(batch.astype(np.float32)),
    lambda batch: [batch[0].astype(np.float32), batch[1], batch[2].tolist()],
]
"""Forms of a batch that users of other libraries pass."""
BATCHES = [(space, [form(values) for form in FORMS]) for space, values in VALUES]
BATCHES.append((CHOICE, [["up", "down", "left"]]))
PARTS = [(form(INTS), form(TENTHS)) for form in FORMS]
TREE = spaces.Dict(a=spaces.Discrete(9), b=spaces.Dict(c=PAIR))
TUPLE = spaces.Tuple((spaces.Discrete(9), PAIR))
OF_GYMNASIUM = [*BATCHES, (TREE, [{"a": a, "b": {"c": c}} for a, c in PARTS]), (TUPLE, PARTS)]
PAIRS = [list(zip(*parts, strict=True)) for parts in PARTS]
OF_SB3 = [*BATCHES, (TREE, [[{"a": a, "b": {"c": c}} for a, c in rows] for rows in PAIRS]), (TUPLE, PAIRS)]
backend = and_ray(BACKENDS)


def actions_of(envs, batches):
    """Step each batch once, and return the actions that each env received."""
    envs.reset()
    for batch in batches:
        envs.step(batch)
    return list(envs.get_attr("actions"))


def assert_envs_get_the_same(ours, theirs, cases=OF_GYMNASIUM):
    for space, batches in cases:
        made = [make([functools.partial(Records, space)] * N) for make in (ours, theirs)]
        got, want = (actions_of(envs, batches) for envs in made)
        assert_same(got, want, str(space))
        made[0].close()


@pytest.mark.guarantee("G5.6")
def test_envs_get_what_gymnasium_hands_them(backend):
    make = functools.partial(backend, num_workers=2)
    assert_envs_get_the_same(lambda env_fns: GymnasiumVectorEnv(make(env_fns)), gym.vector.SyncVectorEnv)


@pytest.mark.guarantee("G5.6")
@pytest.mark.parametrize("make", [custom, lambda env_fns: VectorEnvNormObs(DummyVectorEnv(env_fns))])
def test_envs_of_own_workers_and_below_wrappers_get_it_too_and_with_sb3_what_sb3_hands_them(make):
    assert_envs_get_the_same(lambda env_fns: GymnasiumVectorEnv(make(env_fns)), gym.vector.SyncVectorEnv)
    assert_envs_get_the_same(lambda env_fns: SB3VecEnv(make(env_fns)), SB3DummyVecEnv, OF_SB3)


@pytest.mark.guarantee("G5.7")
@pytest.mark.parametrize("batch", [torch.ones(N, 2, dtype=torch.float64), [torch.ones(2, dtype=torch.float64)] * N])
def test_tensors_arrive_as_arrays_of_their_own_dtype(batch):
    envs = GymnasiumVectorEnv(DummyVectorEnv([lambda: Records(PAIR)] * N))
    assert_same(actions_of(envs, [batch]), [[np.ones(2)]] * N, "actions")


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
    assert_same(actions_of(envs, [np.full((N, 2), 0.1)]), [[np.full(2, 0.1)]] * N, "actions")
    with pytest.raises(ValueError, match=r"action for env 0 is .*, which is not in its action space"):
        envs.step(np.full((N, 2), 9.1))


def test_envs_that_step_together_get_the_dtype_of_their_space():
    envs = GymnasiumVectorEnv(from_gymnasium(gym.vector.SyncVectorEnv([lambda: Records(spaces.Discrete(9))] * 2)))
    assert_same(actions_of(envs, np.ones((1, 2), np.int32)), [[np.int64(1)]] * 2, "actions")
