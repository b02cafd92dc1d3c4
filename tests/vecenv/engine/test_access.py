"""Access to envs besides stepping: attributes through wrappers, spaces, seeds, frames."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.support.cases import counting, custom
from vecenv import DummyVectorEnv
from vecenv.testing import CountingEnv


class Layer(gymnasium.Wrapper):
    """Wrapper with a separate attribute and attributes that hide the env's."""

    def __init__(self, env):
        super().__init__(env)
        self.outer = self.both = "the wrapper's"

    def where(self, *args, **kwargs):
        return type(self).__name__, args, kwargs


class Inner(CountingEnv):
    def __init__(self, env_id):
        super().__init__(env_id)
        self.both = self.inner = "the env's"
        self._secret = 5
        self.items = []

    def where(self):
        return "hidden by the wrapper"

    def add(self, number, times=1):
        self.items += [number] * times
        return len(self.items)

    @property
    def broken(self):
        raise AttributeError("a cable is missing")


@pytest.fixture
def venv():
    with DummyVectorEnv([lambda i=i: Layer(gymnasium.wrappers.TimeLimit(Inner(i), 9)) for i in range(3)]) as venv:
        yield venv


@pytest.mark.parametrize(
    ("name", "value"),
    [("outer", "the wrapper's"), ("both", "the wrapper's"), ("inner", "the env's"), ("_secret", 5), ("new", None)],
)
def test_attributes_are_found_through_wrappers_outermost_first_and_set_where_they_are(venv, name, value):
    if value is not None:
        assert venv.get_env_attr(name) == [value] * 3
    venv.set_env_attr(name, 7, [0, 2])
    assert venv.get_env_attr(name, [0, 2]) == [7, 7]
    owner = venv.envs[2] if value == "the wrapper's" else venv.envs[2].unwrapped
    assert vars(owner)[name] == 7


def test_an_attribute_error_of_a_property_arrives_as_itself(venv):
    for read in (venv.get_env_attr, venv.call):
        with pytest.raises(AttributeError, match="a cable is missing"):
            read("broken")


def test_methods_are_called_and_values_returned(venv):
    assert venv.call("where", 1, id=2, key="word") == [("Layer", (1,), {"key": "word"})]
    assert venv.call("add", 4, times=2) == [2, 2, 2]
    assert venv.call("inner", id=0) == ["the env's"]
    venv.set_env_attr("maker", dict)  # what can be called is called only by `call`
    assert venv.get_env_attr("maker") == [dict] * 3
    assert venv.call("maker") == [{}] * 3
    assert venv.get_env_attr("__class__") == [Layer] * 3


class Simulator:
    """Object that an env stores under the name `env`, and that callers must not reach."""

    speed = 3

    def seed(self, seed):
        raise AssertionError("not an env")


def test_an_attribute_named_env_that_is_no_env_is_passed_by():
    def made():
        env = CountingEnv()
        env.env = Simulator()
        return env

    with DummyVectorEnv([made] * 2) as venv:
        with pytest.raises(AttributeError, match="CountingEnv has no attribute 'speed'"):
            venv.get_env_attr("speed")
        venv.set_env_attr("difficulty", 7)
        assert venv.get_env_attr("difficulty") == [7, 7]
        venv.seed(5)
        assert venv.get_env_attr("seeded") == [5, 6]


class UsesOurNames(CountingEnv):
    """Env with own attributes under the names that vecenv looks for."""

    frozen, reward_range, update_running_mean, transform = np.eye(2), "wide", None, torch.tensor(1.0)


def test_an_env_may_use_every_name_for_something_else():
    with DummyVectorEnv([lambda: gymnasium.wrappers.OrderEnforcing(UsesOurNames())]) as venv:
        venv.seed(4)
        assert (venv.get_env_attr("seeded"), venv.reward_range) == ([4], ["wide"])


class Forwards(gymnasium.Wrapper):
    """Wrapper that finds the env's attributes, as PettingZoo 1.27's BaseWrapper does."""

    def __getattr__(self, name):
        return getattr(self.env, name)


