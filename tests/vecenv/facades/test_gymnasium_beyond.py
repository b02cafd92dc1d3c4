"""Features beyond gymnasium's: final infos as in gymnasium 0.29, seeds for every episode, random starts, restarts."""

import numpy as np
import pytest

from tests.support.backends import FULL
from tests.support.cases import LocalWorker
from tests.support.gymnasium_cases import Remembers, Reports
from vecenv import (
    AsyncVectorEnv,
    BaseVectorEnv,
    DummyVectorEnv,
    GymnasiumVectorEnv,
    SyncVectorEnv,
    TransformedVectorEnv,
    VectorEnvWrapper,
)
from vecenv.arguments import next_seed, seed_chain
from vecenv.testing import CountingEnv, ExitsOnStep
from vecenv.transforms import TimeLimit


class TestFinalInfoAsAList:
    def test_the_keys_and_masks_are_those_of_0_29(self):
        envs = SyncVectorEnv(
            [lambda: Reports({"x": 1}, length=1), Reports], autoreset_mode="SameStep", final_info_format="list"
        )
        envs.reset()
        *_, infos = envs.step([0, 0])
        assert infos["final_info"].tolist() == [{"x": 1}, None]
        assert infos["final_observation"][0].tolist() == [1, 1]
        assert infos["final_observation"][1] is None
        assert infos["_final_info"].tolist() == infos["_final_observation"].tolist() == [True, False]
        assert "final_obs" not in infos


@pytest.mark.guarantee("G7.8")
@pytest.mark.parametrize(("mode", "extra"), [("NextStep", 0), ("SameStep", 3)])
@pytest.mark.parametrize("reason", ["", "seeds", "workers", "wrapper"])
def test_only_same_step_mode_needs_extra_rounds_and_only_for_a_reason(mode, extra, reason):
    make = {
        "workers": lambda env_fns: BaseVectorEnv(env_fns, LocalWorker),
        "wrapper": lambda env_fns: TransformedVectorEnv(DummyVectorEnv(env_fns), TimeLimit(2)),
    }
    venv = make.get(reason, DummyVectorEnv)([lambda: CountingEnv(0, length=2)])
    envs = GymnasiumVectorEnv(venv, autoreset_mode=mode, seed_episodes=reason == "seeds")
    envs.reset(seed=1)
    before = venv.stats()["rounds"]
    steps = [envs.step([0]) for _ in range(6)]
    assert sum(int(step[2][0] | step[3][0]) for step in steps) == (3 if extra else 2)
    assert venv.stats()["rounds"] == before + 6 + (extra if reason else 0)
    envs.close()


class TestSeedsOfEpisodes:
    @pytest.mark.guarantee("G6.8")
    @pytest.mark.parametrize(("mode", "resets"), [("NextStep", [2, 1]), ("SameStep", [3, 2])])
    def test_every_autoreset_has_the_next_seed_of_its_env(self, mode, resets):
        env_fns = [lambda i=i: CountingEnv(i, length=2 + i) for i in range(2)]
        envs = SyncVectorEnv(env_fns, autoreset_mode=mode, seed_episodes=True)
        batches = [envs.reset(seed=7)[0], *(envs.step([0, 0])[0] for _ in range(7))]
        for i in range(2):
            seen = dict.fromkeys(int(batch[i, 3]) for batch in batches)
            assert list(seen) == seed_chain(7 + i, resets[i])
            assert envs.np_random_seed[i] == [*seen][-1]

    def test_without_a_seed_from_the_caller_they_are_drawn(self):
        envs = SyncVectorEnv([Remembers] * 2, seed_episodes=True)
        envs.reset()
        (first, second) = (resets[0][0] for resets in envs.get_attr("resets"))
        assert isinstance(first, int)
        assert first != second
        envs.reset()
        assert envs.get_attr("resets")[0][1][0] == next_seed(first)
        envs.reset(seed=[5, None])
        assert envs.get_attr("resets")[0][2][0] == 5
        assert envs.get_attr("resets")[1][2][0] == next_seed(next_seed(second))

    def test_a_refused_step_uses_no_seed(self):
        envs = SyncVectorEnv([lambda: CountingEnv(0, length=1)] * 1, seed_episodes=True)
        envs.reset(seed=7)
        envs.step([0])
        with pytest.raises(ValueError, match="got 2 actions"):
            envs.step([0, 0])
        assert envs.step([0])[0][0, 3] == next_seed(7)


