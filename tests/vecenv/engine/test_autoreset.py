"""step(..., autoreset=True): the last step of an episode and the first observation of the next, in one round.

`check_vector_env` checks this on all backends. These tests check the code that hosts the envs.
"""

import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import and_ray
from tests.support.cases import LocalWorker, Plays, RaisesOnce, counting
from vecenv import (
    BaseVectorEnv,
    DummyVectorEnv,
    ObservationError,
    ShmemVectorEnv,
    SubprocVectorEnv,
    ThreadVectorEnv,
    VectorEnvNormObs,
)
from vecenv.backends.ipc.serialization import PICKLED
from vecenv.backends.pool.worker_pool import WorkerPool
from vecenv.testing import CountingEnv

remote_backend = and_ray([ShmemVectorEnv])


class FailsInSecondReset(CountingEnv):
    def reset(self, **kwargs):
        if self.episode == 0 and self.env_id == 1:
            if self.form == "dict":  # the array is written before the text is refused
                return {"who": 1, "when": (np.full(4, 99), None)}, {}
            raise RuntimeError("no second episode")
        return super().reset(**kwargs)


class FailsInSecondEpisode(CountingEnv):
    def step(self, action):
        if self.episode == 1 and self.env_id == 1:
            raise RuntimeError("no second step")
        return super().step(action)


class TakesDictsAndPaysTwice(CountingEnv):
    def __init__(self, env_id=0):
        super().__init__(env_id, length=2)
        self.action_space = spaces.Dict({"go": spaces.Discrete(5)})

    def step(self, action):
        obs, reward, *rest = super().step(action["go"])
        return obs, np.array([reward, 2 * reward]), *rest


class ReusesItsArrays(gymnasium.Env):
    action_space = spaces.Discrete(2)
    observation_space = spaces.Sequence(spaces.Box(0, 9, (1,), np.int64))

    def __init__(self):
        self.own, self.seen = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.counts = {"steps": 0, "own": self.own}

    def _now(self, t):
        self.own[:] = self.seen[:] = self.counts["steps"] = t
        return (self.seen,), {"own": self.own, "counts": self.counts}

    def reset(self, *, seed=None, options=None):
        return self._now(0)

    def step(self, action):
        obs, info = self._now(1)
        return obs, 0.0, True, False, info


def test_ends_of_episodes_without_infos_pickle_nothing(monkeypatch):
    with ShmemVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3) as venv:
        venv.reset(seed=0)
        loads, loaded, ends = pickle.loads, [], 0
        monkeypatch.setattr(pickle, "loads", lambda data: loaded.append(data) or loads(data))
        for _ in range(50):
            ends += sum("final_obs" in info for info in venv.step([1, 1, 1], autoreset=True)[4])
        assert ends > 3
        assert loaded == []


@pytest.mark.guarantee("G7.4")
@pytest.mark.parametrize("backend", [DummyVectorEnv, ThreadVectorEnv, SubprocVectorEnv, ShmemVectorEnv])
def test_an_env_is_reset_with_its_seed_in_the_round_of_its_last_step(backend):
    seeds, ended = np.array([7, 8, -1]), set()
    with backend([lambda: gymnasium.make("CartPole-v1")] * 3) as venv, gymnasium.make("CartPole-v1") as env:
        first = [env.reset(seed=seed)[0].tolist() for seed in (7, 8)]
        venv.reset(seed=0)
        for _ in range(30):
            obs, _, _, _, info = venv.step(np.ones(3, np.int64), autoreset=seeds)
            for i in [i for i, each in enumerate(info) if "final_obs" in each]:
                ended.add(i)
                assert (obs[i].tolist() in first) == (i < 2)
                assert i == 2 or obs[i].tolist() == first[i]
        venv.step(np.ones(1, np.int64), [1], autoreset=seeds[1:2])
        info = []
        while not any("final_obs" in each for each in info):  # without seeds, the envs use their generators
            obs, _, _, _, info = venv.step(np.ones(3, np.int64), autoreset=True)
            assert all(obs[i].tolist() not in first for i, each in enumerate(info) if "final_obs" in each)
    assert ended == {0, 1, 2}


