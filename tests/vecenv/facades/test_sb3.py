"""The SB3 facade with SB3's algorithms and wrappers, and defects of SB3's vector envs.

test_programs.py compares results with SB3's DummyVecEnv. The docstring of a test names a defect (V1 to V9, S1 to S13).
"""

import os
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from tests.support.backends import FULL, one_of
from tests.support.cases import counting
from tests.support.gymnasium_cases import assert_same, cartpoles
from tests.support.simulators import Simulator
from vecenv import (
    DummyVectorEnv,
    SB3VecEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    SyncVectorEnv,
    VectorEnvWrapper,
    from_gymnasium,
    sb3,
)
from vecenv.testing import CountingEnv

same_step = partial(gym.vector.SyncVectorEnv, autoreset_mode="SameStep")


@FULL
def test_a_training_with_make_vec_env_gives_the_same_with_sb3s_class_and_with_vecenvs():
    torch.set_num_threads(1)  # several threads wait for each other on a busy machine
    options = {"start_method": None, "num_workers": 2, "on_error": "restart"}
    results = []
    for cls, kwargs in ((sb3.SubprocVecEnv, options), (DummyVecEnv, {})):
        env = make_vec_env("CartPole-v1", 8, seed=5, vec_env_cls=cls, vec_env_kwargs=kwargs)
        assert env.env_is_wrapped(Monitor) == [True] * 8
        model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=1, seed=3, device="cpu").learn(256)
        results.append((model.num_timesteps, evaluate_policy(model, env, n_eval_episodes=8)))
        env.close()
    assert results[0] == results[1]


# Vector envs of gymnasium, which SB3 does not accept (V9)


@pytest.mark.parametrize("mode", one_of(["sync", "async"]))
def test_a_vector_env_of_gymnasium_is_taken_with_the_same_results(mode):
    """In processes, gymnasium changes attributes of all envs only. multiprocessing never frees its shared memory."""
    fns = [lambda i=i: TimeLimit(CountingEnv(i, length=3 + i), 9) for i in range(3)]
    make = partial(gym.vector.AsyncVectorEnv, shared_memory=False) if mode == "async" else gym.vector.SyncVectorEnv
    envs = gym.wrappers.vector.ClipReward(make(fns, copy=False, autoreset_mode="SameStep"), max_reward=99)
    ours, theirs = SB3VecEnv(envs), DummyVecEnv(fns)
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    assert ours.seed(11) == theirs.seed(11)
    assert ours.env_is_wrapped(TimeLimit) == [mode == "sync"] * 3
    for each in (ours, theirs):
        each.set_attr("mark", 5)
        if mode == "sync":
            each.set_attr("mark", 6, [1])
    assert ours.get_attr("mark", [0, -1, 1]) == theirs.get_attr("mark", [0, -1, 1])
    if mode == "async":
        with pytest.raises(ValueError, match=r"call is for all its 3 envs, got \[1\]"):
            ours.set_attr("mark", 6, [1])
    with pytest.raises(ValueError, match="resets all its envs together: pass one dict of options"):
        ours.set_options([{}, {"t": 1}, {}])
    for each in (ours, theirs):
        each.set_options([{"t": 1}] * 3)
    assert_same(ours.reset(), theirs.reset())
    for action in np.random.default_rng(0).integers(0, 9, (20, 3)):
        (*got, infos), (*want, own_infos) = ours.step(action), theirs.step(action)
        assert_same(got, want)
        for info, own in zip(infos, own_infos, strict=True):
            assert_same(info.pop("terminal_observation", None), own.pop("terminal_observation", None))
        assert infos == own_infos  # vector envs of gymnasium return numbers of numpy
        assert ours.reset_infos == theirs.reset_infos
    ours.close()
    assert envs.unwrapped.closed


class ManiSkill(Simulator):
    """Vector env like that of mani-skill 3.0.1: results are tensors, and infos have an `episode` without a return."""

    def step(self, actions):
        *result, infos = super().step(actions)
        return *result, {name.replace("final_obs", "final_observation"): column for name, column in infos.items()}

    def get_attr(self, name):
        raise RuntimeError("To get an attribute get it from the .env property of this object")


def test_a_simulator_of_tensors_gives_arrays_to_wrappers_of_sb3():
    env = SB3VecEnv(ManiSkill(torch, 2, more=True))
    assert (env.render_mode, env.get_attr("render_mode")) == (None, [None] * 2)
    normalised = VecNormalize(VecMonitor(env), norm_obs=False, norm_reward=False)
    normalised.reset()
    ends = []
    for step in range(1, 4):
        obs, rewards, dones, infos = normalised.step(np.zeros((2, 2), np.float32))
        assert (type(obs), rewards.dtype, rewards[1]) == (np.ndarray, np.float32, step)
        for i in np.flatnonzero(dones):
            last = infos[i].pop("terminal_observation")
            assert (type(last), last.dtype) == (np.ndarray, np.float32)
            ends.append((i, step, last.tolist(), infos[i]["TimeLimit.truncated"], infos[i]["episode"]["l"]))
        assert all("episode" not in info for info in np.array(infos)[~dones])
    assert ends == [(0, 2, [0, 2, 0], False, 2), (1, 3, [1, 3, 0], True, 3)]


