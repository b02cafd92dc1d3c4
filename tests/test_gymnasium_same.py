"""The same program on gymnasium's SyncVectorEnv and on ours returns the same: observations, rewards, flags, infos."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium_cases import MODES, OURS, Echo, Reads, Untimed, assert_same, kinds

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
    "CartPole": [registered("CartPole-v1", max_episode_steps=9)] * 3,
    "Taxi": [registered("Taxi-v4", max_episode_steps=7)] * 3,
    "statistics": [with_statistics] * 3,
}


def program(envs, mode):
    """Everything that these calls return: steps past several ends, partial and full resets among them."""
    n, log = envs.num_envs, [envs.reset(seed=5)]
    actions = np.random.default_rng(3).integers(0, 2, (40, n))
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ENVS)
def test_programs_return_the_same_as_with_gymnasium(name, mode):
    theirs = gym.vector.SyncVectorEnv(ENVS[name], autoreset_mode=mode)
    expected = program(theirs, mode)
    theirs.close()
    for make in OURS.values():
        ours = make(ENVS[name], autoreset_mode=mode)
        assert_same(program(ours, mode), expected)
        ours.close()
    assert any(len(entry) == 5 and (entry[2] | entry[3]).any() for entry in expected), "no episode ended"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [ShmemVectorEnv, DummyVectorEnv])
@pytest.mark.parametrize("options", [{}, {"copy": False}, {"num_workers": 1}])
def test_any_vector_env_can_be_wrapped_and_a_wrapper_too(mode, kind, options):
    theirs = gym.vector.SyncVectorEnv(ENVS["dict"], autoreset_mode=mode)
    expected = program(theirs, mode)
    theirs.close()
    for around in (lambda venv: venv, VectorEnvWrapper):
        ours = GymnasiumVectorEnv(around(kind(ENVS["dict"], **options)), autoreset_mode=mode)
        assert_same(program(ours, mode), expected)
        ours.close()


@pytest.mark.parametrize("space", ["Box", "Discrete", "Dict", "Tuple", "Text", "Graph"])
def test_spaces_are_batched_alike_with_the_same_generators(space):
    single = {
        "Box": spaces.Box(-1, 1, (2,), np.float16),
        "Discrete": spaces.Discrete(4, start=2),
        "Dict": spaces.Dict(a=spaces.MultiBinary(3), b=spaces.Text(4)),
        "Tuple": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(0, 1, ()))),
        "Text": spaces.Text(3),
        "Graph": spaces.Graph(spaces.Box(0, 1, (2,)), None),
    }[space]
    single.seed(4)
    env_fns = [lambda: Echo(single)] * 3
    theirs, ours = gym.vector.SyncVectorEnv(env_fns), OURS["sync"](env_fns)
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(ours, name) == getattr(theirs, name)
        assert_same(getattr(ours, name).sample(), getattr(theirs, name).sample())
    theirs.close()
    ours.close()


def last_observations(envs, steps=7):
    """The last observation of every episode that these steps end."""
    envs.reset(seed=0)
    found = []
    for action in np.random.default_rng(0).integers(0, 2, (steps, envs.num_envs)):
        infos = envs.step(action)[-1]
        found += [obs for obs in infos.get("final_obs", infos.get("final_observation", ())) if obs is not None]
    envs.close()
    return found


READS = {form: [functools.partial(Reads, form)] * 2 for form in Reads.forms}
READS |= {id: [registered(id, max_episode_steps=3)] * 2 for id in ("Taxi-v4", "Blackjack-v1", "FrozenLake-v1")}


@pytest.mark.parametrize("env_fns", READS.values(), ids=READS)
@pytest.mark.parametrize("options", [{}, {"seed_episodes": True}, {"final_info_format": "list"}], ids=str)
def test_last_observations_are_the_ints_that_the_envs_returned(env_fns, options):
    want = last_observations(gym.vector.SyncVectorEnv(env_fns, autoreset_mode="SameStep"))
    for make in OURS.values():
        got = last_observations(make(env_fns, autoreset_mode="SameStep", **options))
        if "seed_episodes" not in options:  # which plays other episodes
            assert_same(got, want)
        assert kinds(got[:4]) == kinds(want[:4])
        assert len(got) >= 4


@pytest.mark.parametrize(("around", "kind"), [(VectorEnvWrapper, int), (VectorEnvNormObs, np.float64)])
def test_what_a_wrapper_makes_of_them_stays_what_it_is(around, kind):
    envs = GymnasiumVectorEnv(around(DummyVectorEnv(READS["discrete"])), autoreset_mode="SameStep")
    assert {type(obs) for obs in last_observations(envs)} == {kind}
