"""Running statistics are equal in each place, exact far from zero, and without NaN. Also rewards that use them."""

import multiprocessing
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize

from tests.support.cases import Plays
from tests.support.shared_envs import run_all, step_env
from tests.support.transform_envs import VECTOR, plain
from vecenv import DummyVectorEnv, EnvCreator, RunningMeanStd, SB3VecEnv, TransformedEnv, VectorEnvNormObs
from vecenv.transforms import NormalizeReward, Rows, TransformedVectorEnv, VecNorm

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
WHOLE = ("mean", "var", "count", "skipped")
BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def normalised(rows):
    return TransformedEnv(Plays(BOX, rows), VecNorm(["observation"], decay=1.0))


def by_itself(batches):
    statistics = RunningMeanStd()
    for rows in batches:
        statistics.update(rows)
    return [statistics.state_dict()[name] for name in WHOLE]


def by_vec_norm(batches, convert=np.asarray):
    with TransformedVectorEnv(DummyVectorEnv([partial(Plays, BOX, [])] * 4), VecNorm(decay=1.0)) as venv:
        for rows in batches:
            venv.transform[0].reset(Rows(convert(rows.copy()), None))
        state = venv.transform[0].state_dict()
    return [np.asarray(state[f"observation_{name}"]) for name in WHOLE]


def by_processes_that_share_one(batches):
    """Two processes at a time, so that the later processes continue the slots of the earlier ones."""
    creator, mp = EnvCreator(normalised, rows=[]), multiprocessing.get_context("fork")
    parts = np.array_split(np.concatenate(batches), 4)
    for pair in (parts[:2], parts[2:]):
        processes = [
            mp.Process(target=step_env, args=(creator.make_variant(rows=part), len(part) - 1)) for part in pair
        ]
        assert run_all(processes) == [0, 0]
    return [creator.state_dict()[f"0.VecNorm.observation_{name}"] for name in WHOLE]


def by_vector_env_norm_obs(batches):
    with DummyVectorEnv([partial(Plays, BOX, [])]) as venv:
        norm = VectorEnvNormObs(venv)
        for rows in batches:
            norm.map_reset(rows, None)
        return [norm.get_obs_rms().state_dict()[name] for name in WHOLE]


def by_normalize_reward(batches):
    norm = NormalizeReward(gamma=0.0)
    norm.num_envs = max(map(len, batches))
    norm.clear()
    for rows in batches:
        over = np.ones(len(rows), np.bool_)
        norm.step(Rows(None, None, rows[:, 0].astype(np.float64), over, ~over, ids=np.arange(len(rows))))
        norm.clear()
    return [norm.state_dict()[name] for name in WHOLE]


KEPT = {
    "RunningMeanStd": by_itself,
    "VecNorm": by_vec_norm,
    "VecNorm of tensors": partial(by_vec_norm, convert=torch.from_numpy),
    "EnvCreator": by_processes_that_share_one,
    "VectorEnvNormObs": by_vector_env_norm_obs,
    "NormalizeReward": by_normalize_reward,
}
kept = pytest.mark.parametrize("where", KEPT)


def column(found):
    """Return the statistics of the first column, because NormalizeReward sees only one."""
    return [np.ravel(value)[0] for value in found]


@pytest.mark.guarantee("G13.5")
@kept
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_from_zero_they_are_those_of_numpy(where, dtype):
    """Even if the mean moves."""
    rng = np.random.default_rng(0)
    far = [rng.normal(1e8, 20, (k, 2)).astype(dtype) for k in (4, 1, 3, *[4] * 40)]
    moves = [rng.normal(mean, 1, (4, 2)).astype(dtype) for mean in (0, 1e6, 1e6, -1e8, 3)]
    for batches, exact in ((far, 1e-12), (moves, 1e-9)):
        mean, var, count, skipped = column(KEPT[where](batches))
        want = np.concatenate(batches)[:, 0].astype(np.float64)
        if where == "EnvCreator":  # its space is float32
            want = want.astype(np.float32).astype(np.float64)
        assert mean == pytest.approx(want.mean(), rel=exact)
        assert var == pytest.approx(want.var(), rel=1e-6 if batches is far else exact)
        assert (count, skipped) == (len(want), 0)


@kept
def test_rows_that_are_not_finite_are_left_out_and_counted(where):
    bad_rows = [[np.nan], [np.inf], [-np.inf, np.inf], *([[1e300, -1e300]] if where != "EnvCreator" else [])]
    for bad, at in product(bad_rows, (0, 2)):
        rng = np.random.default_rng(0)
        batches = [rng.normal(3, 2, (4, 2)) for _ in range(5)]
        batches[at][: len(bad), 0] = bad
        mean, var, count, skipped = column(KEPT[where](batches))
        want = np.concatenate(batches)[:, 0]
        want = want[np.abs(want) < 1e100]
        assert (mean, var) == (pytest.approx(want.mean(), rel=1e-6), pytest.approx(want.var(), rel=1e-6)), bad
        assert (count, skipped) == (20 - len(bad), len(bad)), bad
    batches = [np.full((2, 2), np.nan), np.array([[1.0, 1.0], [3.0, 3.0]])]  # a batch without a finite row
    assert column(KEPT[where](batches)) == [2, 1, 2, 2]


def test_what_is_returned_of_a_row_that_is_left_out():
    with TransformedVectorEnv(DummyVectorEnv([partial(Plays, BOX, [])] * 3), VecNorm(decay=1.0)) as venv:
        rows = Rows(np.array([[1, 1], [np.nan, 1], [3, np.inf]], np.float32), None)
        venv.transform[0].reset(rows)
        np.testing.assert_array_equal(rows.obs, np.array([[0, 0], [np.nan, 0], [200, np.inf]], np.float32))
        rows = Rows(np.array([[3, 1]], np.float32), None)
        venv.transform[0].reset(rows)
        np.testing.assert_allclose(rows.obs, [[1, 0]], atol=1e-6)


def test_a_large_batch_is_checked_too():
    rows = np.ones((10, 2000))
    rows[3, 7] = np.nan
    statistics = RunningMeanStd()
    for _ in range(2):
        statistics.update(rows)
    assert (statistics.count, statistics.skipped, statistics.mean.sum()) == (18, 2, 2000)
    assert repr(statistics) == "RunningMeanStd(shape=(2000,), count=18, skipped=2)"


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
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-6)  # its count begins with 1e-4
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
            np.testing.assert_allclose(test.step(ACTIONS)[1], want, atol=1e-6)
            assert frozen.return_rms.count == 36
    with venv_of(NormalizeReward()) as other:
        other.load_state_dict(state)
        assert other.transform[0].return_rms.var == norm.return_rms.var
