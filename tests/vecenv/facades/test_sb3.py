"""The SB3 facade with SB3's algorithms and wrappers, and defects of SB3's vector envs.

test_programs.py compares results with SB3's DummyVecEnv. The docstring of a test names a defect (V1 to V9, S1 to S13).
"""

import os
import subprocess
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import DQN, PPO, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from tests.support.action_cases import ROWS, arrived
from tests.support.backends import FULL, one_of
from tests.support.cases import counting
from tests.support.gymnasium_cases import assert_same, cartpoles
from tests.support.mani_skill_double import ManiSkillDouble
from tests.support.simulators import Simulator
from vecenv import (
    DummyVectorEnv,
    SB3VecEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    SyncVectorEnv,
    VectorEnvNormObs,
    VectorEnvWrapper,
    from_gymnasium,
    sb3,
)
from vecenv.testing import CountingEnv, ExitsOnStep, RaisesOnReset

same_step = partial(gym.vector.SyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.fixture
def counted():
    """Return the facade around four CountingEnvs with episodes of three steps."""
    return SB3VecEnv(DummyVectorEnv(counting(4, length=3)))


@FULL
@pytest.mark.parametrize(("cls", "arguments"), [(sb3.DummyVecEnv, {}), (sb3.SubprocVecEnv, {"start_method": None})])
def test_a_training_with_make_vec_env_gives_the_same_with_sb3s_class_and_with_vecenvs(cls, arguments):
    torch.set_num_threads(1)  # several threads wait for each other on a busy machine
    results = []
    for made, kwargs in ((cls, {**arguments, "num_workers": 2, "on_error": "restart"}), (DummyVecEnv, {})):
        env = make_vec_env("CartPole-v1", 8, seed=5, vec_env_cls=made, vec_env_kwargs=kwargs)
        assert env.env_is_wrapped(Monitor) == [True] * 8
        model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=1, seed=3, device="cpu").learn(256)
        results.append((model.num_timesteps, evaluate_policy(model, env, n_eval_episodes=8)))
        env.close()
    assert results[0] == results[1]


@FULL
def test_hindsight_replay_calls_compute_reward_of_the_envs():
    env = SB3VecEnv(same_step([lambda: BitFlippingEnv(n_bits=3, max_steps=3)] * 2))
    options = {"replay_buffer_class": HerReplayBuffer, "learning_starts": 12, "seed": 0, "device": "cpu"}
    assert DQN("MultiInputPolicy", env, **options).learn(40).num_timesteps == 40


def test_wrappers_of_the_vector_env_work_below():
    """Also wrappers that change only `step`."""

    class Doubles(VectorEnvWrapper):
        def step(self, action, id=None, **kwargs):
            obs, rew, *rest = super().step(action, id, **kwargs)
            return (obs, rew * 2, *rest)

    env = SB3VecEnv(Doubles(VectorEnvNormObs(DummyVectorEnv(cartpoles(2)))))
    assert np.abs(env.reset()).max() <= 10
    env.step_async(np.zeros(2, int))
    with pytest.raises(RuntimeError, match="pending"):
        env.get_attr("spec")
    assert env.step_wait()[1].tolist() == [2, 2]


# Vector envs of gymnasium, which SB3 does not accept (V9)


@pytest.mark.parametrize("mode", one_of(["sync", "async"]))
def test_a_vector_env_of_gymnasium_is_taken_with_the_same_results(mode):
    options = {"autoreset_mode": AutoresetMode.SAME_STEP, "copy": False}
    if mode == "async":
        options["shared_memory"] = False  # multiprocessing never frees shared memory
    envs = gym.make_vec("CartPole-v1", 3, mode, vector_kwargs=options, max_episode_steps=12)
    ours, theirs = SB3VecEnv(envs), DummyVecEnv(cartpoles(3, 12))
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    assert ours.seed(11) == theirs.seed(11)
    assert ours.env_is_wrapped(TimeLimit) == [mode == "sync"] * 3
    assert ours.get_attr("gravity", [0, -1]) == [9.8, 9.8]
    for each in (ours, theirs):
        each.set_attr("gravity", 5.0)
    assert ours.get_attr("gravity") == [5.0] * 3
    if mode == "async":
        with pytest.raises(ValueError, match=r"VectorEnv\.call is for all its 3 envs, got \[1\]"):
            ours.set_attr("gravity", 5.0, [1])
    assert_same(ours.reset(), theirs.reset())
    for action in np.random.default_rng(0).integers(0, 2, (40, 3)):
        assert_same(ours.step(action), theirs.step(action))
        assert_same(ours.reset_infos, theirs.reset_infos)
    ours.close()
    assert envs.closed


