"""Access to envs besides stepping: attributes through wrappers, spaces, seeds, frames.

The same code runs in all backends, so most tests use DummyVectorEnv. Tests that send a value use ShmemVectorEnv.
"""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import and_ray
from tests.support.cases import counting, custom
from vecenv import ClosedError, DummyVectorEnv, ShmemVectorEnv, VectorEnvWrapper
from vecenv.backends.ipc.messages import Channel
from vecenv.testing import CountingEnv

remote_backend = and_ray([ShmemVectorEnv])
dummy_and_custom = pytest.mark.parametrize("backend", [DummyVectorEnv, custom])


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
        self.items, self.array = [], np.zeros(2)

    def fill(self, value):
        self.array[...] = value

    def where(self):
        return "hidden by the wrapper"

    def add(self, number, times=1):
        self.items += [number] * times
        return len(self.items)

    def trip(self):
        raise KeyError("tripped")

    @property
    def broken(self):
        raise AttributeError("a cable is missing")

    @property
    def fragile(self):
        return 1

    @fragile.setter
    def fragile(self, value):
        raise ValueError(f"{value} is refused")


def wrapped(n):
    return [lambda i=i: Layer(gymnasium.wrappers.TimeLimit(Inner(i), 9)) for i in range(n)]


@pytest.fixture
def venv():
    with DummyVectorEnv(wrapped(3)) as venv:
        yield venv


class TestAttributes:
    @pytest.mark.parametrize(
        ("name", "value"),
        [("outer", "the wrapper's"), ("both", "the wrapper's"), ("inner", "the env's"), ("_secret", 5), ("new", None)],
    )
    def test_they_are_found_through_wrappers_outermost_first_and_set_where_they_are(self, venv, name, value):
        if value is not None:
            assert venv.get_env_attr(name) == [value] * 3
        venv.set_env_attr(name, 7, [0, 2])
        assert venv.get_env_attr(name, [0, 2]) == [7, 7]
        owner = venv.envs[2] if value == "the wrapper's" else venv.envs[2].unwrapped
        assert vars(owner)[name] == 7

    @pytest.mark.parametrize("call", [lambda v: v.get_env_attr("nope", [1, 2]), lambda v: v.call("nope", id=1)])
    def test_an_unknown_name_is_an_attribute_error_and_the_venv_goes_on(self, venv, call):
        with pytest.raises(AttributeError, match="Inner has no attribute 'nope'") as caught:
            call(venv)
        assert any("env 1" in note for note in caught.value.__notes__)
        venv.reset()
        assert venv.step([1, 2, 3])[0][:, 4].tolist() == [1, 2, 3]

    def test_one_value_for_all_travels_once_to_each_worker(self, monkeypatch):
        sent, post = [], Channel.post

        def counted(channel, kind, number, *parts):
            sent.append(sum(map(len, parts)))
            return post(channel, kind, number, *parts)

        value = np.zeros(10_000)
        with ShmemVectorEnv(wrapped(6), num_workers=2) as venv:
            monkeypatch.setattr(Channel, "post", counted)
            for use in (
                lambda: venv.set_env_attr("array", value),
                lambda: venv.call("add", value),
                lambda: venv.reset(options={"weights": value}),
            ):
                sent.clear()
                use()
                assert 2 * value.nbytes < sum(sent) < 3 * value.nbytes

    def test_a_reply_is_no_reason_to_go_through_all_workers(self):
        class Counted(list):
            walks = 0

            def __iter__(self):
                self.walks += 1
                return super().__iter__()

        with ShmemVectorEnv(wrapped(4), num_workers=4) as venv:
            pool = venv.engine.backend.pool
            workers = pool.workers = Counted(pool.workers)
            assert venv.get_env_attr("env_id") == [0, 1, 2, 3]
            assert workers.walks <= 1  # one by the watchdog, where this takes long

    def test_errors_of_properties_and_methods_arrive_as_themselves(self, venv):
        with pytest.raises(ValueError, match="8 is refused"):
            venv.set_env_attr("fragile", 8)
        with pytest.raises(KeyError, match="tripped") as caught:
            venv.call("trip", id=[2])
        assert any("env 2" in note for note in caught.value.__notes__)
        assert venv.get_env_attr("fragile") == [1, 1, 1]
        for read in (venv.get_env_attr, venv.call):
            with pytest.raises(AttributeError, match="a cable is missing"):
                read("broken")

    def test_methods_are_called_and_values_returned(self, venv):
        assert venv.call("where", 1, id=2, key="word") == [("Layer", (1,), {"key": "word"})]
        assert venv.call("add", 4, times=2) == [2, 2, 2]
        assert venv.call("add", 5, id=[1]) == [3]
        assert venv.get_env_attr("items") == [[4, 4], [4, 4, 5], [4, 4]]
        assert venv.call("inner", id=0) == ["the env's"]
        venv.set_env_attr("maker", dict)  # what can be called is called only by `call`
        assert venv.get_env_attr("maker") == [dict] * 3
        assert venv.call("maker") == [{}] * 3

    def test_special_names_are_found_as_all_others(self, venv):
        assert venv.get_env_attr("__class__") == [Layer] * 3
        venv.set_env_attr("__mine__", 4, [0, 2])
        assert venv.get_env_attr("__mine__", [2, 0]) == [4, 4]
        for name in ("__mine__", "__nope__"):
            with pytest.raises(AttributeError, match=f"Inner has no attribute '{name}'"):
                venv.get_env_attr(name, 1)

    def test_a_value_that_is_set_is_each_envs_own_and_one_that_was_got_does_not_change(self, venv):
        mine, array = [1], np.zeros(2)
        venv.set_env_attr("items", mine)
        venv.set_env_attr("array", array)
        got = venv.get_env_attr("array", 1)[0]
        venv.call("add", 2, id=0)
        venv.call("fill", 7, id=1)
        assert venv.get_env_attr("items") == [[1, 2], [1], [1]]
        assert [value.tolist() for value in venv.get_env_attr("array")] == [[0, 0], [7, 7], [0, 0]]
        assert (mine, array.tolist(), got.tolist()) == ([1], [0, 0], [0, 0])


