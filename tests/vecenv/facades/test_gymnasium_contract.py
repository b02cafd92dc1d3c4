"""The contract on which code for gymnasium's vector envs relies: attributes, arguments and errors."""

import copy

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode

from tests.support.backends import FULL
from tests.support.gymnasium_cases import Remembers, Reports, assert_same
from vecenv import AsyncVectorEnv, DummyVectorEnv, GymnasiumVectorEnv, NotStartedError, SerialEnv, SyncVectorEnv
from vecenv.facades import make_vec
from vecenv.testing import CountingEnv


@pytest.fixture
def make():
    """Return a function that makes a vector env, which is closed after the test. Other tests compare backends."""
    made = []

    def make(env_fns, **options):
        made.append(SyncVectorEnv(env_fns, **options))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def cartpole(**options):
    return lambda: gym.make("CartPole-v1", **options)


class TestAttributes:
    def test_it_is_a_gymnasium_vector_env_with_the_expected_attributes(self, make):
        envs = make([cartpole(render_mode="rgb_array")] * 3)
        assert isinstance(envs, gym.vector.VectorEnv)
        assert envs.unwrapped is envs
        assert (envs.num_envs, envs.render_mode, envs.spec, envs.closed) == (3, "rgb_array", None, False)
        assert envs.single_action_space == gym.spaces.Discrete(2)
        assert envs.action_space == gym.spaces.MultiDiscrete([2, 2, 2])
        assert envs.observation_space.shape == (3, 4)
        assert repr(envs) == f"{type(envs).__name__}(num_envs=3)"

    @pytest.mark.parametrize("cls", [GymnasiumVectorEnv, SyncVectorEnv, AsyncVectorEnv, make_vec.BACKENDS["thread"]])
    def test_the_class_of_gymnasium_is_a_direct_base(self, cls):
        """skrl's `wrap_env` recognises a vector env by its direct bases."""
        assert gym.vector.VectorEnv in cls.__bases__

    def test_a_deep_copy_is_refused_with_what_to_write(self, make):
        with pytest.raises(TypeError, match="cannot be pickled or copied; make another one from the same env_fns"):
            copy.deepcopy(make([CountingEnv]))

    def test_the_reward_space_is_the_envs(self, make):
        """`MORecordEpisodeStatistics` of mo-gymnasium 1.3.2 reads it."""

        class TwoRewards(CountingEnv):
            reward_space = gym.spaces.Box(-1, 1, (2,), np.float32)

        assert make([TwoRewards] * 2).unwrapped.reward_space == TwoRewards.reward_space
        assert not hasattr(make([CountingEnv]), "reward_space")

    def test_metadata_is_a_copy_that_names_the_autoreset_mode(self, make):
        """The metadata of the env class is not modified (gymnasium #1623)."""
        before = dict(gym.make("CartPole-v1").unwrapped.metadata)
        for given, mode in [(mode, mode) for mode in AutoresetMode] + [(mode.value, mode) for mode in AutoresetMode]:
            envs = make([cartpole()] * 2, autoreset_mode=given)
            assert envs.metadata["autoreset_mode"] is mode
            assert envs.autoreset_mode is mode
            assert envs.metadata["render_fps"] == 50
        assert gym.make("CartPole-v1").unwrapped.metadata == before

    def test_clients_find_the_processes_and_the_latest_observations_of_async_vector_env(self):
        envs = AsyncVectorEnv([cartpole()] * 3, num_workers=2)
        assert envs.observations.shape == (3, 4)
        assert np.array_equal(envs.reset(seed=0)[0], envs.observations)
        assert np.array_equal(envs.step(np.ones(3, int))[0], envs.observations)
        assert [process.is_alive() for process in envs.processes] == [True, True]
        envs.close()

    def test_seeds_of_the_envs_are_a_tuple_that_a_reset_without_seed_leaves(self, make):
        envs = make([cartpole()] * 3)
        envs.reset(seed=42)
        assert envs.np_random_seed == (42, 43, 44)
        first = [rng.bit_generator.state for rng in envs.np_random]
        envs.reset()
        assert envs.np_random_seed == (42, 43, 44)
        assert [rng.bit_generator.state for rng in envs.np_random] != first


