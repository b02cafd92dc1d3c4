"""The page "Where libraries surprise": each row that promises something names a test, and some rows have it here.

The tests here also show what the original does, so that a new release of a library is noticed.
"""

import re
import tomllib

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import vecenv
from collector import Dataset, RecordEpisodes, SyncDataCollector
from tests.support.paths import ROOT
from vecenv.transforms import NormalizeReward, TransformedVectorEnv

LIBRARIES = tomllib.loads((ROOT / "docs/tables/surprises.toml").read_text("utf-8"))["library"]
ROWS = [row for library in LIBRARIES for row in library["row"]]


class Reads(gym.Env):
    """Env that observes its last action. Action 5 has the reward None, and 4 raises."""

    observation_space, action_space = spaces.Box(0, 9, (1,)), spaces.Discrete(9)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeded = seed
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if action == 4:
            raise ZeroDivisionError("four")
        return np.full(1, action, np.float32), None if action == 5 else 1.0, False, False, {}


def test_each_row_has_its_test_or_is_open():
    for row in ROWS:
        assert row["state"] in ("right", "equal", "refused", "open")
        assert ("test" in row) == (row["state"] != "open"), row["does"]
        if "test" in row:
            file, name = row["test"].split("::")
            assert re.search(rf"def test_{name}\(", (ROOT / "tests" / file).read_text("utf-8")), row["test"]
    assert len(ROWS) > 75


def test_a_reward_of_none_becomes_nan_in_the_originals_and_is_refused():
    sb3 = pytest.importorskip("stable_baselines3.common.vec_env")
    import vecenv.sb3

    for theirs, ours in ((gym.vector.SyncVectorEnv, vecenv.SyncVectorEnv), (sb3.DummyVecEnv, vecenv.sb3.DummyVecEnv)):
        envs = theirs([Reads] * 2)
        envs.reset()
        assert np.isnan(envs.step(np.array([5, 5]))[1]).all()
        envs = ours([Reads] * 2)
        envs.reset()
        with pytest.raises(vecenv.EnvContractError, match="None"):
            envs.step(np.array([5, 5]))
        envs.close()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::UserWarning")  # gymnasium logs the traceback of a worker as a warning
@pytest.mark.parametrize("name", ["step", "get_attr"])
def test_a_failed_get_attr_leaves_the_vector_env_usable(name):
    arguments = {"step": np.array([1, 4]), "get_attr": "typo"}
    theirs, ours = gym.vector.AsyncVectorEnv([Reads] * 2, False, context="spawn"), vecenv.AsyncVectorEnv([Reads] * 2)
    try:
        for envs in (theirs, ours):
            envs.reset()
            with pytest.raises((ZeroDivisionError, AttributeError)):
                getattr(envs, name)(arguments[name])
        with pytest.raises(AttributeError, match="has no attribute 'send'"):
            theirs.reset()
        ours.reset()
        assert ours.step([1, 2])[0].tolist() == [[1], [2]]
    finally:
        theirs.close(terminate=True)
        ours.close()


def test_make_vec_plays_the_single_envs():
    native, ours = gym.make_vec("CartPole-v1", 2), vecenv.make_vec("CartPole-v1", 2, backend="dummy")
    single = [gym.make("CartPole-v1").reset(seed=seed)[0] for seed in (3, 4)]
    assert np.array_equal(ours.reset(seed=3)[0], single)
    assert not np.array_equal(native.reset(seed=3)[0], single)
    ours.close()


