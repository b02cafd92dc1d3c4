"""Features beyond gymnasium's: final infos as in gymnasium 0.29, seeds for every episode, random starts, restarts."""

from functools import partial

import numpy as np
import pytest

from tests.support.cases import LocalWorker, counting
from tests.support.gymnasium_cases import Remembers, Reports
from vecenv import (
    BaseVectorEnv,
    DummyVectorEnv,
    GymnasiumVectorEnv,
    SyncVectorEnv,
    TransformedVectorEnv,
    VectorEnvWrapper,
)
from vecenv.testing import CountingEnv, RaisesOnStep
from vecenv.transforms import TimeLimit


def test_the_keys_and_masks_are_those_of_0_29():
    env_fns = [lambda: Reports({"x": 1}, length=1), Reports]
    envs = SyncVectorEnv(env_fns, autoreset_mode="SameStep", final_info_format="list")
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
    venv = make.get(reason, DummyVectorEnv)(counting(1, length=2))
    envs = GymnasiumVectorEnv(venv, autoreset_mode=mode, seed_episodes=reason == "seeds")
    envs.reset(seed=1)
    before = venv.stats()["rounds"]
    steps = [envs.step([0]) for _ in range(6)]
    assert sum(int(step[2][0] | step[3][0]) for step in steps) == (3 if extra else 2)
    assert venv.stats()["rounds"] == before + 6 + (extra if reason else 0)
    envs.close()


def next_seed(seed):
    """Return the seed that vecenv gives the episode after the one with `seed`."""
    envs = SyncVectorEnv(counting(1), seed_episodes=True)
    envs.reset(seed=seed)
    envs.reset()
    return envs.np_random_seed[0]


@pytest.mark.guarantee("G6.8")
@pytest.mark.parametrize(("mode", "resets"), [("NextStep", [2, 1]), ("SameStep", [3, 2])])
def test_every_autoreset_has_the_next_seed_of_its_env_and_a_refused_step_uses_none(mode, resets):
    env_fns = [lambda i=i: CountingEnv(i, length=2 + i) for i in range(2)]
    envs = SyncVectorEnv(env_fns, autoreset_mode=mode, seed_episodes=True)
    batches = [envs.reset(seed=7)[0]]
    for _ in range(7):
        with pytest.raises(ValueError, match="got 3 actions"):
            envs.step([0, 0, 0])
        batches.append(envs.step([0, 0])[0])
    for i in range(2):
        chain = [7 + i]
        for _ in range(resets[i]):
            chain.append(next_seed(chain[-1]))
        assert [*dict.fromkeys(int(batch[i, 3]) for batch in batches)] == chain
        assert len(set(chain)) == len(chain)
        assert envs.np_random_seed[i] == chain[-1]


@pytest.mark.guarantee("G6.8")
def test_without_a_seed_from_the_caller_the_seeds_of_episodes_are_drawn():
    envs = SyncVectorEnv([Remembers] * 2, seed_episodes=True)
    for seed in (None, None, [5, None]):
        envs.reset(seed=seed)
    (first, *own), (second, *others) = ([seed for seed, _ in resets] for resets in envs.get_attr("resets"))
    assert isinstance(first, int)
    assert first != second
    assert own == [next_seed(first), 5]
    assert others == [next_seed(second), next_seed(next_seed(second))]


@pytest.mark.parametrize("most", [3, 15])
def test_random_starts_are_different_times_and_the_same_for_the_same_seed(most):
    """With 15 steps, more than an episode has, they go into later episodes. A masked reset makes no random steps."""
    results = []
    for seed in (5, 5, 6):
        venv = DummyVectorEnv(counting(8, length=4))
        venv = VectorEnvWrapper(venv) if most == 15 else venv
        envs = GymnasiumVectorEnv(venv, random_initial_steps=most, seed_episodes=most == 15)
        obs, infos = envs.reset(seed=seed)
        results.append(obs.tolist())
        assert set(obs[:, 2].tolist()) <= {0, 1, 2, 3}
        assert len(set(obs[:, 2].tolist())) > 1
        assert (obs[:, 1].max() > 0) == (most == 15)
        assert infos["episode"].tolist() == [0] * 8
        assert (envs.step([0] * 8)[0][:, 2] == obs[:, 2] + 1).all()
        assert envs.reset(options={"reset_mask": np.arange(8) < 4})[0][:4, 2].tolist() == [0] * 4
    assert results[0] == results[1]
    assert results[0] != results[2]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_failure_is_a_truncated_episode_if_so_asked(mode):
    venv = DummyVectorEnv([partial(RaisesOnStep, 0, at=2, infos=False), CountingEnv], on_error="restart")
    envs = GymnasiumVectorEnv(venv, autoreset_mode=mode)
    envs.reset(seed=3)
    envs.step([0, 0])
    obs, _, _, truncations, infos = envs.step([0, 0])
    assert truncations.tolist() == [True, False]
    restarted = infos["final_info"]["restarted"] if mode == "SameStep" else infos["restarted"]
    assert restarted.tolist() == [True, False]
    if mode == "NextStep":
        obs, *_ = envs.step([0, 0])
    assert obs[:, 2].tolist() == [0, 2 if mode == "SameStep" else 3]
