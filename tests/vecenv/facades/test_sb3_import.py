"""vecenv.sb3: a program for SB3's DummyVecEnv and SubprocVecEnv works if only its import changes."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import PPO
from stable_baselines3.common import vec_env as theirs
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecMonitor

from tests.support.backends import FULL, one_of
from tests.support.cases import counting, playing
from vecenv import DummyVectorEnv, SB3VecEnv, ShmemVectorEnv, SubprocVectorEnv, SyncVectorEnv, VectorEnvWrapper
from vecenv.sb3 import DummyVecEnv, SubprocVecEnv
from vecenv.testing import CountingEnv


class TestPrograms:
    @FULL
    @pytest.mark.parametrize(("cls", "arguments"), [(DummyVecEnv, {}), (SubprocVecEnv, {"start_method": None})])
    def test_make_vec_env_takes_the_class_and_its_arguments(self, cls, arguments):
        """A training gives the same weights and metrics with SB3's class and with vecenv's."""
        torch.set_num_threads(1)  # several threads wait for each other on a busy machine
        results = []
        for made, kwargs in (
            (cls, {**arguments, "num_workers": 2, "on_error": "restart"}),
            (theirs.DummyVecEnv, {}),
        ):
            env = make_vec_env("CartPole-v1", 8, seed=5, vec_env_cls=made, vec_env_kwargs=kwargs)
            assert env.env_is_wrapped(Monitor) == [True] * 8
            model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=1, seed=3, device="cpu").learn(256)
            results.append((model.num_timesteps, evaluate_policy(model, env, n_eval_episodes=8)))
            env.close()
        assert results[0] == results[1]
        assert results[0][0] == 256


class TestAttributes:
    def test_clients_find_the_processes_and_what_is_pending(self):
        for env in (SubprocVecEnv(counting(2), num_workers=2), theirs.SubprocVecEnv(counting(2), "spawn")):
            env.reset()
            assert [process.is_alive() for process in env.processes] == [True, True]
            env.step_async(np.zeros(2, int))
            assert (env.waiting, env.closed) == (True, False)
            env.step_wait()
            assert env.waiting is False
            env.close()
            assert env.closed


class TestArguments:
    @pytest.mark.parametrize("start_method", one_of([None, "fork", "forkserver", "spawn"]))
    def test_every_start_method_works_by_position(self, start_method):
        env = SubprocVecEnv(counting(2), start_method)
        assert type(env.venv) is ShmemVectorEnv
        assert env.reset()[:, 0].tolist() == [0, 1]
        env.close()

    def test_an_unknown_start_method_is_refused_in_the_words_of_sb3(self):
        """S10"""
        for cls in (theirs.SubprocVecEnv, SubprocVecEnv):
            with pytest.raises(ValueError, match="cannot find context for 'illegal_method'"):
                cls(counting(2), start_method="illegal_method")

    def test_options_reach_the_vector_env_and_shared_memory_chooses_how_results_travel(self):
        env = SubprocVecEnv(counting(4), num_workers=2, step_timeout=9.0, shared_memory=False)
        assert env.venv.num_workers == 2
        assert type(env.venv) is SubprocVectorEnv
        env.close()

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ({"wait_num": 1}, "all envs step together"),
            ({"timeout": 1.0}, "step_timeout"),
            ({"stack_obs": False}, "always stacked"),
            ({"worker_fn": print}, r"SB3VecEnv\(venv\)"),
            ({"backend": None}, r"SB3VecEnv\(venv\)"),
            ({"context": "fork"}, "start_method"),
            ({"unknown": 1}, "unknown"),
        ],
    )
    def test_options_that_do_not_go_with_sb3_are_refused_before_an_env_is_made(self, option, message):
        for cls in (DummyVecEnv, SubprocVecEnv):
            with pytest.raises(TypeError, match=message):  # and not the ZeroDivisionError of an env_fn
                cls([lambda: 1 / 0] * 2, **option)

    @pytest.mark.parametrize("cls", one_of([DummyVecEnv, SubprocVecEnv]))
    def test_envs_that_do_not_fit_are_closed(self, cls):
        makes = [*counting(1), *playing(spaces.Box(-1, 1, (2,)), [np.zeros(2, np.float32)])]
        with pytest.raises(ValueError, match=r"observation_space is .* in env 1"):  # and no worker is left
            cls(makes)
        with pytest.raises(ValueError, match="env_fns is empty"):
            cls([])

    def test_one_env_object_behind_two_factories_is_refused(self):
        """S9"""
        env = CountingEnv()
        for cls in (theirs.DummyVecEnv, DummyVecEnv):
            with pytest.raises(ValueError, match="same"):
                cls([lambda: env] * 2)
        with pytest.raises(ValueError, match=r"env_fns\[0\] and env_fns\[1\] returned the same env object"):
            DummyVecEnv([lambda: TimeLimit(env, 9)] * 2)


class TestEnvs:
    """Env objects, as in SB3's DummyVecEnv."""

    @pytest.mark.parametrize(
        "around",
        [
            DummyVecEnv,
            lambda fns: VecMonitor(DummyVecEnv(fns)),
            lambda fns: SB3VecEnv(DummyVectorEnv(fns)),
            lambda fns: SB3VecEnv(VectorEnvWrapper(DummyVectorEnv(fns))),
            lambda fns: SB3VecEnv(SyncVectorEnv(fns, autoreset_mode="SameStep")),
            lambda fns: SB3VecEnv(gym.vector.SyncVectorEnv(fns, autoreset_mode="SameStep")),
        ],
        ids=["DummyVecEnv", "VecMonitor", "SB3VecEnv", "VectorEnvWrapper", "SyncVectorEnv", "gymnasium"],
    )
    def test_are_those_of_the_factories(self, around):
        made = []

        def make():
            made.append(TimeLimit(CountingEnv(), 9))
            return made[-1]

        env = around([make] * 2)
        assert [id(one) for one in env.envs] == [id(one) for one in made]
        env.reset()
        env.envs[1].unwrapped.t = 3
        assert env.get_attr("t") == [0, 3]
        env.close()

    def test_are_out_of_reach_in_other_processes(self):
        env = SubprocVecEnv(counting(2))
        assert not hasattr(env, "envs")
        with pytest.raises(AttributeError, match="not in this process: use get_attr, set_attr and env_method"):
            _ = env.envs
        env.close()