def test_options_of_each_env_are_refused_by_a_vector_env_of_gymnasium():
    env = SB3VecEnv(same_step(cartpoles(3)))
    with pytest.raises(ValueError, match="resets all its envs together: pass one dict of options"):
        env.set_options([{}, {"low": 0.0, "high": 0.01}, {}])
    assert env.reset().shape == (3, 4)
    env.set_options([{"low": 0.01, "high": 0.02}] * 3)
    assert (env.reset() >= 0.01).all()


def test_infos_of_a_vector_env_of_gymnasium_reach_the_env_and_the_episode_they_belong_to():
    envs = same_step(counting(2, length=2))
    env = SB3VecEnv(envs)
    env.reset()
    assert env.reset_infos == [{"episode": 0}] * 2
    env.set_attr("t", 1)
    envs.envs[1].t = 0
    obs, _, dones, infos = env.step(np.array([3, 4]))
    assert dones.tolist() == [True, False]
    assert obs[:, 2].tolist() == [0, 1]
    assert infos[0].pop("terminal_observation").tolist() == [0, 0, 2, -1, 3]
    assert infos == [{"TimeLimit.truncated": False}, {"t": 1, "TimeLimit.truncated": False}]
    assert env.reset_infos == [{"episode": 1}, {"episode": 0}]


def test_a_simulator_of_tensors_gives_arrays_to_wrappers_of_sb3():
    """mani-skill 3.0.1: `get_attr` raises RuntimeError, and all results are tensors."""
    env = SB3VecEnv(ManiSkillDouble(record_metrics=True))
    assert (env.render_mode, env.get_attr("render_mode")) == (None, [None] * 2)
    normalised = VecNormalize(VecMonitor(env), norm_obs=False, norm_reward=False)
    normalised.reset()
    ends = []
    for step in range(1, 6):
        obs, rewards, dones, infos = normalised.step(np.zeros((2, 1), np.float32))
        assert (type(obs), rewards.tolist()) == (np.ndarray, [1, 1])
        for i in np.flatnonzero(dones):
            last = infos[i].pop("terminal_observation")
            assert (type(last), last.dtype) == (np.ndarray, np.float32)
            ends.append((i, step, last.tolist(), infos[i]["TimeLimit.truncated"], infos[i]["episode"]["l"]))
        assert all("episode" not in info for info in np.array(infos)[~dones])  # VecMonitor's, only at an end
    assert ends == [(0, 3, [0, 0, 3], True, 3), (1, 4, [1, 0, 4], True, 4)]
    normalised.close()


def test_a_lost_last_observation_gives_nothing_to_bootstrap_from():
    """As in mjlab, Brax and pgx: the first observation of the next episode is no successor."""
    env = SB3VecEnv(from_gymnasium(Simulator(np, final="lost"), has_final_obs=False))
    normalised = VecNormalize(env, norm_obs=False, norm_reward=False)
    normalised.reset()
    for _ in range(3):  # env 1 is truncated after three steps
        obs, _, dones, infos = normalised.step(np.zeros((4, 2), np.float32))
    assert (dones.tolist(), obs[1].tolist()) == ([False, True, False, False], [1, 0, 1])
    assert "terminal_observation" not in infos[1]
    assert infos[1]["TimeLimit.truncated"] is False
    normalised.close()


@FULL
def test_ppo_logs_and_trains_over_a_simulator_with_metrics_of_its_own():
    env = VecNormalize(SB3VecEnv(ManiSkillDouble(record_metrics=True)))
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu")
    assert model.learn(32).num_timesteps == 32
    env.close()


# Results, seeds and access


@pytest.mark.guarantee("G5.6")
@pytest.mark.parametrize("kind", one_of([DummyVectorEnv, ShmemVectorEnv]))
def test_envs_get_what_dummy_vec_env_hands_them(kind):
    ours = arrived(lambda env_fns: SB3VecEnv(kind(env_fns)), ROWS)
    assert ours == arrived(DummyVecEnv, ROWS)


def test_seeds_and_options_are_for_the_next_reset_only(counted):
    counted.set_options([{"t": 2}, {}, {"t": 1}, {}])
    assert counted.seed(7) == [7, 8, 9, 10]
    assert counted.reset()[:, [2, 3]].tolist() == [[2, 7], [0, 8], [1, 9], [0, 10]]
    assert [info["episode"] for info in counted.reset_infos] == [0] * 4
    assert counted.reset()[:, [2, 3]].tolist() == [[0, 7], [0, 8], [0, 9], [0, 10]]
    counted.set_options({"t": 1})
    counted.set_options(None)
    seeds = counted.seed()
    assert len(set(seeds)) == 4
    assert counted.reset()[:, [2, 3]].tolist() == [[0, seed] for seed in seeds]


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


