"""A program returns the same observations, rewards, flags and infos on gymnasium's SyncVectorEnv and on vecenv's."""

import functools

import gymnasium as gym
import numpy as np
import pytest

from tests.support.backends import FULL
from tests.support.cases import TAXI
from tests.support.gymnasium_cases import MODES, OURS, Reads, Untimed, assert_same, kinds
from vecenv import DummyVectorEnv, GymnasiumVectorEnv, ShmemVectorEnv, VectorEnvNormObs, VectorEnvWrapper
from vecenv.testing import CountingEnv


def registered(id, **options):
    return lambda: gym.make(id, **options)


def with_statistics():
    return Untimed(gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1", max_episode_steps=9)))


def counting(form):
    return [functools.partial(CountingEnv, i, length=3 + i, form=form) for i in range(3)]


ENVS = {
    "array": counting("array"),
    "dict": counting("dict"),
    "object": counting("object"),
    "Taxi": [registered(TAXI, max_episode_steps=7)] * 3,
    "statistics": [with_statistics] * 3,
}


def program(envs, mode):
    """Return all results of 200 steps with many ends, partial resets and full resets."""
    n, log = envs.num_envs, [envs.reset(seed=5)]
    actions = np.random.default_rng(3).integers(0, 2, (200, n))
    for t, action in enumerate(actions):
        obs, rewards, terminations, truncations, infos = envs.step(action)
        log.append((obs, rewards, terminations, truncations, infos))
        over = terminations | truncations
        if mode == "Disabled" and over.any():
            log.append(envs.reset(options={"reset_mask": over}))
        if t == 11:
            log.append(envs.reset(seed=[1, None, 3], options={"reset_mask": np.array([True, False, True])}))
        if t == 17:
            log.append(envs.reset(options={"t": 1}))
        if t == 25:
            log.append(envs.reset(seed=None))
    log.append(envs.np_random_seed)
    return log


ALL_KINDS = {
    **OURS,
    "around a wrapper": lambda env_fns, **options: GymnasiumVectorEnv(
        VectorEnvWrapper(DummyVectorEnv(env_fns)), **options
    ),
    "around views": lambda env_fns, **options: GymnasiumVectorEnv(
        VectorEnvWrapper(ShmemVectorEnv(env_fns, num_workers=1, copy=False)), **options
    ),
}
FURTHER = {"array": MODES[:2], "dict": ["NextStep", "Disabled"], "object": MODES[:2], "Taxi": MODES[1:2]}


@pytest.mark.guarantee("G7.7")
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("statistics", "NextStep"),
        ("dict", "SameStep"),
        ("array", "Disabled"),
        *(pytest.param(name, mode, marks=FULL) for name, modes in FURTHER.items() for mode in modes),
    ],
)
def test_programs_return_the_same_as_with_gymnasium(name, mode):
    theirs = gym.vector.SyncVectorEnv(ENVS[name], autoreset_mode=mode)
    expected = program(theirs, mode)
    theirs.close()
    for make in ALL_KINDS.values():
        ours = make(ENVS[name], autoreset_mode=mode)
        assert_same(program(ours, mode), expected)
        ours.close()
    assert any(len(entry) == 5 and (entry[2] | entry[3]).any() for entry in expected), "no episode ended"


def last_observations(envs, steps=7):
    """Return the last observation of every episode that these steps end."""
    envs.reset(seed=0)
    found = []
    for action in np.random.default_rng(0).integers(0, 2, (steps, envs.num_envs)):
        infos = envs.step(action)[-1]
        found += [obs for obs in infos.get("final_obs", infos.get("final_observation", ())) if obs is not None]
    envs.close()
    return found


READS = {form: [functools.partial(Reads, form)] * 2 for form in Reads.forms}
READS |= {id: [registered(id, max_episode_steps=3)] * 2 for id in (TAXI, "Blackjack-v1", "FrozenLake-v1")}


@pytest.mark.guarantee("G7.11")
@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        *((name, "sync", {}) for name in READS),
        ("tree", "sync", {"final_info_format": "list"}),
        ("tree", "async", {}),
        *(pytest.param(name, kind, {}, marks=FULL) for name in READS for kind in OURS if kind != "sync"),
    ],
    ids=str,
)
def test_last_observations_are_what_the_envs_returned(name, kind, options):
    want = last_observations(gym.vector.SyncVectorEnv(READS[name], autoreset_mode="SameStep"))
    got = last_observations(OURS[kind](READS[name], autoreset_mode="SameStep", **options))
    if "seed_episodes" not in options:  # with this option, other episodes are played
        assert_same(got, want)
        assert repr(got) == repr(want)  # also compares types of scalars and the order of keys
    assert kinds(got[:4]) == kinds(want[:4])
    assert len(got) >= 4


@pytest.mark.guarantee("G7.12")
@pytest.mark.parametrize(("around", "kind"), [(VectorEnvWrapper, int), (VectorEnvNormObs, np.float64)])
def test_what_a_wrapper_makes_of_them_stays_what_it_is(around, kind):
    envs = GymnasiumVectorEnv(around(DummyVectorEnv(READS["discrete"])), autoreset_mode="SameStep")
    assert {type(obs) for obs in last_observations(envs)} == {kind}
