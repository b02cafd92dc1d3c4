"""Objects, methods and wrappers of envs behind the facades equal the original libraries' results."""

from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common import monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.support.agent_envs import Herd
from tests.support.backends import one_of
from tests.support.cases import LocalWorker, ProcessWorker, counting
from tests.support.gymnasium_cases import Reports, assert_same
from tests.support.pool_double import PoolDouble
from vecenv import (
    BaseVectorEnv,
    DummyVectorEnv,
    EnvPoolVectorEnv,
    GymnasiumVectorEnv,
    ParallelVectorEnv,
    SB3VecEnv,
    ShmemVectorEnv,
    SyncVectorEnv,
    ThreadVectorEnv,
    VectorEnvWrapper,
    flatten_agents,
    sb3,
)
from vecenv.testing import CountingEnv


class Plays(Reports):
    """Env that plays against an `opponent`, which is passed in different ways. Its infos hold objects that change."""

    opponent = None

    def __init__(self):
        super().__init__(length=3)
        self.known, self.state, self.deep = [], SimpleNamespace(t=0), [{"state": SimpleNamespace(t=0)}]

    def reset(self, *, seed=None, options=None):
        if options:
            self.opponent = options["opponent"]
        return super().reset(seed=seed)

    def step(self, action):
        *result, _ = super().step(action)
        self.state.t = self.deep[0]["state"].t = self.taken
        return *result, {"state": self.state, "deep": self.deep}

    def meet(self, opponent, *, id=None, name=None):
        self.opponent = opponent
        return id, name

    def strength(self):
        return self.opponent.strength


VENVS = [
    DummyVectorEnv,
    ThreadVectorEnv,
    lambda env_fns: BaseVectorEnv(env_fns, LocalWorker),
    lambda env_fns: VectorEnvWrapper(DummyVectorEnv(env_fns)),
]
"""Vector envs with their envs in this process."""


def played(envs):
    """Pass a model to the envs in each way of gymnasium's interface, and train the model afterwards."""
    model, found = SimpleNamespace(strength=1), []
    envs.reset()
    for give in (
        lambda: envs.set_attr("opponent", model),
        lambda: envs.set_attr("opponent", [model] * 2),
        lambda: envs.call("meet", model, id=3),
        lambda: envs.reset(options={"opponent": model}) and None,
    ):
        envs.set_attr("opponent", None)
        found.append(give())
        model.strength += 1
        found.append(envs.call("strength"))
        found.append([opponent is model for opponent in envs.get_attr("opponent")])
    envs.get_attr("known")[0].append(5)
    found.append(envs.get_attr("known"))
    envs.close()
    return found


@pytest.mark.guarantee("G4.4")
@pytest.mark.parametrize("make", one_of(VENVS))
def test_objects_are_shared_with_envs_in_this_process_as_by_gymnasium(make):
    expected = played(gym.vector.SyncVectorEnv([Plays] * 2))
    assert expected[1:3] == [(2, 2), [True, True]]
    assert played(GymnasiumVectorEnv(make([Plays] * 2))) == expected


def played_by_sb3(env):
    """Do the same in the ways of SB3, and step through two episodes."""
    model = SimpleNamespace(strength=1)
    env.set_attr("opponent", model, indices=[1])
    model.strength += 1
    found = [env.env_method("meet", model, indices=0, id=3, name="x")]
    model.strength += 1
    env.get_attr("known", 1)[0].append(5)
    found += [env.env_method("strength"), env.get_attr("opponent")[1] is model, env.get_attr("known")]
    env.reset()
    infos = [env.step(np.zeros(2, int))[3] for _ in range(5)]
    found.append([[(i["state"].t, i["deep"][0]["state"].t) for i in row] for row in infos])
    found.append(infos[0][0]["state"] is env.get_attr("state")[0])
    env.close()
    return found


@pytest.mark.guarantee("G4.4", "G4.5")
@pytest.mark.parametrize(
    "make", one_of([*VENVS, lambda env_fns: gym.vector.SyncVectorEnv(env_fns, autoreset_mode="SameStep")])
)
def test_objects_are_shared_and_those_in_infos_are_copies_as_in_sb3(make):
    expected = played_by_sb3(DummyVecEnv([Plays] * 2))
    assert expected[1:4] + expected[5:] == [[3, 3], True, [[], [5]], False]
    assert played_by_sb3(SB3VecEnv(make([Plays] * 2))) == expected


class ChangesItsStep(Reports):
    """Env that chooses its step when it is reset."""

    def reset(self, **kwargs):
        self.step = lambda action: (*super(ChangesItsStep, self).step(action)[:4], {"step": "of reset"})
        return super().reset(**kwargs)


@pytest.mark.parametrize(
    ("kind", "original"), [(SyncVectorEnv, gym.vector.SyncVectorEnv), (sb3.DummyVecEnv, DummyVecEnv)]
)
def test_an_env_or_its_step_can_be_replaced_from_the_next_step_on(kind, original):
    """gymnasium and SB3 look up env and step in each step."""
    found = []
    for envs in (original([Reports, Reports, ChangesItsStep]), kind([Reports, Reports, ChangesItsStep])):
        envs.reset()
        step = envs.envs[0].step
        envs.envs[0].step = partial(lambda step, action: (*step(action)[:4], {"step": "replaced"}), step)
        envs.envs[1] = gym.wrappers.TransformReward(envs.envs[1], lambda reward: 9 * reward)
        _, rewards, *_, infos = envs.step(np.array([0, 1, 2]))
        found.append([rewards.tolist(), infos])
    assert_same(found[1], found[0])
    assert found[0][0] == [1, 9, 1]


class Monitor(gym.Wrapper):
    """Class with the name of an SB3 wrapper, but unrelated."""


class SB3Monitor(monitor.Monitor):
    """Subclass of an SB3 wrapper."""


@pytest.mark.parametrize("kind", one_of([DummyVectorEnv, ShmemVectorEnv, ThreadVectorEnv, VENVS[2]]))
def test_a_class_of_wrappers_is_not_known_by_its_name(kind):
    env_fns = [
        lambda: Monitor(gym.wrappers.TimeLimit(CountingEnv(), 9)),
        lambda: monitor.Monitor(CountingEnv()),
        lambda: SB3Monitor(CountingEnv()),
        CountingEnv,
    ]
    found = []
    for env in (SB3VecEnv(kind(env_fns)), DummyVecEnv(env_fns)):
        classes = (monitor.Monitor, SB3Monitor, Monitor, gym.wrappers.TimeLimit, gym.Wrapper, CountingEnv)
        found.append([env.env_is_wrapped(cls) for cls in classes])
        found[-1].append(env.env_is_wrapped(monitor.Monitor, [1, 1, -1]))
        env.close()
    assert found[0] == found[1]
    assert found[1][0] == [False, True, True, False]


@pytest.mark.parametrize(
    "make",
    [
        lambda: EnvPoolVectorEnv(PoolDouble.make(2)),
        lambda: flatten_agents(ParallelVectorEnv([Herd] * 2, "dummy", autoreset_mode="same_step")),
        lambda: BaseVectorEnv(counting(2), ProcessWorker),
    ],
    ids=["pool", "agents", "workers"],
)
def test_envs_of_a_foreign_vector_env_have_no_known_wrappers_and_attributes(make):
    env = SB3VecEnv(make())
    assert env.env_is_wrapped(monitor.Monitor) == [False] * env.num_envs
    assert [env.has_attr(name) for name in ("render_mode", "nope")] == [True, False]
    with pytest.raises(AttributeError):
        env.get_attr("nope")
    env.close()
