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


class TestContinuousToDiscrete:
    def test_choices_are_evenly_spaced_from_low_to_high(self):
        env = ContinuousToDiscrete(Records(PLANE), [3, 4])
        assert env.action_space == spaces.MultiDiscrete([3, 4])
        assert [values.tolist() for values in env.mesh] == [[-1, 0, 1], [0, 1, 2, 3]]
        env.step(np.array([2, 1]))
        assert equal_bits(env.unwrapped.actions[0], np.array([1, 1], np.float32))
        batch = np.array([[0, 0], [2, 3], [0, 3]])  # a batch of rows
        assert equal_bits(env.action(batch), np.array([[-1, 0], [1, 3], [-1, 3]], np.float32))

    @pytest.mark.parametrize(("counts", "dtype"), [(7, np.float64), ([7, 7], np.float64), ([7, 6], np.float32)])
    def test_the_env_gets_the_floats_that_tianshou_hands_it(self, counts, dtype):
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

    def test_choices_that_do_not_exist_are_refused(self):
        env = ContinuousToDiscrete(Records(PLANE), 2)
        for action in ([0, 2], [-1, 0], [0], [0, 0, 0], [0.0, 1.0], 1):
            with pytest.raises(ValueError, match="action"):
                env.step(np.array(action))
        assert env.unwrapped.actions == []


class TestMultiDiscreteToDiscrete:
    def test_numbers_count_the_combinations_with_the_last_dimension_fastest_from_the_start_of_the_space(self):
        env = MultiDiscreteToDiscrete(Records(spaces.MultiDiscrete([2, 3])))
        assert env.action_space == spaces.Discrete(6)
        for number in range(6):
            env.step(number)
        assert [action.tolist() for action in env.unwrapped.actions] == [[i, j] for i in range(2) for j in range(3)]
        assert env.action(np.array([0, 5])).tolist() == [[0, 0], [1, 2]]  # a batch
        space = spaces.MultiDiscrete(np.array([2, 3]), dtype=np.int32, start=np.array([10, 20]))
        env = MultiDiscreteToDiscrete(Records(space))
        assert equal_bits(env.action(np.int64(4)), np.array([11, 21], np.int32))
        assert all(space.contains(env.action(i)) for i in range(6))

    def test_combinations_that_do_not_exist_are_refused(self):
        env = MultiDiscreteToDiscrete(Records(spaces.MultiDiscrete([2, 3])))
        for action in (6, -1, 1.0):
            with pytest.raises(ValueError, match=r"integer|out of bounds"):
                env.step(action)
        assert env.unwrapped.actions == []


class TestTruncatedAsTerminated:
    def test_every_end_is_a_termination(self):
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