@pytest.mark.guarantee("G7.5")
@pytest.mark.parametrize("backend", [DummyVectorEnv, ShmemVectorEnv])
def test_autoreset_takes_seeds_in_every_form_and_says_no_in_three(backend):
    seeds = [7, 8, -1]
    with backend([lambda i=i: CountingEnv(i, length=1) for i in range(3)]) as venv:
        venv.reset()
        for yes in (seeds, tuple(seeds), [7, np.uint8(8), None], np.array(seeds, np.int32), np.array(seeds, object)):
            assert venv.step([0] * 3, autoreset=yes)[0][:, 3].tolist() == seeds
        for yes in (True, np.True_, np.array(True)):
            assert all("final_obs" in info for info in venv.step([0] * 3, autoreset=yes)[4])
        for no in (None, False, np.False_, np.array(False)):
            info = venv.step([0] * 3, autoreset=no)[4]
            assert not any("final_obs" in each for each in info)


class ShowsMuch(gymnasium.Env):
    """Env that observes a large array and a text, which is an object."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict({"image": spaces.Box(0, 255, (1000, 100), np.uint8), "text": spaces.Text(9)})

    def reset(self, *, seed=None, options=None):
        return {"image": np.full((1000, 100), 1, np.uint8), "text": "first"}, {}

    def step(self, action):
        return {"image": np.full((1000, 100), 2, np.uint8), "text": "last"}, 0.0, True, False, {}


def test_of_an_observation_only_the_objects_travel_pickled(monkeypatch):
    sizes = []
    code = PICKLED._replace(loads=lambda data: sizes.append(len(data)) or pickle.loads(data))
    monkeypatch.setattr(WorkerPool, "code", code)
    with ShmemVectorEnv([ShowsMuch] * 2, num_workers=1) as venv:
        sizes.clear()
        venv.reset()
        obs, _, _, _, info = venv.step([0, 0], autoreset=True)
        assert sizes
        assert max(sizes) < 2000
    assert obs["text"].tolist() == ["first"] * 2
    assert [row["final_obs"]["text"] for row in info] == ["last"] * 2
    assert (obs["image"] == 1).all()
    assert all((row["final_obs"]["image"] == 2).all() for row in info)


@pytest.mark.parametrize("backend", [DummyVectorEnv, ShmemVectorEnv])
def test_final_infos_and_objects_are_apart_from_what_the_env_writes_over(backend):
    with backend([ReusesItsArrays]) as venv:
        venv.reset()
        obs, _, _, _, info = venv.step([0], autoreset=True)
        assert info[0]["final_info"]["own"].tolist() == [1]
        assert info[0]["final_info"]["counts"] == {"steps": 1, "own": np.array([1])}
        assert info[0]["counts"] == {"steps": 0, "own": np.array([0])}
        assert [value.tolist() for value in info[0]["final_obs"]] == [[1]]
        assert [value.tolist() for value in obs[0]] == [[0]]


def test_actions_that_are_no_arrays_reset_as_well_and_vector_rewards_are_those_of_the_step():
    with DummyVectorEnv([lambda i=i: TakesDictsAndPaysTwice(i) for i in range(2)]) as venv:
        venv.reset()
        venv.step([{"go": 1}, {"go": 1}], autoreset=True)
        obs, rew, terminated, _, info = venv.step([{"go": 3}, {"go": 4}], autoreset=True)
        assert terminated.all()
        assert [row["final_obs"][-1] for row in info] == [3, 4]
        assert obs[:, -1].tolist() == [-1, -1]
        assert np.array_equal(rew, [[2 / 1024, 4 / 1024], [1 + 2 / 1024, 2 + 4 / 1024]])


def test_partial_and_mixed_rounds_reset_only_what_they_stepped():
    with DummyVectorEnv(counting(4, length=2)) as venv:
        venv.reset()
        venv.step([0] * 4)
        _, _, terminated, _, info = venv.step([5, 5, 5], [3, 0, 2], reset=[0], autoreset=True)
        assert terminated.tolist() == [True, False, True]
        assert ["final_obs" in row for row in info] == [True, False, True]
        assert info[0]["final_obs"].flags.writeable
        assert [row["env_id"] for row in info] == [3, 0, 2]
        _, _, terminated, _, info = venv.step([5], [1])
        assert terminated.tolist() == [True]
        assert "final_obs" not in info[0]


def test_a_last_observation_does_not_change_with_later_ends(remote_backend):
    with remote_backend(counting(2, length=1)) as venv:
        venv.reset()
        rounds = [venv.step([0] * 2, autoreset=True)[4] for _ in range(2)]
    assert [info[1]["final_obs"][:3].tolist() for info in rounds] == [[1, 0, 1], [1, 1, 1]]


def test_async_rounds_reset_as_well(remote_backend):
    with remote_backend(counting(4, length=1), wait_num=2, num_workers=2) as venv:
        venv.reset()
        seen = []
        _, _, terminated, _, info = venv.step([0] * 4, autoreset=True)
        while True:
            assert terminated.all()
            assert all("final_obs" in row for row in info)
            seen += [row["env_id"] for row in info]
            if len(seen) >= 4:
                break
            _, _, terminated, _, info = venv.step(None)
        assert sorted(seen) == [0, 1, 2, 3]


def test_strict_takes_the_next_episode_as_begun():
    with DummyVectorEnv(counting(2, length=1), strict=True) as venv:
        venv.reset()
        venv.step([0, 0], autoreset=True)
        venv.step([0, 0])
        with pytest.raises(RuntimeError, match="env 0 has not been reset"):
            venv.step([0, 0])


def test_a_reset_that_fails_is_a_failure_of_its_env_and_loses_no_row():
    with DummyVectorEnv([lambda i=i: FailsInSecondReset(i, length=1) for i in range(3)]) as venv:
        venv.reset()
        with pytest.raises(RuntimeError, match="no second episode") as caught:
            venv.step([0, 0, 0], autoreset=True)
        partial = caught.value.partial
        assert partial.env_id.tolist() == [0, 1, 2]
        assert partial.terminated.all()
        assert ["final_obs" in row for row in partial.info] == [True, False, True]
        assert partial.obs[:, 2].tolist() == [0, 1, 0]
        assert partial.info[1]["t"] == 1
        assert venv.failed_id == [1]
        assert "env 1, reset()" in "".join(caught.value.__notes__)


def test_an_observation_of_a_reset_that_does_not_fit_leaves_that_of_the_last_step():
    with DummyVectorEnv([lambda i=i: FailsInSecondReset(i, length=1, form="dict") for i in range(2)]) as venv:
        venv.reset()
        with pytest.raises(ObservationError, match="env 1: ") as caught:
            venv.step([0, 0], autoreset=True)
        obs = caught.value.partial.obs
        assert (obs["who"].tolist(), obs["when"][0][:, 1].tolist()) == ([0, 1], [0, 1])


def test_a_reset_that_fails_is_repeated_and_the_step_before_it_is_kept():
    fns = [lambda i=i: RaisesOnce(i, length=1) for i in range(2)]
    with DummyVectorEnv(fns, on_error="restart") as venv:
        venv.reset()
        obs, rew, terminated, truncated, info = venv.step([6, 7], autoreset=True)
        assert rew.all()
        assert ((terminated | truncated).tolist(), venv.failed_id) == ([True, True], [])
        for i in range(2):
            assert info[i]["final_obs"].tolist() == [i, 0, 1, -1, 6 + i]
            assert info[i]["final_info"] == {"t": 1}
            assert info[i]["episode"] == 1
            assert obs[i].tolist() == [i, 1, 0, -1, -1]
        assert venv.stats()["absorbed"] == 2


def test_a_failure_after_an_episode_that_ended_is_no_end_of_the_next():
    fns = [lambda i=i: FailsInSecondEpisode(i, length=1) for i in range(2)]
    with DummyVectorEnv(fns, on_error="restart") as venv:
        venv.reset()
        assert venv.step([0, 0], autoreset=True)[2].tolist() == [True, True]
        _, rew, terminated, truncated, info = venv.step([0, 0], autoreset=True)
        assert info[1]["final_info"]["restarted"]
        assert (terminated[1], truncated[1], rew[1]) == (False, True, 0)


def test_a_backend_that_cannot_refuses_before_anything_is_sent():
    with BaseVectorEnv(counting(2), LocalWorker) as venv:
        venv.reset()
        with pytest.raises(TypeError, match="BaseVectorEnv cannot reset an env in the round of its last step"):
            venv.step([0, 0], autoreset=True)
        assert venv.step([1, 1])[0][:, -1].tolist() == [1, 1]


def test_observations_are_normalised_as_in_two_rounds():
    script = [np.array([x], np.float32) for x in (0.0, 4.0)]

    class Ends(Plays):
        def step(self, action):
            obs, reward, _, _, info = super().step(action)
            return obs, reward, True, False, info

    fns = [lambda: Ends(spaces.Box(-9, 9, (1,), np.float32), script)] * 2
    with VectorEnvNormObs(DummyVectorEnv(fns)) as one, VectorEnvNormObs(DummyVectorEnv(fns)) as two:
        one.reset()
        two.reset()
        first, _, _, _, info = one.step([0, 0], autoreset=True)
        last = two.step([0, 0])[0]
        assert np.array_equal([row["final_obs"] for row in info], last)
        assert np.array_equal(first, two.reset()[0])
        assert one.get_obs_rms().state_dict() == two.get_obs_rms().state_dict()
