"""Wrappers of a vector env, and the statistics of one wrapper."""

import functools

import numpy as np
import pytest
from gymnasium import spaces

from collector import SyncDataCollector
from tests.support.cases import counting, playing
from tests.support.countdown import Tells
from vecenv import (
    BaseVectorEnv,
    ClosedError,
    DummyVectorEnv,
    RowWiseWrapper,
    RunningMeanStd,
    VectorEnvNormObs,
    VectorEnvWrapper,
    nest,
)
from vecenv.testing import RaisesOnReset, RaisesOnStep


class TestVectorEnvWrapper:
    def test_it_is_a_vector_env_with_every_attribute_of_what_it_wraps(self):
        """The contract in test_testing.py has the calls."""
        with DummyVectorEnv(counting(3), wait_num=2) as venv, VectorEnvWrapper(venv) as wrapper:
            assert isinstance(wrapper, BaseVectorEnv)
            names = [name for name in dir(venv) if not name.startswith("_") and hasattr(venv, name)]
            assert {"env_num", "waiting_id", "ready_id", "wait_num", "timeout", "is_async", "is_closed"} <= set(names)
            for name in names:
                if not callable(getattr(venv, name)):
                    assert getattr(wrapper, name) == getattr(venv, name), name
            assert repr(wrapper) == f"VectorEnvWrapper({venv!r})"
            with pytest.raises(AttributeError, match="nope"):
                wrapper.nope  # noqa: B018
        assert venv.is_closed
        assert wrapper.is_closed

    def test_a_subclass_may_change_a_method_and_call_the_one_below(self):
        class Doubles(VectorEnvWrapper):
            closes = 0

            def step(self, action, id=None, **kwargs):
                obs, rew, *rest = super().step(action, id, **kwargs)
                return (obs, rew * 2, *rest)

            def reset(self, id=None, **kwargs):
                obs, info = super().reset(id, **kwargs)
                return -obs, info

            def close(self):
                self.closes += 1
                super().close()

        wrapper = Doubles(DummyVectorEnv(counting(2)))
        assert wrapper.reset()[0][1, 0] == -1
        assert wrapper.step([0, 0])[1].tolist() == [2 / 1024, 2 + 2 / 1024]
        wrapper.close()
        wrapper.close()
        assert (wrapper.closes, wrapper.venv.is_closed) == (2, True)
        with pytest.raises(ClosedError):
            wrapper.reset()


SCRIPT = [np.array([0.0, 10.0], np.float32), np.array([4.0, 10.0], np.float32), np.array([8.0, 40.0], np.float32)]
BOX = spaces.Box(-99, 99, (2,), np.float32)


class Notes(RowWiseWrapper):
    """Wrapper with new infos in each row, and with the rewards of the steps' infos."""

    def map_reset(self, obs, info):
        return obs, nest.object_array([{**row, "noted": [row["taken"]]} for row in info])

    def map_step(self, obs, rew, terminated, truncated, info):
        taken = [row["taken"] for row in info]
        assert obs[:, 1].tolist() == taken
        return obs, np.array(taken, float), terminated, truncated, self.map_reset(obs, info)[1]


class TestRowWiseWrapper:
    def test_infos_are_those_of_the_step_or_reset_and_the_wrapper_may_return_others(self):
        with Notes(Notes(DummyVectorEnv([functools.partial(Tells, 2), functools.partial(Tells, 3)]))) as venv:
            infos = [
                venv.reset()[1],
                *(venv.step([0, 0], **how)[4] for how in ({}, {"autoreset": True}, {"reset": [0]})),
            ]
            assert [[row["noted"] for row in info] for info in infos] == [
                [[-1], [-1]],
                [[1], [1]],
                [[-1], [2]],
                [[-1], [3]],
            ]
            assert [row["env_id"] for info in infos for row in info] == [0, 1] * 4
            ended = infos[2][0]
            assert ended["final_obs"].tolist() == [0, 2]
            assert (ended["final_info"]["noted"], "env_id" in ended["final_info"]) == ([2], False)

    def test_rewards_from_infos_do_not_depend_on_where_an_episode_ends_in_a_batch(self):
        venv = Notes(DummyVectorEnv([functools.partial(Tells, 2), functools.partial(Tells, 3)]))
        with SyncDataCollector(venv, lambda obs: np.zeros(len(obs), int), frames_per_batch=12) as collector:
            batch = collector.next()
        np.testing.assert_array_equal(batch.reward, batch.step_count + 1)


