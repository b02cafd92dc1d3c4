"""The SB3 facade with SB3's algorithms and wrappers. Results equal SB3's vector envs."""

import subprocess
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeAwareObservation, TimeLimit
from stable_baselines3 import DQN, PPO, HerReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

from tests.support.action_cases import ROWS, arrived
from tests.support.backends import FULL, one_of
from tests.support.cases import LocalWorker, counting
from tests.support.gymnasium_cases import Reads, assert_same, cartpoles, kinds
from tests.support.mani_skill_double import ManiSkillDouble
from tests.support.simulators import Simulator
from vecenv import (
    BaseVectorEnv,
    DummyVectorEnv,
    GymnasiumVectorEnv,
    SB3VecEnv,
    ShmemVectorEnv,
    SyncVectorEnv,
    ThreadVectorEnv,
    VectorEnvNormObs,
    VectorEnvWrapper,
    from_gymnasium,
    sb3,
)
from vecenv.testing import CountingEnv


def with_dicts():
    return TimeAwareObservation(gym.make("CartPole-v1", max_episode_steps=12), flatten=False)


def played_alike(ours, theirs, actions):
    """Check that both return the same in these steps, and close both. Return the number of ended episodes."""
    assert_same(ours.reset(), theirs.reset())
    ended = 0
    for action in actions:
        got, want = ours.step(action), theirs.step(action)
        assert_same(got, want)
        assert_same(ours.reset_infos, theirs.reset_infos)
        ended += got[2].sum()
    ours.close()
    theirs.close()
    return ended


