"""The SB3 facade as a VecEnv: episodes, seeds, options, attributes and frames."""

import numpy as np
import pytest
from cases import counting
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from gymnasium_cases import cartpoles
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.backends import one_of
from vecenv import DummyVectorEnv, SB3VecEnv, ShmemVectorEnv
from vecenv.backends.ipc.messages import CALL, Channel
from vecenv.engine.env_calls import EnvCalls
from vecenv.testing import CountingEnv


@pytest.fixture
def counted():
    """Four CountingEnvs of three steps an episode."""
    env = SB3VecEnv(DummyVectorEnv(counting(4, length=3)))
    yield env
    env.close()


class TestEpisodes:
    def test_an_episode_that_ends_in_both_ways_is_not_truncated(self):
        """As with DummyVecEnv."""

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
            env.set_attr("dummy", 12)  # new
            env.set_attr("length", 7, indices=[0, -1])  # the inner env's own
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
        messages, post, finish = [], Channel.post, EnvCalls.finish

        def noting(channel, kind, *rest):
            messages.append(kind)
            return post(channel, kind, *rest)

        def awaited(calls, call):
            messages.append("wait")
            return finish(calls, call)

        env.reset()
        monkeypatch.setattr(Channel, "post", noting)
        monkeypatch.setattr(EnvCalls, "finish", awaited)
        assert env.env_method("get_wrapper_attr", "length") == [3] * 4
        assert messages == [CALL, CALL, "wait"], "two workers with two envs each"
        env.close()

    @pytest.mark.parametrize("kind", one_of([DummyVectorEnv, ShmemVectorEnv]))
    def test_has_attr_is_true_only_if_all_have_it_and_harms_nothing(self, kind):
        def with_lambda():
            env = CountingEnv()
            env.odd = lambda: (yield)  # cannot be sent
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

    def test_indices_out_of_range_and_arguments_that_could_not_be_passed_on_are_refused(self, counted):
        for indices in (4, -5, [0, 4]):
            with pytest.raises(IndexError, match="out of range for 4 envs"):
                counted.get_attr("length", indices)
        with pytest.raises(TypeError, match="by position"):
            counted.env_method("reset", id=3)

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
