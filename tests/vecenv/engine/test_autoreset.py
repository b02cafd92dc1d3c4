"""step(..., autoreset=True): the last step of an episode and the first observation of the next, in one round.

Random programs draw it on each backend, with failures of the reset. These tests show restarts, and who owns what.
"""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.support.cases import RaisesOnce
from vecenv import DummyVectorEnv, ShmemVectorEnv, VectorEnvNormObs
from vecenv.testing import CountingEnv


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


@pytest.mark.parametrize("backend", [DummyVectorEnv, ShmemVectorEnv])
def test_final_infos_and_objects_are_apart_from_what_the_env_writes_over(backend):
    with backend([ReusesItsArrays]) as venv:
        venv.reset()
        obs, _, _, _, info = venv.step([0], autoreset=True)
    assert info[0]["final_info"] == {"own": np.array([1]), "counts": {"steps": 1, "own": np.array([1])}}
    assert info[0]["counts"] == {"steps": 0, "own": np.array([0])}
    assert [[value.tolist() for value in row] for row in (info[0]["final_obs"], obs[0])] == [[[1]], [[0]]]


@pytest.mark.guarantee("G8.11")
def test_a_reset_that_fails_is_repeated_and_the_step_before_it_is_kept():
    with DummyVectorEnv([lambda i=i: RaisesOnce(i, length=1) for i in range(2)], on_error="restart") as venv:
        venv.reset()
        obs, rew, terminated, truncated, info = venv.step([6, 7], autoreset=True)
        assert rew.all()
        assert ((terminated | truncated).tolist(), venv.failed_id) == ([True, True], [])
        for i in range(2):
            assert info[i]["final_obs"].tolist() == [i, 0, 1, -1, 6 + i]
            assert (info[i]["final_info"], info[i]["episode"]) == ({"t": 1}, 1)
            assert obs[i].tolist() == [i, 1, 0, -1, -1]
        assert venv.stats()["absorbed"] == 2
        venv.set_env_attr("step", None, [1])  # a failure after an episode that ended is no end of the next
        _, rew, terminated, truncated, info = venv.step([0, 0], autoreset=True)
        assert info[1]["final_info"]["restarted"]
        assert (terminated[1], truncated[1], rew[1]) == (False, True, 0)


def test_observations_are_normalised_as_in_two_rounds():
    fns = [lambda: CountingEnv(length=1)] * 2
    with VectorEnvNormObs(DummyVectorEnv(fns)) as one, VectorEnvNormObs(DummyVectorEnv(fns)) as two:
        one.reset()
        two.reset()
        first, _, _, _, info = one.step([0, 4], autoreset=True)
        last = two.step([0, 4])[0]
        assert np.array_equal([row["final_obs"] for row in info], last)
        assert np.array_equal(first, two.reset()[0])
        both = [rms.get_obs_rms().state_dict() for rms in (one, two)]
        assert all(np.array_equal(both[0][key], both[1][key]) for key in both[0])


@pytest.mark.guarantee("G7.3")
@pytest.mark.parametrize("first", [1, 2], ids=["terminated", "truncated"])
def test_strict_refuses_a_step_after_the_end_of_any_episode(first):
    with DummyVectorEnv([partial(CountingEnv, 0, length=1)] * 2, strict=True) as venv:
        for _ in range(first):
            venv.reset()
            ended = venv.step([0, 0])
        assert ended[1 + first].all()
        with pytest.raises(RuntimeError, match="env 0 has not been reset, or its episode is over"):
            venv.step([0, 0])
        venv.reset()
        venv.step([0, 0], autoreset=True)
        assert venv.step([0, 0])[4][0]["t"] == 1, "the next episode has begun"