def test_an_attribute_is_set_behind_a_wrapper_that_forwards_it():
    with DummyVectorEnv([lambda: Forwards(Layer(Forwards(Inner(0))))]) as venv:
        for name, value in {"inner": 1, "outer": 2, "both": 3}.items():
            venv.set_env_attr(name, value)
            assert venv.get_env_attr(name) == [value]
        layer, innermost = venv.envs[0].env, venv.envs[0].unwrapped
        assert (layer.outer, layer.both, innermost.both, innermost.inner) == (2, 3, "the env's", 1)


def test_specs_and_reward_ranges_may_differ(venv):
    """`check_vector_env` checks those of equal envs."""
    assert not hasattr(venv, "reward_range")
    with DummyVectorEnv([lambda: gymnasium.make("CartPole-v1"), UsesOurNames]) as venv:
        assert [getattr(spec, "id", None) for spec in venv.spec] == ["CartPole-v1", None]
        assert venv.reward_range == [None, "wide"]


@pytest.mark.parametrize("backend", [DummyVectorEnv, custom])
def test_a_sample_of_the_parents_spaces_does_not_move_the_envs_generators(backend):
    with backend(counting(2)) as venv:
        venv.seed(4)
        for space in venv.action_space:
            space.sample()
        other = CountingEnv()
        other.action_space.seed(4)
        assert venv.get_env_attr("action_space", 0)[0].sample() == other.action_space.sample()


class OwnSeed(CountingEnv):
    """Env with a `seed` method, as in old Gym."""

    def seed(self, seed=None):
        self.seeded = seed


@pytest.mark.guarantee("G6.1")
def test_an_int_is_spread_over_the_envs_and_a_list_has_one_for_each():
    for given, returned in (
        (7, [7, 8, 9]),
        (np.array(3), [3, 4, 5]),
        (torch.tensor([3, 4, 5]), [3, 4, 5]),
        (range(3, 6), [3, 4, 5]),
        ([5, None, np.int64(1)], [5, None, 1]),
        (None, [None] * 3),
    ):
        with DummyVectorEnv(counting(3)) as venv:
            seeds = venv.seed(given)
            assert seeds == returned
            assert all(seed is None or type(seed) is int for seed in seeds)
            assert venv.get_env_attr("seeded") == [-1 if seed is None else seed for seed in returned]
            assert venv.get_env_attr("calls") == [int(seed is not None) for seed in returned]


@pytest.mark.guarantee("G6.8", "G6.9")
def test_a_reset_after_seeding_plays_the_second_episode():
    with DummyVectorEnv(["CartPole-v1"] * 2, strict=True) as venv:
        venv.seed(0)
        venv.step([0, 0])
        obs, _ = venv.reset()
    for i, row in enumerate(obs):
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=i)
        assert np.array_equal(row, env.reset()[0])


def test_an_envs_own_seed_method_is_used_and_is_no_reset():
    with DummyVectorEnv([OwnSeed, OwnSeed], strict=True) as venv:
        venv.seed(5)
        assert venv.get_env_attr("seeded") == [5, 6]
        assert venv.get_env_attr("calls") == [0, 0]
        with pytest.raises(RuntimeError, match="env 0 has not been reset"):
            venv.step([0, 0])


@pytest.mark.parametrize("backend", [DummyVectorEnv, custom])
def test_action_spaces_are_seeded_each_also_where_envs_share_one(backend):
    shared = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(1000)})

    def made(i):
        env = CountingEnv(i)
        env.action_space = shared
        return env

    with backend([lambda i=i: made(i) for i in range(3)]) as venv:
        venv.seed(1)
        samples = [space.sample() for space in venv.action_space]
    for i, sample in enumerate(samples):
        space = spaces.Dict(shared.spaces)
        space.seed(1 + i)
        want = space.sample()
        assert (sample["a"].tolist(), sample["b"]) == (want["a"].tolist(), want["b"])
