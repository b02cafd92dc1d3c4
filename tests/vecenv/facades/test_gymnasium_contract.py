"""What code for gymnasium's vector envs relies on, beside the results that random programs compare (test_programs.py).

A docstring with W and a number names a defect of gymnasium's vector envs that vecenv must not have. W3 is in the table
of messages (a wrong number of actions), W5 and W6 are in the table of faults (errors that cannot be pickled).
"""

import contextlib
import functools
import multiprocessing
import os

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers

from tests.support.backends import one_of
from tests.support.cases import Writes
from tests.support.gymnasium_cases import OURS, Echo, Foreign, OneBuffer, Remembers, Reports, cartpoles
from vecenv import AsyncVectorEnv, DummyVectorEnv, GymnasiumVectorEnv, SyncVectorEnv, VectorEnvNormObs, make_vec
from vecenv.testing import CountingEnv


class TwoRewards(CountingEnv):
    reward_space = spaces.Box(-1, 1, (2,), np.float32)


def test_it_has_the_classes_and_attributes_that_libraries_look_for():
    """skrl's `wrap_env` looks at direct bases. `MORecordEpisodeStatistics` of mo-gymnasium 1.3.2 reads
    `reward_space`.
    """
    with contextlib.closing(make_vec("CartPole-v1", backend="thread")) as threads:
        for cls in (GymnasiumVectorEnv, SyncVectorEnv, AsyncVectorEnv, type(threads)):
            assert gym.vector.VectorEnv in cls.__bases__
    envs = SyncVectorEnv(cartpoles(3, render_mode="rgb_array"))
    assert envs.unwrapped is envs
    assert (envs.num_envs, envs.render_mode, envs.spec, envs.closed) == (3, "rgb_array", None, False)
    assert repr(envs) == "SyncVectorEnv(num_envs=3)"
    assert not hasattr(envs, "reward_space")
    assert SyncVectorEnv([TwoRewards] * 2).unwrapped.reward_space == TwoRewards.reward_space


def test_metadata_is_a_copy_that_names_the_autoreset_mode():
    """The metadata of the env class is not modified (gymnasium #1623)."""
    before = dict(gym.make("CartPole-v1").unwrapped.metadata)
    for mode in AutoresetMode:
        for given in (mode, mode.value):
            envs = SyncVectorEnv(cartpoles(2), autoreset_mode=given)
            assert envs.metadata["autoreset_mode"] is envs.autoreset_mode is mode
            assert envs.metadata["render_fps"] == 50
    assert gym.make("CartPole-v1").unwrapped.metadata == before


def test_clients_find_the_processes_and_the_latest_observations_of_async_vector_env():
    with contextlib.closing(AsyncVectorEnv(cartpoles(2), max_concurrency=9)) as envs:
        assert envs.observations.shape == (2, 4)
        assert np.array_equal(envs.reset(seed=0)[0], envs.observations)
        assert np.array_equal(envs.step(np.ones(2, int))[0], envs.observations)
        assert [process.is_alive() for process in envs.processes] == [True, True]


def test_without_copies_the_same_writeable_array_comes_back_each_time():
    envs = SyncVectorEnv([Reports] * 3, copy=False)
    obs, _ = envs.reset()
    later, *columns = envs.step([1, 1, 1])
    assert np.shares_memory(obs, later)
    assert obs.flags.writeable
    assert (obs == 1).all()
    _, *columns_later = envs.step(iter([1, 1, 1]))
    assert not any(np.shares_memory(columns[k], columns_later[k]) for k in range(3))


class Calls(Reports):
    def all(self, **keywords):
        return keywords

    def child_says(self):
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=queue.put, args=("hello",))
        child.start()
        child.join()
        return queue.get()


def test_call_passes_all_keywords():
    """These keywords are also parameters of the engine's methods. gymnasium's SyncVectorEnv allows to call `reset`."""
    envs = SyncVectorEnv([Calls] * 2)
    assert envs.call("all", id=2, op="x") == ({"id": 2, "op": "x"},) * 2
    envs.call_async("all", id=[1])
    assert envs.call_wait() == ({"id": [1]},) * 2
    assert [info for _, info in envs.call("reset")] == [{}] * 2


def test_envs_may_start_processes_whatever_daemon_says_and_max_concurrency_is_the_number_of_workers():
    envs = AsyncVectorEnv([Calls] * 2, daemon=True, max_concurrency=1)
    assert envs.call("child_says") == ("hello", "hello")
    assert envs.venv.num_workers == 1
    envs.close(timeout=1.0, terminate=True)
    envs.close()
    assert envs.venv.is_closed


@pytest.mark.parametrize("cls", [AsyncVectorEnv, SyncVectorEnv, GymnasiumVectorEnv])
def test_an_object_whose_constructor_was_refused_can_be_closed(cls):
    """Some versions of gymnasium call `close` when the object is deleted."""
    envs = cls.__new__(cls)
    envs.close(timeout=1.0)
    assert envs.closed


# Defects of gymnasium's vector envs.


