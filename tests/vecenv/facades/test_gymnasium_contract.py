"""What code for gymnasium's vector envs relies on, beside results: attributes, calls, and the end."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.support.backends import FULL
from tests.support.gymnasium_cases import Reports
from vecenv import AsyncVectorEnv, GymnasiumVectorEnv, SyncVectorEnv, make_vec
from vecenv.testing import CountingEnv


def cartpole(**options):
    return lambda: gym.make("CartPole-v1", **options)


def test_it_is_a_gymnasium_vector_env_with_the_expected_attributes():
    envs = SyncVectorEnv([cartpole(render_mode="rgb_array")] * 3)
    assert isinstance(envs, gym.vector.VectorEnv)
    assert envs.unwrapped is envs
    assert (envs.num_envs, envs.render_mode, envs.spec, envs.closed) == (3, "rgb_array", None, False)
    assert repr(envs) == "SyncVectorEnv(num_envs=3)"
    assert not hasattr(envs, "reward_space")


def test_the_class_of_gymnasium_is_a_direct_base():
    """skrl's `wrap_env` recognises a vector env by its direct bases."""
    threads = make_vec("CartPole-v1", backend="thread")
    for cls in (GymnasiumVectorEnv, SyncVectorEnv, AsyncVectorEnv, type(threads)):
        assert gym.vector.VectorEnv in cls.__bases__
    threads.close()


def test_the_reward_space_is_the_envs():
    """`MORecordEpisodeStatistics` of mo-gymnasium 1.3.2 reads it."""

    class TwoRewards(CountingEnv):
        reward_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    assert SyncVectorEnv([TwoRewards] * 2).unwrapped.reward_space == TwoRewards.reward_space


def test_metadata_is_a_copy_that_names_the_autoreset_mode():
    """The metadata of the env class is not modified (gymnasium #1623)."""
    before = dict(gym.make("CartPole-v1").unwrapped.metadata)
    for given, mode in [(mode, mode) for mode in AutoresetMode] + [(mode.value, mode) for mode in AutoresetMode]:
        envs = SyncVectorEnv([cartpole()] * 2, autoreset_mode=given)
        assert envs.metadata["autoreset_mode"] is envs.autoreset_mode is mode
        assert envs.metadata["render_fps"] == 50
    assert gym.make("CartPole-v1").unwrapped.metadata == before


def test_clients_find_the_processes_and_the_latest_observations_of_async_vector_env():
    envs = AsyncVectorEnv([cartpole()] * 3, num_workers=2)
    assert envs.observations.shape == (3, 4)
    assert np.array_equal(envs.reset(seed=0)[0], envs.observations)
    assert np.array_equal(envs.step(np.ones(3, int))[0], envs.observations)
    assert [process.is_alive() for process in envs.processes] == [True, True]
    envs.close()


def test_without_copies_the_same_writeable_array_comes_back_each_time():
    envs = SyncVectorEnv([Reports] * 3, copy=False)
    obs, _ = envs.reset()
    later, rewards, terminations, *_ = envs.step([1, 1, 1])
    assert np.shares_memory(obs, later)
    assert obs.flags.writeable
    assert (obs == 1).all()
    _, rewards_later, terminations_later, *_ = envs.step(iter([1, 1, 1]))
    assert not np.shares_memory(rewards, rewards_later)
    assert not np.shares_memory(terminations, terminations_later)


class Keywords(Reports):
    """Env whose method returns its keywords, and that starts a process."""

    def all(self, **keywords):
        return keywords

    def child_says(self):
        import multiprocessing

        queue = multiprocessing.get_context("fork").SimpleQueue()
        child = multiprocessing.get_context("fork").Process(target=queue.put, args=("hello\n",))
        child.start()
        said = queue.get()
        child.join()
        return said


def test_call_passes_all_keywords():
    """These keywords are also parameters of the engine's methods. gymnasium's SyncVectorEnv allows to call `reset`."""
    envs = SyncVectorEnv([Keywords] * 3)
    assert envs.call("all", id=2, op="x") == ({"id": 2, "op": "x"},) * 3
    envs.call_async("all", id=[1])
    assert envs.call_wait() == ({"id": [1]},) * 3
    assert [info for _, info in envs.call("reset")] == [{}] * 3


@pytest.mark.parametrize(("daemon", "most"), [(True, 1), pytest.param(False, 9, marks=FULL)])
def test_envs_may_start_processes_whatever_daemon_says_and_max_concurrency_is_the_number_of_workers(daemon, most):
    envs = AsyncVectorEnv([Keywords] * 2, daemon=daemon, max_concurrency=most)
    assert envs.call("child_says") == ("hello\n", "hello\n")
    assert envs.venv.num_workers == min(most, 2)
    envs.close(timeout=1.0, terminate=not daemon)
    envs.close()
    assert envs.venv.is_closed


@pytest.mark.parametrize("cls", [AsyncVectorEnv, SyncVectorEnv, GymnasiumVectorEnv])
def test_an_object_whose_constructor_was_refused_can_be_closed(cls):
    """Some versions of gymnasium call `close` when the object is deleted."""
    envs = cls.__new__(cls)
    envs.close(timeout=1.0)
    assert envs.closed