@pytest.mark.parametrize("kind", one_of([ShmemVectorEnv, DummyVectorEnv]))
def test_has_attr_is_true_only_if_all_have_it_and_harms_nothing(kind):
    def with_lambda():
        env = CountingEnv()
        env.odd = lambda: (yield)  # cannot be pickled
        return env

    env = SB3VecEnv(kind([with_lambda, CountingEnv]))
    assert [env.has_attr(name) for name in ("length", "odd", "nope")] == [True, False, False]
    assert env.reset().shape == (2, 5)
    env.close()


def test_frames_are_tiled_and_a_render_mode_that_does_not_fit_warns_or_is_refused():
    """S1, S8"""
    env = SB3VecEnv(DummyVectorEnv(counting(4)))
    assert env.render_mode == "rgb_array"
    frame = env.render()
    assert frame.shape == (4, 6, 3)
    assert [frame[0, 0, 0], frame[0, 3, 0], frame[2, 0, 0], frame[2, 3, 0]] == [0, 1, 2, 3]
    with pytest.warns(UserWarning, match="has to be the same as the environment render mode"):
        assert env.render("ansi") is None
    env.venv.set_env_attr("render_mode", "human", id=1)
    with pytest.raises(AssertionError, match="should be the same for all environments"):
        SB3VecEnv(env.venv)
    env = SB3VecEnv(DummyVectorEnv(cartpoles(2)))
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.get_images() == [None, None]


@pytest.mark.parametrize("kind", one_of([DummyVectorEnv, ShmemVectorEnv]))
def test_the_error_of_a_reset_within_a_step_arrives_as_itself(kind):
    """V1"""
    env = SB3VecEnv(kind([lambda: RaisesOnReset(0, at=1, length=2), lambda: CountingEnv(1, length=2)]))
    env.reset()
    env.step(np.zeros(2, int))
    for _ in range(2):
        with pytest.raises(ValueError, match="boom in reset"):
            env.step(np.zeros(2, int))
    env.close()


@FULL
def test_a_vector_env_that_restarts_its_envs_by_itself_says_that_the_episode_was_cut_off():
    make = [CountingEnv, lambda: ExitsOnStep(1, at=2)]
    env = SB3VecEnv(ShmemVectorEnv(make, num_workers=2, on_error="restart"))
    env.reset()
    env.step(np.zeros(2, int))
    obs, rewards, dones, infos = env.step(np.zeros(2, int))
    assert (dones.tolist(), rewards[1]) == ([False, True], 0)
    assert infos[1]["TimeLimit.truncated"]
    assert infos[1]["restarted"]
    assert infos[1]["terminal_observation"][2] == 1
    assert obs[1].tolist() == [1, 0, 0, -1, -1]
    env.close()


def test_a_reset_drops_a_pending_step(counted):
    """V3"""
    counted.reset()
    counted.step_async(np.zeros(4, int))
    assert counted.waiting
    assert counted.reset()[:, [1, 2]].tolist() == [[1, 0]] * 4
    assert not counted.waiting
    assert counted.step(np.arange(4))[0][:, 4].tolist() == [0, 1, 2, 3]


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


def test_the_info_of_an_env_is_not_written_to():
    env = SB3VecEnv(DummyVectorEnv(counting(1)))
    env.reset()
    assert env.step(np.zeros(1, int))[3] == [{"t": 1, "TimeLimit.truncated": False}]
    assert env.get_attr("own_info") == [{"t": 1}]


# vecenv.sb3: only the import of a program changes


@pytest.mark.parametrize("start_method", one_of([None, "fork", "forkserver", "spawn"]))
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
        lambda fns: VecMonitor(sb3.DummyVecEnv(fns)),
        lambda fns: SB3VecEnv(VectorEnvWrapper(DummyVectorEnv(fns))),
        lambda fns: SB3VecEnv(SyncVectorEnv(fns, autoreset_mode="SameStep")),
        lambda fns: SB3VecEnv(same_step(fns)),
    ],
    ids=["DummyVecEnv", "VecMonitor", "VectorEnvWrapper", "SyncVectorEnv", "gymnasium"],
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


@FULL
def test_without_sb3_the_error_says_what_to_install():
    program = (
        "import sys; sys.modules['stable_baselines3'] = None\n"
        "import vecenv\n"
        "def first(): vecenv.SB3VecEnv\n"
        "def second(): import vecenv.sb3\n"
        "for use in first, second:\n"
        "    try: use()\n"
        "    except ImportError as error: print(error)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    assert done.stdout == "SB3VecEnv needs Stable-Baselines3: pip install 'vecenv[sb3]'\n" * 2
