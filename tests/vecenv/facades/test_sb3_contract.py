"""The SB3 facade as a VecEnv: episodes, seeds, attributes and frames; and defects of SB3's vector envs.

The defects have the numbers V1 to V9. The docstring of a test names its number. Other files test V1 too
(test_facade_faults), V2, workers that outlive a killed program (test_faults_parent), and V8, descriptors that stay open
(the fixture no_leaks, after every test).
"""

import os
import sys

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.support.backends import FULL, one_of
from tests.support.cases import counting, equal_bits, playing
from tests.support.gymnasium_cases import cartpoles
from vecenv import (
    ClosedError,
    DummyVectorEnv,
    EnvContractError,
    SB3VecEnv,
    ShmemVectorEnv,
)
from vecenv.backends.ipc.messages import CALL, Channel
from vecenv.engine.env_calls import EnvCalls
from vecenv.testing import CountingEnv, ExitsOnStep, RaisesOnReset


@pytest.fixture
def counted():
    """Return the facade around four CountingEnvs with episodes of three steps."""
    env = SB3VecEnv(DummyVectorEnv(counting(4, length=3)))
    yield env
    env.close()


class TestEpisodes:
    def test_an_episode_that_ends_in_both_ways_is_not_truncated(self):
        """As in DummyVecEnv."""

        class Both(CountingEnv):
            def step(self, action):
                obs, reward, _, _, info = super().step(action)
                return obs, reward, True, True, info

        for env in (SB3VecEnv(DummyVectorEnv([Both])), DummyVecEnv([Both])):
            env.reset()
            assert env.step(np.zeros(1, int))[3][0]["TimeLimit.truncated"] is False
            env.close()

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
        seeds = counted.seed()
        assert len(set(seeds)) == 4
        assert counted.reset()[:, 3].tolist() == seeds

    def test_bad_seeds_and_options_are_refused_at_once(self, counted):
        for seed in (-1, 0.5, "1", True):
            with pytest.raises(ValueError, match="seed must be"):
                counted.seed(seed)
        for options in ("x", 3, [1, 2, 3, 4], [{}, {}, {}, None]):
            with pytest.raises(TypeError, match="takes one dict, or a list of one dict for each env; got"):
                counted.set_options(options)
        with pytest.raises(ValueError, match="got 3 options for 4 envs"):
            counted.set_options([{}] * 3)
        assert counted.reset()[:, [2, 3]].tolist() == [[0, -1]] * 4


class TestAccess:
    def test_attributes_are_read_and_set_through_wrappers(self):
        env = SB3VecEnv(DummyVectorEnv([lambda: TimeLimit(CountingEnv(), 9)] * 3))
        assert env.get_attr("length") == [5, 5, 5]
        env.set_attr("length", 7, indices=[0, -1])
        assert env.get_attr("length") == [7, 5, 7]
        assert env.get_attr("length", indices=-2) == [5]
        assert env.get_attr("length", indices=np.array([2, 1])) == [7, 5]
        assert env.get_attr("length", indices=[]) == []
        assert [frame.shape for frame in env.env_method("render", indices=range(2))] == [(2, 3, 3)] * 2
        assert env.env_method("get_wrapper_attr", "length", indices=1) == [5]
        assert env.env_method("reset", indices=2, seed=4)[0][0][3] == 4

    @pytest.mark.parametrize("kind", one_of([DummyVectorEnv, ShmemVectorEnv]))
    def test_attributes_are_set_on_the_outermost_wrapper_as_by_dummy_vec_env(self, kind):
        env_fns, found = [lambda: TimeLimit(CountingEnv(), 9)] * 3, []
        for env in (SB3VecEnv(kind(env_fns)), DummyVecEnv(env_fns)):
            env.reset()
            env.set_attr("dummy", 12)  # a new attribute
            env.set_attr("length", 7, indices=[0, -1])  # an attribute of the inner env
            env.set_attr("metadata", {"render_fps": 3}, indices=1)  # a property of the wrapper
            names = ("dummy", "length", "_metadata", "_max_episode_steps")
            found.append(
                [
                    [{name: outermost.get(name) for name in names} for outermost in env.get_attr("__dict__")],
                    [env.get_attr(name) for name in ("dummy", "length", "metadata")],
                    [inner.length for inner in env.get_attr("unwrapped")],
                    [env.has_attr(name) for name in ("dummy", "length", "nope")],
                ]
            )
            env.close()
        assert found[0] == found[1]
        assert found[0][2] == [5, 5, 5]

    def test_a_method_of_all_envs_is_one_message_to_each_worker_before_any_answer(self, monkeypatch):
        env = SB3VecEnv(ShmemVectorEnv(counting(4, length=3), num_workers=2))
        messages, post, finish = [], Channel.post, EnvCalls._finish

        def noting(channel, kind, *rest):
            messages.append(kind)
            return post(channel, kind, *rest)

        def awaited(calls, call):
            messages.append("wait")
            return finish(calls, call)

        env.reset()
        monkeypatch.setattr(Channel, "post", noting)
        monkeypatch.setattr(EnvCalls, "_finish", awaited)
        assert env.env_method("get_wrapper_attr", "length") == [3] * 4
        assert messages == [CALL, CALL, "wait"], "two workers with two envs each"
        env.close()

    @pytest.mark.parametrize("kind", one_of([DummyVectorEnv, ShmemVectorEnv]))
    def test_has_attr_is_true_only_if_all_have_it_and_harms_nothing(self, kind):
        def with_lambda():
            env = CountingEnv()
            env.odd = lambda: (yield)  # cannot be pickled
            return env

        env = SB3VecEnv(kind([with_lambda, CountingEnv]))
        assert [env.has_attr(name) for name in ("length", "odd", "nope")] == [True, False, False]
        assert env.reset().shape == (2, 5)
        env.close()

    @pytest.mark.parametrize("kind", one_of([DummyVectorEnv, ShmemVectorEnv]))
    def test_wrappers_of_each_env_are_found(self, kind):
        class Mine(TimeLimit):
            pass

        env = SB3VecEnv(kind([lambda: RecordEpisodeStatistics(Mine(CountingEnv(), 9)), CountingEnv]))
        assert env.env_is_wrapped(RecordEpisodeStatistics) == [True, False]
        assert env.env_is_wrapped(TimeLimit) == [True, False]
        assert env.env_is_wrapped(Monitor) == [False, False]
        assert env.env_is_wrapped(TimeLimit, indices=[-1]) == [False]
        env.close()

    def test_indices_out_of_range_are_refused(self, counted):
        for indices in (4, -5, [0, 4]):
            with pytest.raises(IndexError, match="out of range for 4 envs"):
                counted.get_attr("length", indices)

    def test_frames_are_tiled_and_a_render_mode_that_does_not_fit_warns_or_is_refused(self):
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
        env.close()
        env = SB3VecEnv(DummyVectorEnv(cartpoles(2)))
        with pytest.warns(UserWarning, match="render_mode"):
            assert env.get_images() == [None, None]
        env.close()