def test_a_reused_options_dict_resets_the_same_envs_again():
    """W10. Neither vecenv nor an env, which here writes into its options, changes the caller's dict."""
    envs = SyncVectorEnv([lambda: Writes(spaces.Discrete(3))] * 3)
    options = {"reset_mask": np.array([True, False, True]), "a": 1}
    envs.reset()
    for _ in range(2):
        envs.reset(options=options)
    assert list(options) == ["reset_mask", "a"]
    assert envs.get_attr("actions") == ([1, 1], [], [1, 1])


@pytest.mark.parametrize("kind", one_of(["sync", "async"]))
def test_final_observations_and_infos_are_those_of_the_last_step_though_the_env_reuses_its_arrays(kind):
    """W11"""
    with contextlib.closing(OURS[kind]([OneBuffer, lambda: OneBuffer(length=9)], autoreset_mode="SameStep")) as envs:
        envs.reset()
        envs.step([0, 0])
        obs, *_, infos = envs.step([0, 0])
        envs.step([0, 0])
    assert obs.tolist() == [[0, 0], [2, 2]]
    assert infos["final_obs"][0].tolist() == [2, 2]
    assert infos["final_info"]["own"].tolist() == [[2], [0]]
    assert infos["own"].tolist() == [[-1], [2]]


@pytest.mark.guarantee("G7.9")
def test_a_finished_env_is_not_stepped_unnoticed_when_autoreset_is_disabled():
    """W13"""
    envs = SyncVectorEnv([lambda: Reports(length=1), Reports], autoreset_mode="Disabled")
    envs.reset()
    envs.step([1, 1])
    with pytest.raises(gym.error.ResetNeeded):
        envs.step([1, 1])
    envs.reset(options={"reset_mask": np.array([True, False])})
    assert envs.step([1, 1])[0][:, 0].tolist() == [1, 2]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([np.array([3.0]), np.array([4.0])], [3.0, 4.0]), ([[1, 2], np.array([3, 4])], [[1, 2], [3, 4]])],
)
def test_rewards_of_one_number_are_numbers_and_vectors_are_rows(rewards, expected, mode):
    """W14: gymnasium #1445. Also in the step in which all envs are reset."""

    def make(reward):
        return gym.wrappers.TransformReward(Reports(length=2), lambda _: reward)

    envs = SyncVectorEnv([functools.partial(make, reward) for reward in rewards], autoreset_mode=mode)
    envs.reset()
    third = (0 * np.array(expected)).tolist() if mode == "NextStep" else expected
    assert [envs.step([1, 1])[1].tolist() for _ in range(4)] == [expected, expected, third, expected]


def test_every_env_is_made_once_and_none_in_this_process(tmp_path):
    """W15"""

    def env_fn():
        (tmp_path / f"{os.getpid()}-{len(list(tmp_path.iterdir()))}").touch()
        return Reports()

    AsyncVectorEnv([env_fn] * 3, num_workers=1).close()
    made = [path.name.split("-")[0] for path in tmp_path.iterdir()]
    assert len(made) == 3
    assert str(os.getpid()) not in made


@pytest.mark.guarantee("G7.12")
def test_normalised_observations_work_with_same_step_autoreset():
    """W16: gymnasium's observation wrappers refuse this mode. The last observation stays what the wrapper made."""
    venv = VectorEnvNormObs(DummyVectorEnv([lambda: Reports(length=2)] * 2))
    envs = GymnasiumVectorEnv(venv, autoreset_mode="SameStep")
    envs.reset()
    envs.step([0, 0])
    obs, *_, infos = envs.step([0, 0])
    last = infos["final_obs"][0]
    assert (last.dtype, last.shape) == (obs.dtype, (2,))
    assert max(np.abs(obs).max(), np.abs(last).max()) < 2, "normalised"
    masked, _ = envs.reset(options={"reset_mask": np.array([True, False])})
    assert masked[1].tolist() == obs[1].tolist()


def test_seeds_may_be_numbers_and_arrays_of_numpy():
    """W17"""
    envs = SyncVectorEnv([Remembers] * 2)
    for seed in (np.int64(3), np.array(3, np.int32), np.array([3, 4], np.uint8), (np.int32(3), np.uint8(4)), None):
        envs.reset(seed=seed, options={"a": 1})
    assert envs.get_attr("resets") == tuple([(s, {"a": 1})] * 4 + [(None, {"a": 1})] for s in (3, 4))


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


# Wrappers and trainers.


@pytest.mark.parametrize(("mode", "fails"), [("NextStep", False), ("SameStep", True)])
def test_numpy_to_torch_works_in_the_mode_in_which_it_works_around_gymnasiums_class(mode, fails):
    logs = []
    for cls in (gym.vector.SyncVectorEnv, SyncVectorEnv):
        envs = wrappers.NumpyToTorch(cls(cartpoles(3, 7), autoreset_mode=mode))
        log = [envs.reset(seed=3)]
        with pytest.raises((BufferError, TypeError)) if fails else contextlib.nullcontext():
            log.extend(envs.step(torch.ones(3, dtype=torch.int64)) for _ in range(30))
        logs.append(repr(log))
    assert logs[0] == logs[1]