class TestSeedsAndOptions:
    def test_bad_seeds_and_options_are_refused_before_any_env_is_touched(self, make):
        envs = make([Remembers] * 3)
        for seed in ([1, 2], np.arange(4), [1, 2, -3], 1.5, "1", [1, 2, 3.5], True):
            with pytest.raises(ValueError, match="seed"):
                envs.reset(seed=seed)
        for options in ([1], "x", 3):
            with pytest.raises(TypeError, match="takes one dict of options for all envs, or None; got"):
                envs.reset(options=options)
        assert envs.get_attr("resets") == ([], [], [])
        envs.reset()

    @pytest.mark.parametrize(
        ("mask", "error", "message"),
        [
            ([True, False, True], TypeError, "must be a numpy array"),
            (np.array([True]), ValueError, r"must have shape `\(3,\)`, got \(1,\)"),
            (np.array([1, 0, 1]), TypeError, "must have `dtype=np.bool_`, got int64"),
            (np.zeros(3, bool), ValueError, "at least one True value"),
        ],
    )
    def test_bad_masks_are_refused_and_the_vector_env_goes_on(self, make, mask, error, message):
        envs = make([Remembers] * 3)
        with pytest.raises(error, match=message):
            envs.reset(options={"reset_mask": mask})
        assert envs.get_attr("resets") == ([], [], [])
        envs.reset()

    def test_a_masked_reset_returns_the_latest_observations_of_the_others_and_frames_are_a_tuple(self, make):
        envs = make([lambda i=i: CountingEnv(i) for i in range(3)], autoreset_mode="Disabled")
        envs.reset(seed=5)
        frames = envs.render()
        assert isinstance(frames, tuple)
        assert [frame[0, 0, 0] for frame in frames] == [0, 1, 2]
        before, *_ = envs.step([7, 7, 7])
        kept = before[1].copy()
        before[:] = -99  # the caller owns this array
        obs, infos = envs.reset(seed=[1, 2, 3], options={"reset_mask": np.array([True, False, True]), "t": 2})
        assert obs.tolist() == [[0, 1, 2, 1, -1], kept.tolist(), [2, 1, 2, 3, -1]]
        assert_same(infos, {"episode": np.array([1, 0, 1]), "_episode": np.array([True, False, True])})


class TestSteps:
    def test_results_belong_to_the_caller(self, make):
        envs = make([Reports] * 3)
        first, _ = envs.reset()
        obs, rewards, terminations, truncations, infos = envs.step(iter([1, 2, 3]))
        assert infos == {}
        for array in (obs, rewards, terminations, truncations):
            array[...] = 1  # vector wrappers write into their arguments
        later, rewards_later, *_ = envs.step([1, 1, 1])
        assert (first == 0).all()
        assert (obs == 1).all()
        assert (later == 2).all()
        assert not np.shares_memory(rewards, rewards_later)

    def test_without_copies_the_same_writeable_array_comes_back_each_time(self, make):
        envs = make([Reports] * 3, copy=False)
        obs, _ = envs.reset()
        later, rewards, terminations, *_ = envs.step([1, 1, 1])
        assert np.shares_memory(obs, later)
        assert obs.flags.writeable
        assert (obs == 1).all()
        _, rewards_later, terminations_later, *_ = envs.step([1, 1, 1])
        assert not np.shares_memory(rewards, rewards_later)
        assert not np.shares_memory(terminations, terminations_later)


class TestCalls:
    def test_call_calls_methods_with_all_keywords_and_returns_what_is_none(self, make):
        envs = make([Remembers] * 2)
        assert envs.call("add", 1, b=2) == (3, 3)
        assert envs.call("failure") == (None, None)
        assert envs.get_attr("metadata") == ({"render_modes": []},) * 2
        envs.call("reset")
        assert [len(env.resets) for env in envs.envs] == [1, 1]
        envs = make([Keywords] * 3)  # these keywords are also parameters of the engine's methods
        assert envs.call("all", id=2, op="x") == ({"id": 2, "op": "x"},) * 3
        envs.call_async("all", id=[1])
        assert envs.call_wait() == ({"id": [1]},) * 3

    def test_set_attr_takes_one_value_for_all_or_one_for_each(self, make):
        envs = make([cartpole()] * 3)
        envs.set_attr("gravity", [1.0, 2.0, 3.0])
        assert envs.get_attr("gravity") == (1.0, 2.0, 3.0)
        envs.set_attr("gravity", 4.0)
        assert envs.get_attr("gravity") == (4.0,) * 3
        with pytest.raises(ValueError, match="Got `2` values for 3 environments"):
            envs.set_attr("gravity", (1.0, 2.0))
        assert envs.get_attr("gravity") == (4.0,) * 3

    def test_set_attr_sets_where_gymnasium_does(self, make):
        """An existing attribute is set on its wrapper or env, and a new attribute on the outermost wrapper."""
        found = []
        for kind in (make, gym.vector.SyncVectorEnv):
            envs = kind([lambda: gym.wrappers.TimeLimit(CountingEnv(), 9)] * 2)
            envs.set_attr("new", [1, 2])
            envs.set_attr("length", 7)
            envs.set_attr("_max_episode_steps", 3)
            outermost = envs.get_attr("__dict__")
            found.append([[each.get(name) for each in outermost] for name in ("new", "length", "_max_episode_steps")])
            found[-1].append([env.length for env in envs.get_attr("unwrapped")])
            envs.close()
        assert found[0] == found[1]

    def test_call_refuses_what_has_a_method_of_its_own(self):
        with DummyVectorEnv([Reports] * 2) as venv:
            envs = GymnasiumVectorEnv(venv)
            for name in ("reset", "step", "close"):
                with pytest.raises(ValueError, match=f"use `{name}` directly"):
                    envs.call(name)