class TestVectorEnvNormObs:
    def test_every_batch_updates_and_is_normalised(self):
        """Also if the statistics are shared first, as in tianshou's examples."""
        space = spaces.Dict({"a": BOX, "b": spaces.Tuple((spaces.Discrete(9), BOX))})
        rows = [{"a": row, "b": (3, -row)} for row in SCRIPT]
        with (
            VectorEnvNormObs(DummyVectorEnv(playing(space, rows, rows[1:]))) as train,
            VectorEnvNormObs(DummyVectorEnv(playing(space, rows[:1])), update_obs_rms=False) as test,
        ):
            test.set_obs_rms(train.get_obs_rms())
            assert train.observation_space == [space] * 2
            for call, seen in ((train.reset, [0, 1]), (lambda: train.step([0], [0]), [0, 1, 1])):
                obs = call()[0]["a"]
                raw = np.stack([SCRIPT[i] for i in seen])
                want = np.clip((raw - raw.mean(0)) / np.sqrt(raw.var(0) + np.finfo(np.float32).eps), -10, 10)
                np.testing.assert_allclose(obs, want[-len(obs) :], atol=1e-5)
                assert obs.dtype == np.float32
            shared = list(nest.leaves(test.get_obs_rms()))
            for rms, plain, got in zip(
                shared, nest.leaves(nest.stack(rows[:1])), nest.leaves(test.reset()[0]), strict=True
            ):
                assert rms.count == 3
                np.testing.assert_array_equal(got, rms.norm(plain))
                assert got.dtype == (np.float32 if plain.dtype == np.float32 else np.float64)

    def test_without_statistics_observations_stay_as_they_are(self):
        with VectorEnvNormObs(DummyVectorEnv(counting(2))) as venv:
            venv.set_obs_rms(None)
            assert venv.reset()[0].tolist() == [[i, 0, 0, -1, -1] for i in range(2)]

    def test_the_results_of_the_others_in_an_error_are_normalised_and_counted_once(self):
        fns = [functools.partial(RaisesOnStep, 0, at=2), *counting(2)]
        with VectorEnvNormObs(VectorEnvNormObs(DummyVectorEnv(fns))) as outer:
            inner = outer.venv
            outer.reset()
            for call in (lambda: outer.step([0, 0, 0]), lambda: outer.send([0, 0, 0]) or outer.recv()):
                outer.step([0, 0, 0])
                before = inner.get_obs_rms().count, outer.get_obs_rms().count
                with pytest.raises(ValueError, match="boom in step") as caught:
                    call()
                assert (inner.get_obs_rms().count, outer.get_obs_rms().count) == (before[0] + 2, before[1] + 2)
                raw = inner.venv.step([1, 1], [1, 2])[0] - [0, 0, 1, 0, 1]
                assert np.allclose(caught.value.partial.obs, outer.get_obs_rms().norm(inner.get_obs_rms().norm(raw)))
                with pytest.raises(ValueError, match="boom in step"):
                    outer.step([0], [0])
                assert inner.get_obs_rms().count == before[0] + 2
                outer.reset()
        with VectorEnvNormObs(DummyVectorEnv([functools.partial(RaisesOnReset, 0, at=1), *counting(1)])) as venv:
            venv.reset()
            with pytest.raises(ValueError, match="boom in reset") as caught:
                venv.reset(env_id=[1, 0])
            assert caught.value.partial.obs.dtype == np.float64
            assert venv.get_obs_rms().count == 3


class TestRunningMeanStd:
    def test_before_any_row_it_has_the_mean_and_deviation_it_was_given(self):
        rms = RunningMeanStd(mean=2.0, std=4.0, clip_max=1.5)
        assert np.allclose(rms.norm(np.array([2.0, 6.0, 100.0, -100.0])), [0, 1, 1.5, -1.5])
        assert RunningMeanStd(clip_max=None).norm(np.array([1e6]))[0] == pytest.approx(1e6)
        assert RunningMeanStd().norm(np.array([1e6]))[0] == 10

    def test_dtypes(self):
        for dtype, becomes in (("float16",) * 2, ("float32",) * 2, ("float64",) * 2, ("uint8", "float64")):
            assert RunningMeanStd().norm(np.ones(2, dtype)).dtype == becomes

    def test_its_state_can_be_kept(self):
        rms, other = RunningMeanStd(), RunningMeanStd()
        rms.update(np.array([[1.0], [3.0]]))
        state = rms.state_dict()
        rms.update(np.array([[100.0]]))
        assert state["count"] == 2
        other.load_state_dict(state)
        assert (other.mean.tolist(), other.var.tolist(), other.count) == ([2], [1], 2)
        other.update(np.array([[5.0]]))
        assert (state["mean"].tolist(), state["count"]) == ([2], 2)