class TestWithSB3:
    @pytest.mark.guarantee("G7.10")
    @pytest.mark.parametrize(
        ("make", "form"),
        [
            (sb3.DummyVecEnv, "dict"),
            (sb3.SubprocVecEnv, "array"),
            pytest.param(partial(sb3.SubprocVecEnv, shared_memory=False), "dict", marks=FULL),
            pytest.param(lambda env_fns: SB3VecEnv(VectorEnvWrapper(ShmemVectorEnv(env_fns))), "dict", marks=FULL),
        ],
    )
    def test_every_result_of_200_steps_equals_that_of_dummy_vec_env(self, make, form):
        env_fns = cartpoles(3, 7) if form == "array" else [with_dicts] * 3
        ours, theirs = make(env_fns), DummyVecEnv(env_fns)
        assert isinstance(ours, VecEnv)
        assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
        # S13: the frame rate of a video comes from the metadata.
        assert (ours.num_envs, ours.render_mode, ours.metadata) == (3, theirs.render_mode, theirs.metadata)
        assert ours.seed(11) == theirs.seed(11) == [11, 12, 13]
        assert played_alike(ours, theirs, np.random.default_rng(0).integers(0, 2, (200, 3))) >= 20

    @pytest.mark.parametrize(
        "make",
        [
            lambda env_fns: SB3VecEnv(DummyVectorEnv(env_fns)),
            lambda env_fns: SB3VecEnv(VectorEnvWrapper(DummyVectorEnv(env_fns))),
            pytest.param(lambda env_fns: SB3VecEnv(ShmemVectorEnv(env_fns)), marks=FULL),
        ],
        ids=["engine", "wrapper", "processes"],
    )
    def test_last_observations_have_the_types_that_they_have_with_dummy_vec_env(self, make):
        for form in ("discrete", "tuple", "numpy32"):
            found = []
            for env in (make([lambda form=form: Reads(form)] * 2), DummyVecEnv([lambda form=form: Reads(form)] * 2)):
                env.reset()
                env.step(np.zeros(2, int))
                found.append([info["terminal_observation"] for info in env.step(np.zeros(2, int))[3]])
                env.close()
            assert_same(*found)
            assert kinds(found[0]) == kinds(found[1])

    @pytest.mark.guarantee("G7.11")
    @pytest.mark.parametrize(
        "kind",
        one_of(
            [
                lambda env_fns: SB3VecEnv(VectorEnvWrapper(DummyVectorEnv(env_fns))),
                sb3.DummyVecEnv,
                sb3.SubprocVecEnv,
                lambda env_fns: SB3VecEnv(ThreadVectorEnv(env_fns)),
                "theirs",
            ]
        ),
    )
    def test_last_observations_are_what_the_envs_returned(self, kind):
        for form in ("numpy64", "wide", "array", "scalar", "list", "unsorted"):
            found, make = [], [lambda form=form: Reads(form)] * 2
            of_gymnasium = kind == "theirs" and gym.vector.SyncVectorEnv(make, autoreset_mode="SameStep")
            for env in (SB3VecEnv(of_gymnasium) if of_gymnasium else kind(make), DummyVecEnv(make)):
                env.reset()
                found.append([info for _ in range(4) for info in env.step(np.zeros(2, int))[3]])
                env.close()
            assert_same(*found)
            assert repr(found[0]) == repr(found[1])

    @FULL
    def test_vec_env_wrappers_and_evaluate_policy_take_it(self):
        env = VecMonitor(VecFrameStack(VecNormalize(sb3.SubprocVecEnv(cartpoles(3))), 2))
        assert env.env_is_wrapped(TimeLimit) == [True] * 3
        model = PPO("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu")
        model.learn(96)
        assert {len(entry) for entry in model.ep_info_buffer} == {3}
        mean, _ = evaluate_policy(model, env, n_eval_episodes=4)
        assert 1 <= mean <= 10
        assert env.reset().shape == (3, 8)
        env.close()

    @pytest.mark.parametrize("below", ["engine", "wrapper", "gymnasium"])
    def test_infos_keep_keys_that_the_engine_uses_too(self, below):
        keys = {"env_id": 7} if below == "gymnasium" else {"env_id": 7, "final_obs": 8, "final_info": 9}

        class Named(CountingEnv):
            def reset(self, **kwargs):
                obs, info = super().reset(**kwargs)
                return obs, {**info, "env_id": 7}

            def step(self, action):
                *result, info = super().step(action)
                return (*result, {**info, **keys} if self.t != 2 else info)

        make = [lambda: Named(0, length=3), lambda: CountingEnv(1, length=3)]
        if below == "gymnasium":
            ours = SB3VecEnv(gym.vector.SyncVectorEnv(make, autoreset_mode="SameStep"))
        else:
            ours = SB3VecEnv(DummyVectorEnv(make) if below == "engine" else VectorEnvWrapper(DummyVectorEnv(make)))
        assert played_alike(ours, DummyVecEnv(make), np.zeros((7, 2), int)) >= 2

    @FULL
    def test_hindsight_replay_calls_compute_reward_of_the_envs(self):
        env = SB3VecEnv(DummyVectorEnv([lambda: BitFlippingEnv(n_bits=3, max_steps=3)] * 2))
        model = DQN(
            "MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, learning_starts=12, seed=0, device="cpu"
        )
        assert model.learn(40).num_timesteps == 40

    @pytest.mark.parametrize("below", ["wrapper", "workers"])
    def test_a_reset_in_a_second_round_changes_nothing_of_the_step_with_or_without_copies(self, below):
        class Plain(VectorEnvWrapper):
            def reset(self, id=None, **kwargs):  # the env cannot be reset in the round of its last step
                return super().reset(id, **kwargs)

        for copy in (False, True):
            if below == "wrapper":
                venv = Plain(DummyVectorEnv(cartpoles(3, 7), copy=copy))
            else:
                venv = BaseVectorEnv(cartpoles(3, 7), LocalWorker, copy=copy)
            ours, theirs = SB3VecEnv(venv), DummyVecEnv(cartpoles(3, 7))
            assert ours.seed(11) == theirs.seed(11)
            assert played_alike(ours, theirs, np.random.default_rng(0).integers(0, 2, (40, 3))) >= 10

    def test_wrappers_of_the_vector_env_work_below(self):
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
        assert env.venv.venv.get_obs_rms().count == 4