class Simulator:
    """Object that an env stores under the name `env`, and that callers must not reach."""

    speed = 3

    def seed(self, seed):
        raise AssertionError("not an env")

    def reset(self):
        raise AssertionError("not for the caller")

    step = reset


@pytest.mark.parametrize("kind", ["a simulator", "a text", "itself"])
def test_what_is_no_wrapper_is_passed_by(kind):
    def made():
        env = CountingEnv()
        env.env = {"a simulator": Simulator(), "a text": "text", "itself": env}[kind]
        return env

    with DummyVectorEnv([made] * 2) as venv:
        with pytest.raises(AttributeError, match="CountingEnv has no attribute 'speed'"):
            venv.get_env_attr("speed")
        venv.set_env_attr("difficulty", 7)
        assert venv.get_env_attr("difficulty") == [7, 7]
        venv.seed(5)
        assert venv.get_env_attr("seeded") == [5, 6]


class Matrix:
    """Matrix whose numbers cannot be iterated, as a tensor of torch or a rotation of scipy."""

    def __iter__(self):
        raise TypeError("iteration over a number")


class UsesOurNames(CountingEnv):
    """Env with own attributes under the names that vecenv looks for."""

    frozen, reward_range, update_running_mean = np.eye(2), "wide", None

    def __init__(self, transform):
        super().__init__()
        self.transform = transform


@pytest.mark.parametrize(
    "transform", [Matrix(), iter([1, 2]), "text", np.eye(2)], ids=lambda value: type(value).__name__
)
def test_an_env_may_use_every_name_for_something_else(transform):
    with DummyVectorEnv([lambda: gymnasium.wrappers.OrderEnforcing(UsesOurNames(transform))]) as venv:
        venv.seed(4)
        assert (venv.get_env_attr("seeded"), venv.reward_range) == ([4], ["wide"])
        if transform.__class__.__name__ == "list_iterator":
            assert list(transform) == [1, 2]


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


class Named(CountingEnv):
    metadata = {"render_modes": ["rgb_array"], "name": "named"}
    reward_range = (-1, 1)


