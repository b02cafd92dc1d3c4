"""NormalizeReward: SB3's formula, whatever the rounds are, with its statistics in the state of a vector env."""

import numpy as np
import pytest
from stable_baselines3.common.vec_env import VecNormalize
from transform_envs import VECTOR, plain

from vecenv import DummyVectorEnv, SB3VecEnv
from vecenv.transforms import NormalizeReward, Rows, TransformedVectorEnv

N = 4
ACTIONS = np.ones((N, 2), np.float32)


def venv_of(*transforms, **options):
    return TransformedVectorEnv(DummyVectorEnv([plain(VECTOR, 5)] * N, **options), list(transforms))


def test_rewards_are_those_of_sb3s_vec_normalize():
    theirs = VecNormalize(SB3VecEnv(DummyVectorEnv([plain(VECTOR, 5)] * N)), norm_obs=False, gamma=0.9)
    ours = SB3VecEnv(venv_of(NormalizeReward(gamma=0.9)))
    for envs in (theirs, ours):
        envs.seed(0)
        envs.reset()
    for _ in range(23):
        _, want, want_dones, _ = theirs.step(ACTIONS)
        _, got, dones, _ = ours.step(ACTIONS)
        np.testing.assert_allclose(got, want, rtol=2e-3)  # its count begins with 1e-4
        assert dones.tolist() == want_dones.tolist()
    theirs.close()
    ours.close()


def test_returns_belong_to_their_env_and_end_with_the_episode():
    norm = NormalizeReward(gamma=0.5, clip=None)
    with venv_of(norm) as venv:
        venv.reset(seed=0)
    norm.attach(venv, 2, None, None)

    def step(rewards, ids, over=False):
        ends = np.full(len(ids), over)
        rows = Rows(None, None, np.array(rewards, float), ends, ~ends & over, ids=np.array(ids))
        norm.step(rows)
        return rows.reward

    seen = []
    norm.return_rms.update = lambda batch: seen.append(batch.tolist())
    step([4, 8], [0, 1])
    step([1], [1])
    step([2, 0], [1, 0], over=True)
    step([1, 1], [0, 1])
    norm.reset(Rows(None, None, ids=np.array([1])))
    step([1, 1], [0, 1])
    assert seen == [[4, 8], [5], [4.5, 2], [1, 1], [1.5, 1]]


def test_a_frozen_copy_learns_nothing_and_the_state_goes_with_the_vector_env():
    with venv_of(NormalizeReward()) as train:
        train.reset(seed=0)
        for _ in range(9):
            train.step(ACTIONS)
        state, norm = train.state_dict(), train.transform[0]
        assert norm.return_rms.count == 36
        frozen = norm.frozen_copy()
        with venv_of(frozen) as test, venv_of() as raw:
            for venv in (test, raw):
                venv.reset(seed=1)
            want = raw.step(ACTIONS)[1] / np.sqrt(norm.return_rms.var + 1e-8)
            np.testing.assert_allclose(test.step(ACTIONS)[1], want)
            assert frozen.return_rms.count == 36
    with venv_of(NormalizeReward()) as other:
        other.load_state_dict(state)
        assert other.transform[0].return_rms.var == norm.return_rms.var


@pytest.mark.parametrize("options", [{"gamma": 1.1}, {"gamma": -0.1}, {"epsilon": 0}, {"clip": 0}])
def test_numbers_out_of_range(options):
    with pytest.raises(ValueError, match="must be"):
        NormalizeReward(**options)


def test_vector_rewards_are_refused():
    with pytest.raises(ValueError, match=r"rewards that are numbers, got the shape \(2,\)"):
        NormalizeReward().step(Rows(None, None, np.zeros((3, 2)), ids=np.arange(3)))