class TestVectorEnvsOfGymnasium:
    """V9: SB3 accepts none of these vector envs."""

    @pytest.mark.parametrize("mode", one_of(["sync", "async"]))
    def test_a_vector_env_of_gymnasium_is_taken_with_the_same_results(self, mode):
        options = {"autoreset_mode": AutoresetMode.SAME_STEP, "copy": False}
        if mode == "async":
            options["shared_memory"] = False  # multiprocessing never frees shared memory
        envs = gym.make_vec("CartPole-v1", 3, mode, vector_kwargs=options, max_episode_steps=12)
        ours, theirs = SB3VecEnv(envs), DummyVecEnv(cartpoles(3, 12))
        assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
        assert ours.seed(11) == theirs.seed(11)
        assert ours.env_is_wrapped(TimeLimit) == [mode == "sync"] * 3
        assert ours.get_attr("gravity", [0, -1]) == theirs.get_attr("gravity", [0, -1])
        for each in (ours, theirs):
            each.set_attr("gravity", 5.0)
        assert ours.get_attr("gravity") == [5.0] * 3
        if mode == "async":
            with pytest.raises(ValueError, match=r"VectorEnv\.call is for all its 3 envs, got \[1\]"):
                ours.set_attr("gravity", 5.0, [1])
        assert ours.env_is_wrapped(TimeLimit, [1]) == [mode == "sync"]
        assert ours.env_method("get_wrapper_attr", "spec", indices=[2, 0, 1])[0].id == "CartPole-v1"
        assert played_alike(ours, theirs, np.random.default_rng(0).integers(0, 2, (60, 3))) >= 6

    def test_options_for_each_env_and_other_autoreset_modes_of_a_vector_env_of_gymnasium_are_refused(self):
        env = SB3VecEnv(gym.make_vec("CartPole-v1", 3, "sync", vector_kwargs={"autoreset_mode": "SameStep"}))
        with pytest.raises(ValueError, match="resets all its envs together: pass one dict of options"):
            env.set_options([{}, {"low": 0.0, "high": 0.01}, {}])
        assert env.reset().shape == (3, 4)
        env.set_options([{"low": 0.01, "high": 0.02}] * 3)
        assert (env.reset() >= 0.01).all()
        env.close()
        envs = gym.make_vec("CartPole-v1", 2)  # resets in the next step
        with pytest.raises(ValueError, match=r"create it with autoreset_mode=AutoresetMode\.SAME_STEP"):
            SB3VecEnv(envs)
        message = "cannot reset them as autoreset_mode SameStep needs"
        cartpoles_in_numpy = gym.make_vec("CartPole-v1", 2, "vector_entry_point")
        with from_gymnasium(cartpoles_in_numpy) as venv, pytest.raises(ValueError, match=message):
            SB3VecEnv(venv)
        envs.close()

    @pytest.mark.parametrize("autoreset_mode", list(AutoresetMode))
    def test_a_facade_of_ours_is_driven_without_it_in_any_autoreset_mode(self, autoreset_mode):
        envs = SyncVectorEnv(counting(2, length=2), autoreset_mode=autoreset_mode)
        env, same = SB3VecEnv(envs), SB3VecEnv(DummyVectorEnv(counting(2, length=2)))
        assert env.venv is envs.venv
        assert played_alike(env, same, [np.array([3, 4])] * 5) >= 2
        assert envs.closed

    def test_infos_of_a_vector_env_of_gymnasium_reach_the_env_and_the_episode_they_belong_to(self):
        envs = gym.vector.SyncVectorEnv(counting(2, length=2), autoreset_mode="SameStep")
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
        env.close()
        assert envs.closed

    def test_a_simulator_of_tensors_gives_arrays_to_wrappers_of_sb3(self):
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

    def test_a_lost_last_observation_gives_nothing_to_bootstrap_from(self):
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

    @pytest.mark.parametrize("facade", [SB3VecEnv, partial(GymnasiumVectorEnv, autoreset_mode="SameStep")])
    def test_tensors_are_refused(self, facade):
        message = "returns tensors, but numpy arrays are needed: make it without tensors=True"
        with from_gymnasium(ManiSkillDouble(), tensors=True) as venv, pytest.raises(ValueError, match=message):
            facade(venv)

    @FULL
    def test_ppo_logs_and_trains_over_a_simulator_with_metrics_of_its_own(self):
        env = VecNormalize(SB3VecEnv(ManiSkillDouble(record_metrics=True)))
        model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu")
        assert model.learn(32).num_timesteps == 32
        env.close()


@pytest.mark.guarantee("G5.6")
@pytest.mark.parametrize("kind", one_of([DummyVectorEnv, ShmemVectorEnv]))
def test_envs_get_what_dummy_vec_env_hands_them(kind):
    ours = arrived(lambda env_fns: SB3VecEnv(kind(env_fns)), ROWS)
    assert ours == arrived(DummyVecEnv, ROWS)


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "SB3VecEnv needs Stable-Baselines3: pip install 'vecenv[sb3]'\n" * 2
