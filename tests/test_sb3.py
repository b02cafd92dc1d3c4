"""The SB3 facade: results equal to those of SB3's own vector envs, and good behaviour where those have none."""

import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from cases import counting, equal_bits, playing
from conftest import descriptors
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics, TimeAwareObservation, TimeLimit
from stable_baselines3 import DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

from vecenv import (
    ClosedError,
    DummyVectorEnv,
    EnvContractError,
    SB3VecEnv,
    SubprocVectorEnv,
    VectorEnvNormObs,
    VectorEnvWrapper,
    WorkerDiedError,
    WorkerTimeoutError,
)
from vecenv.testing import CountingEnv, ExitsOnStep, HangsOnStep, RaisesOnReset, RaisesOnStep


def cartpoles(n, max_episode_steps=10, **options):
    """Short episodes, so that some are cut off and some end."""
    return [lambda: gym.make("CartPole-v1", max_episode_steps=max_episode_steps, **options)] * n


def closing(*envs):
    for env in envs:
        env.close()


@pytest.fixture
def counted(backend):
    """Four CountingEnvs of three steps an episode, two of them in a worker where there are workers."""
    options = {} if backend is DummyVectorEnv else {"num_workers": 2}
    env = SB3VecEnv(backend(counting(4, length=3), **options))
    yield env
    env.close()


@cache
def trained_on_dummy_vec_env():
    env = DummyVecEnv(cartpoles(4))
    return trained(env)


def trained(env):
    """The weights of a small PPO after a few hundred steps; the env is closed."""
    torch.set_num_threads(1)
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=2, seed=3, device="cpu")
    model.learn(256)
    env.close()
    return {name: value.numpy() for name, value in model.policy.state_dict().items()}


class TestWithSB3:
    def test_ppo_learns_the_same_weights_as_on_dummy_vec_env(self, backend):
        weights, want = trained(SB3VecEnv(backend(cartpoles(4)))), trained_on_dummy_vec_env()
        assert weights.keys() == want.keys()
        assert [name for name in want if not equal_bits(weights[name], want[name])] == []

    @pytest.mark.parametrize("form", ["array", "dict"])
    def test_every_result_equals_that_of_dummy_vec_env(self, backend, form):
        make = cartpoles(3, 7)
        if form == "dict":
            make = [lambda: TimeAwareObservation(gym.make("CartPole-v1", max_episode_steps=12), flatten=False)] * 3
        ours, theirs = SB3VecEnv(backend(make)), DummyVecEnv(make)
        assert isinstance(ours, VecEnv)
        assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
        assert (ours.num_envs, ours.render_mode, ours.metadata) == (3, theirs.render_mode, theirs.metadata)
        assert ours.seed(11) == theirs.seed(11) == [11, 12, 13]
        assert_same(ours.reset(), theirs.reset())
        actions = np.random.default_rng(0).integers(0, 2, (60, 3))
        ended = 0
        for action in actions:
            got, want = ours.step(action), theirs.step(action)
            assert_same(got, want)
            assert_same(ours.reset_infos, theirs.reset_infos)
            ended += got[2].sum()
        assert ended >= 6
        closing(ours, theirs)

    def test_algorithms_with_a_replay_buffer_store_the_same_and_learn_the_same(self, backend):
        def trained_dqn(env):
            model = DQN("MlpPolicy", env, learning_starts=10, buffer_size=100, batch_size=8, seed=0, device="cpu")
            model.learn(64)
            env.close()
            return model.replay_buffer, model.policy.state_dict()

        torch.set_num_threads(1)
        buffer, weights = trained_dqn(SB3VecEnv(backend(cartpoles(2))))
        want_buffer, want_weights = trained_dqn(DummyVecEnv(cartpoles(2)))
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
            assert equal_bits(getattr(buffer, name)[:32], getattr(want_buffer, name)[:32]), name
        assert all(torch.equal(weights[name], want_weights[name]) for name in want_weights)

    def test_algorithms_with_continuous_actions_learn(self):
        env = SB3VecEnv(SubprocVectorEnv([lambda: gym.make("Pendulum-v1")] * 2))
        model = SAC("MlpPolicy", env, learning_starts=10, buffer_size=100, batch_size=8, seed=0, device="cpu")
        assert model.learn(20).replay_buffer.pos == 10
        env.close()

    def test_hindsight_replay_calls_compute_reward_of_the_envs(self):
        env = SB3VecEnv(DummyVectorEnv([lambda: BitFlippingEnv(n_bits=3, max_steps=3)] * 2))
        model = DQN(
            "MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, learning_starts=12, seed=0, device="cpu"
        )
        assert model.learn(40).num_timesteps == 40
        env.close()

    def test_vec_env_wrappers_and_evaluate_policy_take_it(self, backend):
        env = VecMonitor(VecFrameStack(VecNormalize(SB3VecEnv(backend(cartpoles(3)))), 2))
        assert env.env_is_wrapped(TimeLimit) == [True] * 3
        model = PPO("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu")
        model.learn(96)
        assert {len(entry) for entry in model.ep_info_buffer} == {3}
        mean, _ = evaluate_policy(model, env, n_eval_episodes=4)
        assert 1 <= mean <= 10
        assert env.reset().shape == (3, 8)
        env.close()

    def test_make_vec_env_builds_it(self):
        env = make_vec_env("CartPole-v1", 2, seed=5, vec_env_cls=lambda env_fns: SB3VecEnv(DummyVectorEnv(env_fns)))
        other = make_vec_env("CartPole-v1", 2, seed=5)
        assert env.env_is_wrapped(Monitor) == [True, True]
        assert equal_bits(env.reset(), other.reset())
        assert env.render_mode == "rgb_array"
        closing(env, other)

    def test_wrappers_of_the_vector_env_work_below(self, backend):
        """Also those that change `step` alone."""

        class Doubles(VectorEnvWrapper):
            def step(self, action, id=None, **kwargs):
                obs, rew, *rest = super().step(action, id, **kwargs)
                return (obs, rew * 2, *rest)

        env = SB3VecEnv(Doubles(VectorEnvNormObs(backend(cartpoles(2)))))
        assert np.abs(env.reset()).max() <= 10
        env.step_async(np.zeros(2, int))
        with pytest.raises(RuntimeError, match="pending"):
            env.get_attr("spec")
        assert env.step_wait()[1].tolist() == [2, 2]
        assert env.venv.venv.get_obs_rms().count == 4
        env.close()