def test_a_lost_last_observation_gives_nothing_to_bootstrap_from():
    """As in mjlab, Brax and pgx: the first observation of the next episode is no successor."""
    env = SB3VecEnv(from_gymnasium(Simulator(np, final="lost"), has_final_obs=False))
    env.reset()
    for _ in range(3):  # env 1 is truncated after three steps
        obs, _, dones, infos = env.step(np.zeros((4, 2), np.float32))
    assert (dones.tolist(), obs[1].tolist()) == ([False, True, False, False], [1, 0, 1])
    assert "terminal_observation" not in infos[1]
    assert infos[1]["TimeLimit.truncated"] is False


# Results, seeds and access


def test_nested_spaces_come_back_as_trees_of_batches():
    """V4"""
    env = SB3VecEnv(DummyVectorEnv(counting(3, form="dict", length=2)))
    obs = env.reset()
    assert (obs["who"].shape, obs["when"][0].shape, obs["when"][1].shape) == ((3,), (3, 4), (3, 2, 3))
    env.step(np.zeros(3, int))
    obs, _, dones, infos = env.step(np.zeros(3, int))
    assert dones.all()
    assert infos[2]["terminal_observation"]["when"][0].tolist() == [0, 2, -1, 0]
    assert obs["when"][0][2].tolist() == [1, 0, -1, -1]


def test_has_attr_is_true_only_if_all_have_it_and_harms_nothing():
    def with_lambda():
        env = CountingEnv()
        env.odd = lambda: (yield)  # cannot be pickled
        return env

    env = SB3VecEnv(ShmemVectorEnv([with_lambda, CountingEnv]))
    assert [env.has_attr(name) for name in ("length", "odd", "nope")] == [True, False, False]
    assert env.reset().shape == (2, 5)
    env.close()


def test_frames_are_tiled_and_a_render_mode_that_does_not_fit_warns_or_is_refused():
    """S1, S8"""
    env = SB3VecEnv(DummyVectorEnv(counting(4)))
    assert env.render_mode == "rgb_array"
    frame = env.render()
    assert frame.shape == (4, 6, 3)
    assert frame[::2, ::3, 0].tolist() == [[0, 1], [2, 3]]
    with pytest.warns(UserWarning, match="has to be the same as the environment render mode"):
        assert env.render("ansi") is None
    env.venv.set_env_attr("render_mode", "human", id=1)
    with pytest.raises(AssertionError, match="should be the same for all environments"):
        SB3VecEnv(env.venv)
    env = SB3VecEnv(DummyVectorEnv(cartpoles(2)))
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.get_images() == [None, None]


def test_a_reset_drops_a_pending_step_and_uses_the_seeds_that_were_drawn():
    """V3"""
    env = SB3VecEnv(DummyVectorEnv(counting(4, length=3)))
    env.reset()
    seeds = env.seed()
    env.step_async(np.zeros(4, int))
    assert env.waiting
    assert env.reset()[:, 1:4].tolist() == [[1, 0, seed] for seed in seeds]
    assert len(set(seeds)) == 4
    assert not env.waiting
    assert env.step(np.arange(4))[0][:, 4].tolist() == [0, 1, 2, 3]
    assert env.get_attr("own_info") == [{"t": 1}] * 4  # the infos of the env are not written to


def test_many_envs_share_few_workers_which_import_neither_torch_nor_sb3():
    """V5, V6"""

    class Reports(CountingEnv):
        def loaded(self):
            return os.getpid(), "torch" in sys.modules or "stable_baselines3" in sys.modules

    env = SB3VecEnv(ShmemVectorEnv([lambda: Reports()] * 8, num_workers=2))
    pids, heavy = zip(*env.env_method("loaded"), strict=True)
    assert len(set(pids)) == 2
    assert not any(heavy)
    env.close()


# vecenv.sb3: only the import of a program changes


@pytest.mark.parametrize("start_method", one_of([None, "fork", "spawn"]))
def test_every_start_method_works_by_position_and_options_reach_the_vector_env(start_method):
    env = sb3.SubprocVecEnv(counting(2), start_method, num_workers=2, shared_memory=start_method != "fork")
    assert type(env.venv) is (SubprocVectorEnv if start_method == "fork" else ShmemVectorEnv)
    assert env.venv.num_workers == 2
    assert [process.is_alive() for process in env.processes] == [True, True]
    assert env.reset()[:, 0].tolist() == [0, 1]
    assert not hasattr(env, "envs")
    with pytest.raises(AttributeError, match="not in this process: use get_attr, set_attr and env_method"):
        _ = env.envs
    env.close()
    assert env.closed


@pytest.mark.parametrize(
    "around",
    [
        sb3.DummyVecEnv,
        lambda fns: VecMonitor(SB3VecEnv(VectorEnvWrapper(DummyVectorEnv(fns)))),
        lambda fns: SB3VecEnv(SyncVectorEnv(fns, autoreset_mode="SameStep")),
        lambda fns: SB3VecEnv(same_step(fns)),
    ],
    ids=["DummyVecEnv", "wrappers", "SyncVectorEnv", "gymnasium"],
)
def test_envs_are_the_objects_that_the_functions_returned(around):
    made = []

    def make():
        made.append(TimeLimit(CountingEnv(), 9))
        return made[-1]

    env = around([make] * 2)
    assert [id(one) for one in env.envs] == [id(one) for one in made]
    env.reset()
    env.envs[1].unwrapped.t = 3
    assert env.get_attr("t") == [0, 3]