class TestLists:
    def test_spaces_are_those_of_the_outermost_wrapper(self):
        def flattened(i):
            return gymnasium.wrappers.FlattenObservation(CountingEnv(i, form="dict"))

        with DummyVectorEnv([lambda i=i: flattened(i) for i in range(2)]) as venv:
            assert venv.observation_space == [flattened(0).observation_space] * 2
            assert venv.reset()[0].shape == (2, *flattened(0).observation_space.shape)

    def test_metadata_spec_and_reward_range(self, venv):
        assert not hasattr(venv, "reward_range")
        with DummyVectorEnv([lambda: gymnasium.make("CartPole-v1"), lambda: Named(1)]) as venv:
            assert [m.get("name") for m in venv.metadata] == [None, "named"]
            assert venv.metadata[0]["render_fps"] == 50
            assert [getattr(s, "id", None) for s in venv.spec] == ["CartPole-v1", None]
            assert venv.reward_range == [None, (-1, 1)]

    def test_wrappers_with_statistics_and_the_form_of_observations(self):
        def normalized(form):
            return gymnasium.wrappers.NormalizeReward(CountingEnv(form=form))

        for form, splits in (("dict", True), ("array", False)):
            with VectorEnvWrapper(DummyVectorEnv([lambda form=form: normalized(form)] * 2, stack_obs=False)) as venv:
                assert venv.learning_wrappers == [("NormalizeReward",)] * 2
                assert venv.splits_obs is splits
        with pytest.raises(ClosedError):
            venv.splits_obs  # noqa: B018

    @dummy_and_custom
    def test_the_parents_spaces_are_its_own(self, backend):
        """A sample here must not move the envs' generators."""
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


class TestSeeds:
    @pytest.mark.guarantee("G6.1")
    @pytest.mark.parametrize(
        ("given", "returned", "seeded"),
        [
            (7, [7, 8, 9], [7, 8, 9]),
            (np.int32(3), [3, 4, 5], [3, 4, 5]),
            (np.array(3), [3, 4, 5], [3, 4, 5]),
            (np.array([3, 4, 5]), [3, 4, 5], [3, 4, 5]),
            (range(3, 6), [3, 4, 5], [3, 4, 5]),
            ([5, None, np.int64(1)], [5, None, 1], [5, -1, 1]),
            (None, [None] * 3, [-1] * 3),
        ],
        ids=repr,
    )
    def test_an_int_is_spread_over_the_envs_and_a_list_has_one_for_each(self, venv, given, returned, seeded):
        assert venv.seed(given) == returned
        assert venv.get_env_attr("seeded") == seeded
        assert venv.get_env_attr("calls") == [int(seed is not None) for seed in returned]

    @pytest.mark.guarantee("G6.8")
    def test_a_seeded_env_can_be_stepped(self):
        with DummyVectorEnv(counting(3), strict=True) as venv:
            assert venv.set_seed(None) is None
            venv.seed(7)
            assert venv.step([0, 0, 0])[0][:, 1:4].tolist() == [[0, 1, 7], [0, 1, 8], [0, 1, 9]]

    @pytest.mark.guarantee("G6.9")
    def test_a_reset_after_seeding_plays_the_second_episode(self):
        with DummyVectorEnv(["CartPole-v1"] * 2) as venv:
            venv.seed(0)
            obs, _ = venv.reset()
        for i, row in enumerate(obs):
            env = gymnasium.make("CartPole-v1")
            env.reset(seed=i)
            assert np.array_equal(row, env.reset()[0])

    def test_an_envs_own_seed_method_is_used_and_is_no_reset(self):
        with DummyVectorEnv([OwnSeed, OwnSeed], strict=True) as venv:
            venv.seed(5)
            assert venv.get_env_attr("seeded") == [5, 6]
            assert venv.get_env_attr("calls") == [0, 0]
            with pytest.raises(RuntimeError, match="env 0 has not been reset"):
                venv.step([0, 0])

    @dummy_and_custom
    def test_action_spaces_are_seeded_each_also_where_envs_share_one(self, backend):
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


@dummy_and_custom
def test_frames_and_reset_options_of_some_envs(backend):
    with backend(counting(3)) as venv:
        venv.reset()
        assert [frame[0, 0, 0] for frame in venv.render([2, 0])] == [2, 0]
        assert [frame[0, 0, 0] for frame in venv.render(id=1)] == [1]
        obs, _ = venv.reset([2, 0], options=[{"t": 5}, {"t": 7}], seed=[30, 40])
        assert obs[:, [0, 2, 3]].tolist() == [[2, 5, 30], [0, 7, 40]]
        assert venv.reset(options={"t": 3})[0][:, 2].tolist() == [3] * 3
        with pytest.raises(ValueError, match=r"got 1 options for 2 envs \[1, 2\]; pass one dict per env"):
            venv.reset([1, 2], options=[{"t": 1}])
        assert venv.reset(options=({"t": 1}, None, {}))[0][:, 2].tolist() == [1, 0, 0]