def assert_same(got, want):
    """Equal in type, dtype and value, all the way down; a number of numpy's is as good as Python's."""
    if isinstance(want, dict):
        assert isinstance(got, dict)
        assert got.keys() == want.keys()
        for key in want:
            assert_same(got[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert type(got) is type(want)
        assert len(got) == len(want)
        for left, right in zip(got, want, strict=True):
            assert_same(left, right)
    elif isinstance(want, np.ndarray):
        assert equal_bits(got, want)
    else:
        assert got == want


class TestEpisodes:
    def test_a_finished_env_is_reset_within_the_step_and_no_other_is(self, counted):
        counted.reset()
        counted.step(np.array([0, 1, 2, 3]))
        counted.set_attr("t", 0, [1])  # env 1 is one step behind
        counted.step(np.array([0, 1, 2, 3]))
        obs, rewards, dones, infos = counted.step(np.array([0, 1, 2, 3]))
        assert dones.tolist() == [True, False, True, True]
        assert obs[:, [0, 1, 2, 4]].tolist() == [[0, 1, 0, -1], [1, 0, 2, 1], [2, 1, 0, -1], [3, 1, 0, -1]]
        assert infos[2]["terminal_observation"].tolist() == [2, 0, 3, -1, 2]
        assert "terminal_observation" not in infos[1]
        assert [info["episode"] for info in counted.reset_infos] == [1, 0, 1, 1]
        assert rewards.tolist() == [3 / 1024, 1 + 2 / 1024, 2 + 3 / 1024, 3 + 3 / 1024]

    def test_truncation_is_told_from_termination(self, counted):
        counted.reset()
        told = []
        for _ in range(6):
            _, _, dones, infos = counted.step(np.zeros(4, int))
            told.append((bool(dones[0]), infos[0]["TimeLimit.truncated"]))
        assert told == [(False, False)] * 2 + [(True, False)] + [(False, False)] * 2 + [(True, True)]

    def test_seeds_and_options_are_for_the_next_reset_only(self, counted):
        assert counted.seed(7) == [7, 8, 9, 10]
        counted.set_options({"t": 1})
        assert counted.reset()[:, [2, 3]].tolist() == [[1, 7], [1, 8], [1, 9], [1, 10]]
        assert counted.reset()[:, [2, 3]].tolist() == [[0, 7], [0, 8], [0, 9], [0, 10]]
        counted.set_options([{"t": 2}, {}, {"t": 1}, {}])
        counted.seed(0)
        obs = counted.reset()
        assert obs[:, [2, 3]].tolist() == [[2, 0], [0, 1], [1, 2], [0, 3]]
        assert [info["episode"] for info in counted.reset_infos] == [2] * 4
        counted.set_options(None)
        assert counted.reset()[:, 2].tolist() == [0] * 4

    def test_seeds_differ_where_none_is_given(self, counted):
        seeds = counted.seed()
        assert len(set(seeds)) == 4
        assert counted.reset()[:, 3].tolist() == seeds

    @pytest.mark.parametrize("seed", [-1, 0.5, "1", True])
    def test_a_bad_seed_is_refused_at_once(self, counted, seed):
        with pytest.raises(ValueError, match="seed must be"):
            counted.seed(seed)
        assert counted.reset()[:, 3].tolist() == [-1] * 4

    def test_a_wrong_number_of_options_is_refused_at_once(self, counted):
        with pytest.raises(ValueError, match="got 3 options for 4 envs"):
            counted.set_options([{}] * 3)


class TestAccess:
    def test_attributes_are_read_and_set_through_wrappers(self, backend):
        env = SB3VecEnv(backend([lambda: TimeLimit(CountingEnv(), 9)] * 3))
        assert env.get_attr("length") == [5, 5, 5]
        env.set_attr("length", 7, indices=[0, -1])
        assert env.get_attr("length") == [7, 5, 7]
        assert env.get_attr("length", indices=-2) == [5]
        assert env.get_attr("length", indices=np.array([2, 1])) == [7, 5]
        assert env.get_attr("length", indices=[]) == []
        assert [frame.shape for frame in env.env_method("render", indices=range(2))] == [(2, 3, 3)] * 2
        assert env.env_method("get_wrapper_attr", "length", indices=1) == [5]
        assert env.env_method("reset", indices=2, seed=4)[0][0][3] == 4
        env.close()

    def test_has_attr_is_true_only_if_all_have_it_and_harms_nothing(self, backend):
        def with_lambda():
            env = CountingEnv()
            env.odd = lambda: (yield)  # cannot be sent
            return env

        env = SB3VecEnv(backend([with_lambda, CountingEnv]))
        assert [env.has_attr(name) for name in ("length", "odd", "nope")] == [True, False, False]
        assert env.reset().shape == (2, 5)
        env.close()

    def test_wrappers_of_each_env_are_found(self, backend):
        class Mine(TimeLimit):
            pass

        env = SB3VecEnv(backend([lambda: RecordEpisodeStatistics(Mine(CountingEnv(), 9)), CountingEnv]))
        assert env.env_is_wrapped(RecordEpisodeStatistics) == [True, False]
        assert env.env_is_wrapped(TimeLimit) == [True, False]
        assert env.env_is_wrapped(Monitor) == [False, False]
        assert env.env_is_wrapped(TimeLimit, indices=[-1]) == [False]
        env.close()

    @pytest.mark.parametrize("indices", [4, -5, [0, 4]])
    def test_an_index_out_of_range_is_refused(self, counted, indices):
        with pytest.raises(IndexError, match="out of range for 4 envs"):
            counted.get_attr("length", indices)

    def test_arguments_that_could_not_be_passed_on_are_refused(self, counted):
        with pytest.raises(TypeError, match="by position"):
            counted.env_method("reset", id=3)

    def test_frames_are_tiled(self, backend):
        env = SB3VecEnv(backend(counting(4)))
        assert env.render_mode == "rgb_array"
        frame = env.render()
        assert frame.shape == (4, 6, 3)
        assert [frame[0, 0, 0], frame[0, 3, 0], frame[2, 0, 0], frame[2, 3, 0]] == [0, 1, 2, 3]
        env.close()

    def test_frames_without_render_mode_are_none_with_a_warning(self):
        env = SB3VecEnv(DummyVectorEnv(cartpoles(2)))
        with pytest.warns(UserWarning, match="render_mode"):
            assert env.get_images() == [None, None]
        env.close()


class TestGoodBehaviour:
    """Where SB3's own SubprocVecEnv hangs, crashes without a cause, or goes on with wrong data."""

    @pytest.mark.parametrize("context", ["forkserver", "fork"])
    def test_the_error_of_an_env_arrives_as_itself_and_neither_step_nor_close_hangs(self, process_backend, context):
        make = [lambda: RaisesOnStep(0, at=2), CountingEnv]
        env = SB3VecEnv(process_backend(make, context=context))
        env.reset()
        env.step(np.zeros(2, int))
        with pytest.raises(ValueError, match="boom in step") as caught:
            env.step(np.zeros(2, int))
        assert any("env 0" in note for note in caught.value.__notes__)
        with pytest.raises(ValueError, match="boom in step"):  # not stepped before a reset
            env.step(np.zeros(2, int))
        assert env.reset()[:, 2].tolist() == [0, 0]
        assert env.step(np.zeros(2, int))[0][:, 2].tolist() == [1, 1]
        begin = time.monotonic()
        env.close()
        env.close()
        assert time.monotonic() - begin < 5

    def test_the_error_of_a_reset_within_a_step_arrives_as_itself(self, backend):
        env = SB3VecEnv(backend([lambda: RaisesOnReset(0, at=1, length=2), lambda: CountingEnv(1, length=2)]))
        env.reset()
        env.step(np.zeros(2, int))
        with pytest.raises(ValueError, match="boom in reset"):
            env.step(np.zeros(2, int))
        with pytest.raises(ValueError, match="boom in reset"):
            env.step(np.zeros(2, int))
        env.close()

    def test_the_death_of_a_worker_names_the_env_and_a_reset_goes_on(self, process_backend):
        make = [CountingEnv, lambda: ExitsOnStep(1, at=1)]
        env = SB3VecEnv(process_backend(make, num_workers=2))
        env.reset()
        with pytest.raises(WorkerDiedError, match="env 1"):
            env.step(np.zeros(2, int))
        assert env.reset()[:, :2].tolist() == [[0, 1], [1, 0]]
        env.close()

    def test_a_vector_env_that_restarts_its_envs_by_itself_says_that_the_episode_was_cut_off(self, process_backend):
        make = [CountingEnv, lambda: ExitsOnStep(1, at=2)]
        env = SB3VecEnv(process_backend(make, num_workers=2, on_error="restart"))
        env.reset()
        env.step(np.zeros(2, int))
        obs, rewards, dones, infos = env.step(np.zeros(2, int))
        assert (dones.tolist(), rewards[1]) == ([False, True], 0)
        assert infos[1]["TimeLimit.truncated"]
        assert infos[1]["restarted"]
        assert infos[1]["terminal_observation"][2] == 1
        assert obs[1].tolist() == [1, 0, 0, -1, -1]
        env.close()

    @pytest.mark.slow
    @pytest.mark.parametrize("context", ["forkserver", "fork"])
    def test_workers_end_with_a_program_that_is_killed(self, context):
        program = (
            "import gymnasium as gym, time\n"
            "from vecenv import SB3VecEnv, SubprocVectorEnv\n"
            f"env = SB3VecEnv(SubprocVectorEnv([lambda: gym.make('CartPole-v1')] * 2, context={context!r}))\n"
            "env.reset(); print(env.num_envs, flush=True); time.sleep(60)\n"
        )
        root = Path(__file__).resolve().parent.parent
        with subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "2\n"
            family = psutil.Process(process.pid).children(recursive=True)
            assert len(family) >= 2
            os.kill(process.pid, signal.SIGKILL)
        assert psutil.wait_procs(family, timeout=5)[1] == []

    def test_no_call_takes_the_answer_of_a_pending_step(self, counted):
        counted.reset()
        counted.step_async(np.arange(4))
        for call in (
            lambda: counted.get_attr("length"),
            lambda: counted.set_attr("length", 1),
            lambda: counted.has_attr("length"),
            lambda: counted.env_method("render"),
            lambda: counted.env_is_wrapped(TimeLimit),
            counted.get_images,
            lambda: counted.step_async(np.zeros(4, int)),
        ):
            with pytest.raises(RuntimeError, match="a step is pending"):
                call()
        assert counted.step_wait()[0][:, 4].tolist() == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match="no step is pending"):
            counted.step_wait()

    def test_a_reset_drops_a_pending_step(self, counted):
        counted.reset()
        counted.step_async(np.zeros(4, int))
        assert counted.reset()[:, [1, 2]].tolist() == [[1, 0]] * 4
        with pytest.raises(RuntimeError, match="no step is pending"):
            counted.step_wait()
        assert counted.step(np.arange(4))[0][:, 4].tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("count", [3, 5])
    def test_a_wrong_number_of_actions_is_refused_before_any_env_is_stepped(self, counted, count):
        counted.reset()
        with pytest.raises(ValueError, match=f"got {count} actions for 4 envs"):
            counted.step(np.zeros(count, int))
        assert counted.get_attr("t") == [0] * 4
        assert counted.step(np.arange(4))[0][:, [2, 4]].tolist() == [[1, 0], [1, 1], [1, 2], [1, 3]]

    def test_envs_with_different_spaces_are_refused_by_name(self, backend):
        makes = playing(spaces.Box(-1, 1, (2,)), [np.zeros(2, np.float32)])
        makes += playing(spaces.Box(-1, 1, (3,)), [np.zeros(3, np.float32)])
        with backend(makes) as venv, pytest.raises(ValueError, match="observation_space of env 1"):
            SB3VecEnv(venv)
        makes = [lambda: CountingEnv(), *playing(CountingEnv().observation_space, [np.zeros(5, int)])]
        with backend(makes) as venv, pytest.raises(ValueError, match="action_space of env 1"):
            SB3VecEnv(venv)

    def test_nested_spaces_come_back_as_trees_of_batches(self, backend):
        env = SB3VecEnv(backend(counting(3, form="dict", length=2)))
        obs = env.reset()
        assert (obs["who"].shape, obs["when"][0].shape, obs["when"][1].shape) == ((3,), (3, 4), (3, 2, 3))
        env.step(np.zeros(3, int))
        obs, _, dones, infos = env.step(np.zeros(3, int))
        assert dones.all()
        assert infos[2]["terminal_observation"]["when"][0].tolist() == [0, 2, -1, 0]
        assert obs["when"][0][2].tolist() == [1, 0, -1, -1]
        env.close()

    def test_observations_that_are_not_stacked_are_refused(self):
        with DummyVectorEnv(counting(2, form="dict"), stack_obs=False) as venv:
            env = SB3VecEnv(venv)
            with pytest.raises(ValueError, match="stack_obs=True"):
                env.reset()

    def test_rewards_that_are_vectors_are_refused(self):
        with DummyVectorEnv(playing(spaces.Discrete(2), [0], rewards=[np.zeros(2)])) as venv:
            env = SB3VecEnv(venv)
            env.reset()
            with pytest.raises(
                EnvContractError, match=r"env 0 returned a reward of shape \(2,\), SB3 needs one number"
            ):
                env.step(np.zeros(1, int))
        space = spaces.Discrete(2)
        with DummyVectorEnv([*playing(space, [0], rewards=[1.0]), *playing(space, [0], rewards=[np.ones(2)])]) as venv:
            env = SB3VecEnv(venv)
            env.reset()
            with pytest.raises(EnvContractError, match=r"env 1 returned a reward of shape \(2,\)") as caught:
                env.step(np.zeros(2, int))
            assert caught.value.env_id == 1

    def test_an_env_that_hangs_is_given_up_at_the_step_timeout(self, process_backend):
        env = SB3VecEnv(process_backend([CountingEnv, lambda: HangsOnStep(1, at=1)], num_workers=2, step_timeout=0.3))
        env.reset()
        with pytest.raises(WorkerTimeoutError, match="env 1"):
            env.step(np.zeros(2, int))
        env.close()

    def test_many_envs_share_few_workers_which_import_neither_torch_nor_sb3(self, process_backend):
        class Tells(CountingEnv):
            def loaded(self):
                import os
                import sys

                return os.getpid(), "torch" in sys.modules or "stable_baselines3" in sys.modules

        env = SB3VecEnv(process_backend([lambda: Tells()] * 8, num_workers=2))
        pids, heavy = zip(*env.env_method("loaded"), strict=True)
        assert len(set(pids)) == 2
        assert not any(heavy)
        env.close()

    @pytest.mark.parametrize("copy", [True, False])
    def test_results_belong_to_the_caller(self, backend, copy):
        env = SB3VecEnv(backend(counting(2, length=2), copy=copy))
        kept = [(obs := env.reset(), obs.copy())]
        for _ in range(4):
            obs, rewards, dones, infos = env.step(np.zeros(2, int))
            assert (rewards.dtype, dones.dtype, type(infos)) == (np.float32, np.bool_, list)
            kept += [(obs, obs.copy()), (rewards, rewards.copy())]
            kept += [(last, last.copy()) for info in infos if (last := info.get("terminal_observation")) is not None]
            obs = obs.copy()
        assert len(kept) == 13
        assert all(equal_bits(result, then) for result, then in kept)
        env.step(np.zeros(2, int))[0][...] = -5
        assert env.step(np.zeros(2, int))[3][0]["terminal_observation"].tolist() == [0, 2, 2, -1, 0]
        env.close()

    def test_the_info_of_an_env_is_not_written_to(self):
        env = SB3VecEnv(DummyVectorEnv(counting(1)))
        env.reset()
        assert env.step(np.zeros(1, int))[3] == [{"t": 1, "TimeLimit.truncated": False}]
        assert env.get_attr("own_info") == [{"t": 1}]
        env.close()

    def test_opening_and_closing_many_times_keeps_no_descriptor(self, process_backend):
        SB3VecEnv(process_backend(counting(2))).close()  # starts the server that stays
        before = descriptors()
        for _ in range(5):
            env = SB3VecEnv(process_backend(counting(2)))
            env.reset()
            env.close()
        assert descriptors().keys() == before.keys()

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_a_vector_env_of_gymnasium_is_taken_with_the_same_results(self, mode):
        options = {"autoreset_mode": AutoresetMode.SAME_STEP, "copy": False}
        if mode == "async":
            options["shared_memory"] = False  # multiprocessing never gives it back
        envs = gym.make_vec("CartPole-v1", 3, mode, vector_kwargs=options, max_episode_steps=12)
        ours, theirs = SB3VecEnv(envs), DummyVecEnv(cartpoles(3, 12))
        assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
        assert ours.seed(11) == theirs.seed(11)
        assert_same(ours.reset(), theirs.reset())
        ended = 0
        for action in np.random.default_rng(0).integers(0, 2, (60, 3)):
            got, want = ours.step(action), theirs.step(action)
            assert_same(got, want)
            ended += got[2].sum()
        assert ended >= 6
        assert ours.env_is_wrapped(TimeLimit) == [True] * 3
        assert ours.get_attr("gravity", [0, -1]) == theirs.get_attr("gravity", [0, -1])
        ours.set_attr("gravity", 5.0)
        assert ours.get_attr("gravity") == [5.0] * 3
        with pytest.raises(ValueError, match="all its envs only"):
            ours.set_attr("gravity", 5.0, [1])
        ours.set_options([{"low": -0.01}, {"low": -0.02}, {}])
        with pytest.raises(ValueError, match=r"\['options'\] must be the same for all envs"):
            ours.reset()
        closing(ours, theirs)

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

    def test_a_vector_env_of_gymnasium_that_resets_in_the_next_step_is_refused(self):
        envs = gym.make_vec("CartPole-v1", 2)
        with pytest.raises(ValueError, match="make it with SAME_STEP"):
            SB3VecEnv(envs)
        envs.close()

    def test_after_close_it_says_so(self, counted):
        counted.reset()
        counted.step_async(np.zeros(4, int))
        counted.close()
        with pytest.raises(ClosedError):
            counted.reset()
        with pytest.raises(ClosedError):
            counted.step(np.zeros(4, int))

    def test_what_is_no_sync_vector_env_is_refused(self):
        with DummyVectorEnv(counting(2), wait_num=1) as venv, pytest.raises(ValueError, match="without wait_num"):
            SB3VecEnv(venv)
        with pytest.raises(TypeError, match="got list"):
            SB3VecEnv(counting(2))
        with SubprocVectorEnv(playing(None, [np.zeros(2)])) as venv, pytest.raises(ValueError, match="env 0 has none"):
            SB3VecEnv(venv)


def test_without_sb3_the_error_says_what_to_install():
    program = (
        "import sys; sys.modules['stable_baselines3'] = None\n"
        "import vecenv\n"
        "try: vecenv.SB3VecEnv\n"
        "except ImportError as error: print(error)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "SB3VecEnv needs Stable-Baselines3: pip install 'vecenv[sb3]'\n"
