"""Wrappers of single envs that change actions, `terminated` or `truncated`."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from tests.support.cases import Records, equal_bits
from vecenv import ContinuousToDiscrete, DummyVectorEnv, MultiDiscreteToDiscrete, TruncatedAsTerminated
from vecenv.testing import CountingEnv

PLANE = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 3], np.float32))


@pytest.mark.parametrize(("counts", "dtype"), [(7, np.float64), ([7, 7], np.float64), ([7, 6], np.float32)])
def test_continuous_to_discrete_hands_on_the_floats_of_tianshou(counts, dtype):
    """tianshou's table widens float32 values to Python floats if all dimensions have equal numbers of choices."""
    env = ContinuousToDiscrete(Records(PLANE), counts)
    ends = zip(PLANE.low, PLANE.high, env.action_space.nvec, strict=True)
    table = np.array([np.linspace(*end) for end in ends], dtype=object)  # as in tianshou 2.0
    for choice in ([1, 2], [0, 5], [6, 3]):
        env.step(np.array(choice))
        expected = np.array([table[i][a] for i, a in enumerate(choice)])
        assert expected.dtype == dtype
        assert equal_bits(env.unwrapped.actions[-1], expected)
        assert equal_bits(env.action(np.array([choice] * 2)), np.stack([expected] * 2))


def test_choices_are_evenly_spaced_from_low_to_high():
    env = ContinuousToDiscrete(Records(PLANE), [3, 4])
    assert env.action_space == spaces.MultiDiscrete([3, 4])
    assert [values.tolist() for values in env.mesh] == [[-1, 0, 1], [0, 1, 2, 3]]


def test_numbers_count_the_combinations_with_the_last_dimension_fastest_from_the_start_of_the_space():
    env = MultiDiscreteToDiscrete(Records(spaces.MultiDiscrete([2, 3])))
    assert env.action_space == spaces.Discrete(6)
    for number in range(6):
        env.step(number)
    assert [action.tolist() for action in env.unwrapped.actions] == [[i, j] for i in range(2) for j in range(3)]
    assert env.action(np.array([0, 5])).tolist() == [[0, 0], [1, 2]]  # a batch
    space = spaces.MultiDiscrete(np.array([2, 3]), dtype=np.int32, start=np.array([10, 20]))
    env = MultiDiscreteToDiscrete(Records(space))
    assert equal_bits(env.action(np.int64(4)), np.array([11, 21], np.int32))


@pytest.mark.parametrize(
    ("env", "actions", "says"),
    [
        (ContinuousToDiscrete(Records(PLANE), 2), ([0, 2], [-1, 0], [0], [0, 0, 0], [0.0, 1.0], 1), "action"),
        (MultiDiscreteToDiscrete(Records(spaces.MultiDiscrete([2, 3]))), (6, -1, 1.0), "integer|out of bounds"),
    ],
    ids=["ContinuousToDiscrete", "MultiDiscreteToDiscrete"],
)
def test_choices_that_do_not_exist_are_refused(env, actions, says):
    for action in actions:
        with pytest.raises(ValueError, match=says):
            env.step(np.array(action))
    assert env.unwrapped.actions == []


def test_every_end_is_a_termination():
    env = TruncatedAsTerminated(TimeLimit(CountingEnv(length=2), 3))
    reported = []
    for _ in range(2):
        env.reset()
        reported += [env.step(0)[2:4] for _ in range(2)]
    assert reported == [(False, False), (True, False), (False, False), (True, True)]


def test_wrapped_envs_step_in_vector_envs_and_their_spec_makes_them_again():
    def make():
        env = ContinuousToDiscrete(gym.make("Pendulum-v1", max_episode_steps=2), action_per_dim=5)
        return TruncatedAsTerminated(MultiDiscreteToDiscrete(env))

    with DummyVectorEnv([make] * 3) as venv:
        assert venv.action_space == [spaces.Discrete(5)] * 3
        venv.reset(seed=0)
        venv.step([0, 2, 4])
        assert venv.get_env_attr("last_u") == [-2, 0, 2]
        assert venv.step([0, 2, 4])[2].tolist() == [True] * 3
    env = make()
    assert str(gym.make(env.spec)) == str(env)
    assert gym.make(env.spec).action_space == spaces.Discrete(5)