@pytest.mark.full
def test_make_vec_of_ale_clips_rewards_and_that_of_vecenv_does_not():
    ale_py = pytest.importorskip("ale_py")
    gym.register_envs(ale_py)
    found = {}
    for name, make in (("theirs", gym.make_vec), ("ours", vecenv.make_vec)):
        envs = make("ALE/MsPacman-v5", 1, **({"backend": "dummy"} if name == "ours" else {}))
        envs.reset(seed=0)
        rounds = [envs.step(np.array([1 + step // 20 % 4])) for step in range(200)]
        found[name] = envs.single_observation_space.shape, {float(each[1][0]) for each in rounds}
        envs.close()
    assert found["theirs"] == ((4, 84, 84), {0.0, 1.0})
    assert found["ours"] == ((210, 160, 3), {0.0, 10.0})


def test_vec_normalize_does_not_change_the_space_of_an_env():
    sb3 = pytest.importorskip("stable_baselines3.common.vec_env")
    import vecenv.sb3

    class Camera(Reads):
        def __init__(self):
            self.observation_space = spaces.Dict(picture=spaces.Box(0, 255, (8, 8, 1), np.uint8), x=spaces.Box(0, 1))

    for kind, changed in ((sb3.DummyVecEnv, True), (vecenv.sb3.DummyVecEnv, False)):
        env = Camera()
        space = env.observation_space["picture"]
        sb3.VecNormalize(kind([lambda env=env: env]), norm_obs_keys=["picture", "x"])
        assert (env.observation_space["picture"] != space) == changed


@pytest.mark.full
def test_ppo_of_sb3_ignores_the_start_of_a_discrete_space_over_both():
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    import vecenv.sb3

    class Shifted(Reads):
        action_space = spaces.Discrete(3, start=5)

        def __init__(self, taken):
            self.taken = taken

        def step(self, action):
            self.taken.add(int(action))
            return np.zeros(1, np.float32), 0.0, False, False, {}

    for kind in (stable_baselines3.common.vec_env.DummyVecEnv, vecenv.sb3.DummyVecEnv):
        taken = set()
        envs = kind([lambda taken=taken: Shifted(taken)])
        stable_baselines3.PPO("MlpPolicy", envs, n_steps=32, batch_size=32, device="cpu", seed=0).learn(32)
        envs.close()
        assert taken == {0, 1, 2}


class LastStep(gym.Env):
    """Env whose only reward is 10, in the last of 5 steps."""

    observation_space, action_space = spaces.Box(0, 9, (1,)), spaces.Discrete(2)

    def __init__(self, flag):
        self.flag = flag

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == 5
        flags = over and self.flag == "terminated", over and self.flag == "truncated"
        return np.full(1, self.steps, np.float32), 10.0 * over, *flags, {}


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_normalised_rewards_do_not_depend_on_the_episodes_before(flag):
    expected = {"NEXT_STEP": {"terminated": 15.8, "truncated": 0.246}[flag], "SAME_STEP": 2.5}
    actions = np.zeros(2, np.int64)
    for mode, reward in expected.items():
        mode = gym.vector.AutoresetMode[mode]
        theirs = gym.vector.SyncVectorEnv([lambda: LastStep(flag)] * 2, autoreset_mode=mode)
        theirs = gym.wrappers.vector.NormalizeReward(theirs)
        theirs.reset()
        rewards = [theirs.step(actions)[1][0] for _ in range(1200)]
        assert np.isclose(next(each for each in reversed(rewards) if each), reward, rtol=0.02)
    with TransformedVectorEnv(vecenv.DummyVectorEnv([lambda: LastStep(flag)] * 2), NormalizeReward()) as ours:
        for _ in range(200):
            ours.reset()
            rewards = [ours.step(actions)[1][0] for _ in range(5)]
    assert np.allclose(rewards, [0, 0, 0, 0, 2.5])


def test_data_sets_and_flat_batches_are_in_c_order(tmp_path):
    with vecenv.DummyVectorEnv(["CartPole-v1"] * 3) as envs:
        batch = next(iter(SyncDataCollector(envs, None, frames_per_batch=30))).flatten()
    with RecordEpisodes(vecenv.SyncVectorEnv(["CartPole-v1"] * 2), tmp_path / "data") as envs:
        envs.reset(seed=0)
        for _ in range(60):
            envs.step(np.zeros(2, np.int64))
    transitions = Dataset(tmp_path / "data").transitions().as_dict()
    for array in (batch.obs, batch.next.obs, batch.action, batch.reward, *transitions.values()):
        assert array.flags.c_contiguous