class TestEnd:
    def test_close_is_idempotent_and_nothing_works_afterwards(self, make):
        envs = make([Reports] * 2)
        envs.close()
        envs.close()
        assert envs.closed
        assert envs.venv.is_closed
        for use in (envs.reset, lambda: envs.step([0, 0]), envs.step_wait, envs.render, lambda: envs.call("t")):
            with pytest.raises(ClosedEnvironmentError, match=r"after a call to `close\(\)`"):
                use()

    @pytest.mark.parametrize("cls", [AsyncVectorEnv, SyncVectorEnv, GymnasiumVectorEnv])
    def test_what_was_never_made_is_closed_in_silence(self, cls):
        """Some versions of gymnasium call `close` when a refused object is deleted."""
        envs = cls.__new__(cls)
        envs.close(timeout=1.0)
        assert envs.closed
        AsyncVectorEnv([Reports] * 2).close(timeout=1.0, terminate=False)
        AsyncVectorEnv([Reports] * 2).close(terminate=True)


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"worker": print}, ValueError, "your own EnvWorker"),
            ({"max_concurrency": 0}, ValueError, "`max_concurrency` must be a positive or None, got 0"),
            ({"max_concurrency": 2.0}, ValueError, "`max_concurrency` must be an integer or None, got <class 'float'>"),
            ({"max_concurrency": 1, "num_workers": 2}, ValueError, "max_concurrency=1"),
            ({"wait_num": 1}, TypeError, "all envs step together"),
            ({"timeout": 1.0}, TypeError, r"step_wait\(timeout\)"),
            ({"observation_mode": "alike"}, ValueError, "Invalid `observation_mode`, expected: 'same' or 'different'"),
            ({"observation_mode": (1, 2)}, TypeError, "to be Spaces, got <class 'int'> and <class 'int'>"),
            ({"autoreset_mode": "never"}, ValueError, "never"),
            ({"final_info_format": "tuple"}, ValueError, "final_info_format"),
            ({"final_info_format": "list"}, ValueError, "SAME_STEP"),
            ({"random_initial_steps": -1}, ValueError, "random_initial_steps"),
            ({"context": "thread"}, ValueError, "thread"),
            ({"unknown": 1}, TypeError, "unknown"),
        ],
    )
    def test_what_makes_no_sense_is_refused_before_an_env_is_made(self, options, error, message):
        with pytest.raises(error, match=message):  # and not the ZeroDivisionError of an env_fn
            AsyncVectorEnv([lambda: 1 / 0] * 2, **options)

    @pytest.mark.parametrize(("daemon", "most"), [(True, 1), pytest.param(False, 9, marks=FULL)])
    def test_envs_may_start_processes_whatever_daemon_says_and_max_concurrency_is_the_number_of_workers(
        self, daemon, most
    ):
        envs = AsyncVectorEnv([Parent] * 2, daemon=daemon, max_concurrency=most)
        assert envs.call("child_says") == ("hello\n", "hello\n")
        assert envs.venv.num_workers == min(most, 2)
        envs.close()

    def test_what_steps_not_together_or_not_in_batches_or_is_no_vector_env_of_ours_is_refused(self):
        with DummyVectorEnv([Reports] * 2, wait_num=1) as venv, pytest.raises(ValueError, match="without wait_num"):
            GymnasiumVectorEnv(venv)
        env_fns = [lambda: CountingEnv(form="dict")] * 2
        with DummyVectorEnv(env_fns, stack_obs=False) as venv, pytest.raises(ValueError, match="stack_obs"):
            GymnasiumVectorEnv(venv)
        with pytest.raises(TypeError, match=r"a vector env of vecenv is needed, .*got <"):
            GymnasiumVectorEnv(Reports())
        with pytest.raises(NotStartedError, match=r"call start\(\) or reset\(\) first"):
            GymnasiumVectorEnv(SerialEnv(2, Reports))


class Keywords(Reports):
    """Env whose method returns its keywords."""

    def all(self, **keywords):
        return keywords


class Parent(Reports):
    """Env that starts a process."""

    def child_says(self):
        import multiprocessing

        queue = multiprocessing.get_context("fork").SimpleQueue()
        child = multiprocessing.get_context("fork").Process(target=queue.put, args=("hello\n",))
        child.start()
        said = queue.get()
        child.join()
        return said