class TestGoodBehaviour:
    """Cases in which SB3's SubprocVecEnv hangs, crashes without a cause, or continues with wrong data."""

    @pytest.mark.parametrize("kind", one_of([DummyVectorEnv, ShmemVectorEnv]))
    def test_the_error_of_a_reset_within_a_step_arrives_as_itself(self, kind):
        """V1"""
        env = SB3VecEnv(kind([lambda: RaisesOnReset(0, at=1, length=2), lambda: CountingEnv(1, length=2)]))
        env.reset()
        env.step(np.zeros(2, int))
        with pytest.raises(ValueError, match="boom in reset"):
            env.step(np.zeros(2, int))
        with pytest.raises(ValueError, match="boom in reset"):
            env.step(np.zeros(2, int))
        env.close()

    @FULL
    def test_a_vector_env_that_restarts_its_envs_by_itself_says_that_the_episode_was_cut_off(self):
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

    def test_no_call_takes_the_answer_of_a_pending_step(self, counted):
        """V3"""
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
        """V3"""
        counted.reset()
        counted.step_async(np.zeros(4, int))
        assert counted.reset()[:, [1, 2]].tolist() == [[1, 0]] * 4
        with pytest.raises(RuntimeError, match="no step is pending"):
            counted.step_wait()
        assert counted.step(np.arange(4))[0][:, 4].tolist() == [0, 1, 2, 3]

    def test_envs_with_different_spaces_are_refused_by_name(self):
        """V4"""
        makes = playing(spaces.Box(-1, 1, (2,)), [np.zeros(2, np.float32)])
        makes += playing(spaces.Box(-1, 1, (3,)), [np.zeros(3, np.float32)])
        with DummyVectorEnv(makes) as venv, pytest.raises(ValueError, match=r"observation_space is .* in env 1"):
            SB3VecEnv(venv)
        makes = [lambda: CountingEnv(), *playing(CountingEnv().observation_space, [np.zeros(5, int)])]
        with DummyVectorEnv(makes) as venv, pytest.raises(ValueError, match=r"action_space is .* in env 1"):
            SB3VecEnv(venv)

    def test_nested_spaces_come_back_as_trees_of_batches(self):
        """V4"""
        env = SB3VecEnv(DummyVectorEnv(counting(3, form="dict", length=2)))
        obs = env.reset()
        assert (obs["who"].shape, obs["when"][0].shape, obs["when"][1].shape) == ((3,), (3, 4), (3, 2, 3))
        env.step(np.zeros(3, int))
        obs, _, dones, infos = env.step(np.zeros(3, int))
        assert dones.all()
        assert infos[2]["terminal_observation"]["when"][0].tolist() == [0, 2, -1, 0]
        assert obs["when"][0][2].tolist() == [1, 0, -1, -1]

    def test_observations_that_are_not_stacked_are_refused(self):
        dicts = DummyVectorEnv(counting(2, form="dict"), stack_obs=False)
        with dicts as venv, pytest.raises(ValueError, match="stack_obs=True"):
            SB3VecEnv(venv)

    def test_rewards_that_are_vectors_are_refused(self):
        with DummyVectorEnv(playing(spaces.Discrete(2), [0], rewards=[np.zeros(2)])) as venv:
            env = SB3VecEnv(venv)
            env.reset()
            with pytest.raises(
                EnvContractError, match=r"SB3 needs rewards that are numbers, the envs return the shape \(2,\)"
            ):
                env.step(np.zeros(1, int))

    def test_many_envs_share_few_workers_which_import_neither_torch_nor_sb3(self):
        """V5, V6"""

        class Reports(CountingEnv):
            def loaded(self):

                return os.getpid(), "torch" in sys.modules or "stable_baselines3" in sys.modules

        env = SB3VecEnv(ShmemVectorEnv([lambda: Reports()] * 8, num_workers=2))
        pids, heavy = zip(*env.env_method("loaded"), strict=True)
        assert len(set(pids)) == 2
        assert not any(heavy)
        env.close()

    @pytest.mark.parametrize(("kind", "copy"), [(ShmemVectorEnv, False), (DummyVectorEnv, True)])
    def test_results_belong_to_the_caller(self, kind, copy):
        """V7"""
        env = SB3VecEnv(kind(counting(2, length=2), copy=copy))
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