class TestRandomStarts:
    def start(self, most, seed=5, **options):
        env_fns = [lambda i=i: CountingEnv(i, length=4) for i in range(8)]
        envs = SyncVectorEnv(env_fns, random_initial_steps=most, **options)
        obs, infos = envs.reset(seed=seed)
        return envs, obs, infos

    def test_envs_start_at_different_times_in_the_same_way_for_the_same_seed(self):
        results = []
        for seed in (5, 5, 6):
            envs, obs, _ = self.start(3, seed)
            results.append(obs.tolist())
            assert set(obs[:, 2].tolist()) <= {0, 1, 2, 3}
            assert len(set(obs[:, 2].tolist())) > 1
            envs.close()
        assert results[0] == results[1]
        assert results[0] != results[2]

    def test_more_steps_than_an_episode_has_go_into_the_next(self):
        envs, obs, infos = self.start(15)
        assert obs[:, 2].max() < 4
        assert obs[:, 1].max() > 0
        assert infos["episode"].tolist() == [0] * 8
        later, *_ = envs.step([0] * 8)
        assert (later[:, 2] == obs[:, 2] + 1).all()
        envs.close()

    def test_a_masked_reset_makes_no_random_steps(self):
        envs, _, _ = self.start(3)
        obs, _ = envs.reset(options={"reset_mask": np.arange(8) < 4})
        assert (obs[:4, 2] == 0).all()
        envs.close()

    def test_it_works_below_wrappers_and_without_seeds(self):
        venv = VectorEnvWrapper(DummyVectorEnv([lambda i=i: CountingEnv(i, length=4) for i in range(8)]))
        envs = GymnasiumVectorEnv(venv, random_initial_steps=15, seed_episodes=True)
        first, _ = envs.reset()
        second, _ = envs.reset()
        assert (second[:, 3] != first[:, 3]).all()
        assert first[:, 2].tolist() != second[:, 2].tolist() or first[:, 1].tolist() != second[:, 1].tolist()
        envs.close()


class VectorReward(Reports):
    """The same reward in each step."""

    def __init__(self, reward, length=100):
        super().__init__(length=length)
        self.reward = reward

    def step(self, action):
        obs, _, *rest = super().step(action)
        return (obs, self.reward, *rest)


class TestVectorRewards:
    @pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
    def test_they_are_rows_also_where_all_envs_are_reset(self, mode):
        envs = SyncVectorEnv(
            [lambda: VectorReward([1, 2], length=2), lambda: VectorReward(np.array([3, 4]), length=2)],
            autoreset_mode=mode,
        )
        envs.reset()
        rewards = [envs.step([0, 0])[1].tolist() for _ in range(4)]
        paid, nothing = [[1, 2], [3, 4]], [[0, 0], [0, 0]]
        assert rewards == [paid, paid, nothing if mode == "NextStep" else paid, paid]


@FULL
@pytest.mark.parametrize(("shared_memory", "mode"), [(True, "NextStep"), (False, "SameStep")])
def test_a_dead_worker_is_a_truncated_episode_if_so_asked(shared_memory, mode):
    env_fns = [lambda: ExitsOnStep(0, at=2, infos=False), lambda: CountingEnv(1, infos=False)]
    envs = AsyncVectorEnv(env_fns, shared_memory, autoreset_mode=mode, on_error="restart", num_workers=2)
    envs.reset(seed=3)
    envs.step([0, 0])
    obs, _, _, truncations, infos = envs.step([0, 0])
    assert truncations.tolist() == [True, False]
    restarted = infos["final_info"]["restarted"] if mode == "SameStep" else infos["restarted"]
    assert restarted.tolist() == [True, False]
    if mode == "NextStep":
        obs, *_ = envs.step([0, 0])
    assert obs[0, 2] == 0
    assert obs[1, 2] == (2 if mode == "SameStep" else 3)
    assert envs.venv.stats()["restarts"] == 1
    envs.close()
