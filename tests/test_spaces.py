"""Observations of every kind of space: round trips bit for bit, and the rules for values that do not fit."""

import networkx
import numpy as np
import pytest
from cases import Plays, equal_bits, playing
from gymnasium import spaces

from tests.backends import BACKENDS, and_ray
from vecenv import EnvContractError, ObservationError

backend = and_ray(BACKENDS)

DTYPES = [
    bool,
    *(f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
]


def seen(backend, space, *scripts, steps=2, **options):
    """What a vector env returns from one reset and some steps when env i plays scripts[i]."""
    with backend(playing(space, *scripts), num_workers=min(2, len(scripts)), **options) as venv:
        return [venv.reset()[0], *(venv.step([0] * len(scripts))[0] for _ in range(steps))]


def samples(space, count, seed=0):
    space.seed(seed)
    return [space.sample() for _ in range(count)]


class TestArrays:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_boxes_of_every_dtype(self, backend, dtype):
        top = 1 if dtype is bool else 100
        space = spaces.Box(0, top, (2, 3), np.dtype(dtype).type)
        scripts = samples(space, 3), samples(space, 3, seed=1)
        for obs, rows in zip(seen(backend, space, *scripts), zip(*scripts, strict=True), strict=True):
            assert equal_bits(obs, np.stack(rows))
            assert obs.dtype == dtype

    @pytest.mark.parametrize(
        "space",
        [
            spaces.Box(-np.inf, np.inf, (), np.float32),
            spaces.Box(-1, 1, (0,), np.float32),
            spaces.Box(-1, 1, (3, 0, 2), np.float64),
            spaces.Discrete(5, start=-2),
            spaces.MultiDiscrete([3, 2**31]),
            spaces.MultiDiscrete(np.array([[3, 4], [5, 6]]), dtype=np.int32),
            spaces.MultiBinary(7),
            spaces.MultiBinary((2, 3)),
        ],
        ids=str,
    )
    def test_the_fundamental_spaces(self, backend, space):
        scripts = samples(space, 3), samples(space, 3, seed=1)
        for obs, rows in zip(seen(backend, space, *scripts), zip(*scripts, strict=True), strict=True):
            assert equal_bits(obs, np.stack([np.asarray(row, space.dtype) for row in rows]))
            assert obs.shape == (2, *space.shape)

    def test_bits_are_kept(self, backend):
        """NaNs with payloads, infinities, minus zero, and the ends of the integers."""
        floats = np.array([0x7FC00001, 0xFFC12345, 0x7F800000, 0x80000000, 1], np.uint32).view(np.float32)
        ints = np.array([2**63 - 1, -(2**63), 0, -1, 1])
        space = spaces.Dict(
            {"f": spaces.Box(-np.inf, np.inf, (5,)), "i": spaces.Box(-(2**63), 2**63 - 2, (5,), np.int64)}
        )
        obs = seen(backend, space, [{"f": floats, "i": ints}], steps=0)[0]
        assert equal_bits(obs["f"][0], floats)
        assert equal_bits(obs["i"][0], ints)

    def test_views_and_orders_of_memory(self, backend):
        space = spaces.Box(-100, 100, (3, 4), np.int64)
        base = np.arange(12).reshape(3, 4)
        odd = [np.asfortranarray(base), np.arange(24).reshape(3, 8)[:, ::2], base[::-1], base.astype(">i8")]
        for obs, given in zip(seen(backend, space, odd, steps=3), odd, strict=True):
            assert np.array_equal(obs[0], given)
            assert obs.dtype == np.dtype(np.int64)

    def test_large_observations(self, backend):
        """Several times what a pipe or a socket holds."""
        space = spaces.Box(0, 255, (2000, 1500), np.uint8)
        image = np.random.default_rng(0).integers(0, 256, space.shape, np.uint8)
        for obs in seen(backend, space, [image, 255 - image], [255 - image, image], steps=1):
            assert obs.sum(0, dtype=np.int64).min() == obs.sum(0, dtype=np.int64).max() == 255
            assert np.array_equal(obs[0], image) or np.array_equal(obs[1], image)


class TestTrees:
    NESTED = spaces.Dict(
        {
            "z": spaces.Box(-1, 1, (2,), np.float16),
            "a": spaces.Dict(
                {"x": spaces.MultiBinary(3), "y": spaces.Tuple([spaces.Discrete(4), spaces.Box(0, 9, (0, 2))])}
            ),
            "t": spaces.Tuple([spaces.Tuple([spaces.Discrete(3)]), spaces.Text(5)]),
        }
    )

    def test_nested_dicts_and_tuples(self, backend):
        scripts = samples(self.NESTED, 3), samples(self.NESTED, 3, seed=1)
        for obs, rows in zip(seen(backend, self.NESTED, *scripts), zip(*scripts, strict=True), strict=True):
            assert obs.keys() == {"z", "a", "t"}
            assert equal_bits(obs["z"], np.stack([row["z"] for row in rows]))
            assert equal_bits(obs["a"]["x"], np.stack([row["a"]["x"] for row in rows]))
            assert equal_bits(obs["a"]["y"][0], np.array([row["a"]["y"][0] for row in rows]))
            assert obs["a"]["y"][1].shape == (2, 0, 2)
            assert equal_bits(obs["t"][0][0], np.array([row["t"][0][0] for row in rows]))
            assert obs["t"][1].dtype == object
            assert obs["t"][1].tolist() == [row["t"][1] for row in rows]

    def test_unstacked(self, backend):
        script = samples(self.NESTED, 2)
        first, second = seen(backend, self.NESTED, script, steps=1, stack_obs=False)
        assert (first.dtype, first.shape) == (object, (1,))
        assert first[0]["t"][1] == script[0]["t"][1]
        assert equal_bits(first[0]["a"]["y"][0], script[0]["a"]["y"][0])
        assert equal_bits(second[0]["z"], script[1]["z"])
        assert isinstance(first[0]["a"]["y"], tuple)

    def test_empty_dicts_and_tuples(self, backend):
        space = spaces.Dict({"d": spaces.Dict({}), "t": spaces.Tuple([])})
        assert seen(backend, space, [{"d": {}, "t": ()}], steps=0)[0] == {"d": {}, "t": ()}

    def test_the_order_of_keys_does_not_matter(self, backend):
        space = spaces.Dict({"a": spaces.Discrete(9), "b": spaces.Discrete(9)})
        obs = seen(backend, space, [{"b": 1, "a": 2}], steps=0)[0]
        assert (obs["a"].tolist(), obs["b"].tolist()) == ([2], [1])


class Odd(spaces.Space):
    """A space of a user's own."""

    def sample(self, mask=None):
        return {"any": "thing"}

    def contains(self, x):
        return True


GRAPH = spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3))
OBJECTS = [
    spaces.Text(8),
    GRAPH,
    spaces.Sequence(spaces.Box(0, 1, (2,))),
    spaces.Sequence(spaces.Discrete(5), stack=True),
    spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
]


def same(left, right):
    """Two objects of any kind are equal."""
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray):
        return equal_bits(left, right)
    return left == right


class TestObjects:
    @pytest.mark.parametrize("space", OBJECTS, ids=lambda space: type(space).__name__)
    def test_spaces_without_a_fixed_shape(self, backend, space):
        scripts = samples(space, 3), samples(space, 3, seed=1)
        for obs, rows in zip(seen(backend, space, *scripts), zip(*scripts, strict=True), strict=True):
            assert (obs.dtype, obs.shape) == (object, (2,))
            assert all(type(got) is type(want) and same(got, want) for got, want in zip(obs, rows, strict=True))

    def test_a_custom_space(self, backend):
        obs = seen(backend, Odd(), [{"any": [1]}, None])
        assert [batch.tolist() for batch in obs] == [[{"any": [1]}], [None], [{"any": [1]}]]

    def test_objects_beside_arrays(self, backend):
        """Only the object leaves are objects."""
        space = spaces.Dict({"text": spaces.Text(9), "n": spaces.Box(0, 9, (2,), np.int64)})
        script = [{"text": f"t{k}", "n": np.array([k, k])} for k in range(3)]
        for k, obs in enumerate(seen(backend, space, script, script)):
            assert obs["text"].tolist() == [f"t{k}"] * 2
            assert equal_bits(obs["n"], np.array([[k, k]] * 2))

    def test_objects_do_not_change_later(self, backend):
        class Grows(Plays):
            def _next(self):
                self.script[0].append(len(self.script[0]))
                return self.script[0]

        with backend([lambda: Grows(Odd(), [[]])] * 2) as venv:
            first = venv.reset()[0]
            venv.step([0, 0])
            assert first.tolist() == [[0], [0]]

    def test_graphs_are_of_their_own_env(self, backend):
        """Envs of a worker may fill one array, and a graph is a tuple with names."""
        nodes = np.zeros((1, 1), np.float32)

        class Fills(Plays):
            def _next(self):
                nodes[...] = super()._next()
                return spaces.GraphInstance(nodes, None, None)

        graphs = spaces.Graph(spaces.Box(0, 9, (1,)), None)
        with backend([lambda k=k: Fills(graphs, [k, k + 4]) for k in range(3)], num_workers=1) as venv:
            first, second = venv.reset()[0], venv.step([0] * 3)[0]
            assert all(type(graph) is spaces.GraphInstance for graph in first)
            assert [graph.nodes.item() for graph in first] == [0, 1, 2]
            assert [graph.nodes.item() for graph in second] == [4, 5, 6]

    def test_any_subset_of_ids_has_the_same_form(self, backend):
        with backend(playing(spaces.Text(3), ["a"], ["b"], ["c"]), num_workers=2) as venv:
            assert venv.reset()[0].tolist() == ["a", "b", "c"]
            for ids, want in ((2, ["c"]), ([1, 0], ["b", "a"])):
                obs = venv.step([0] * len(want), ids)[0]
                assert (obs.dtype, obs.tolist()) == (object, want)


class TestEnvsWithoutSpaces:
    def test_arrays_are_stacked_as_they_come(self, backend):
        script = [np.arange(3, dtype=np.int16), np.ones(3, np.int16)]
        first, second = seen(backend, None, script, script, steps=1)
        assert equal_bits(first, np.stack([script[0]] * 2))
        assert equal_bits(second, np.stack([script[1]] * 2))

    @pytest.mark.parametrize("shapes", [[(3, 4), (3, 5)], [(2,), (3,)], [(1,), ()]], ids=str)
    def test_ragged_arrays_are_objects(self, backend, shapes):
        scripts = [[np.full(shape, 7.0)] for shape in shapes]
        for obs in seen(backend, None, *scripts):
            assert (obs.dtype, obs.shape) == (object, (2,))
            assert [np.shape(row) for row in obs] == shapes

    def test_an_odd_one_among_even_arrays_makes_them_objects(self, backend):
        scripts = [[np.zeros(shape)] for shape in (2, 3, 2)]
        for obs in seen(backend, None, *scripts):
            assert [np.shape(row) for row in obs] == [(2,), (3,), (2,)]

    def test_none_and_graphs_are_objects(self, backend):
        graph = networkx.path_graph(3)
        for k, obs in enumerate(seen(backend, None, [graph, None], [graph, None])):
            assert (obs.dtype, obs.shape) == (object, (2,))
            assert obs.tolist() == [None, None] if k == 1 else [sorted(g.edges) for g in obs] == [[(0, 1), (1, 2)]] * 2

    def test_dicts_are_objects(self, backend):
        obs = seen(backend, None, [{"a": 1}], [{"b": [2]}], steps=0)[0]
        assert obs.tolist() == [{"a": 1}, {"b": [2]}]

    def test_their_spaces_are_none(self, backend):
        with backend(playing(None, [1.0])) as venv:
            assert venv.observation_space == [None]
            assert venv.reset()[0].tolist() == [1.0]


class TestEnvsThatDiffer:
    def test_each_keeps_its_own_space(self, backend):
        one, two = spaces.Box(0, 9, (2,), np.float32), spaces.Box(0, 9, (3,), np.int64)
        env_fns = [lambda: Plays(one, [[1.0, 2.0]]), lambda: Plays(two, [np.array([1, 2, 3])])]
        with backend(env_fns, num_workers=2) as venv:
            assert venv.observation_space == [one, two]
            for ids in (None, [0], [1]):
                obs = venv.reset(ids)[0]
                assert obs.dtype == object
            obs = venv.reset()[0]
            assert equal_bits(obs[0], np.array([1, 2], np.float32))
            assert equal_bits(obs[1], np.array([1, 2, 3]))

    def test_only_the_parts_that_differ_are_objects(self, backend):
        def space(k):
            return spaces.Dict({"same": spaces.Discrete(4), "other": spaces.Box(0, 9, (k,), np.int64)})

        env_fns = [lambda k=k: Plays(space(k), [{"same": k, "other": np.arange(k)}]) for k in (1, 2)]
        with backend(env_fns) as venv:
            obs = venv.reset()[0]
            assert equal_bits(obs["same"], np.array([1, 2]))
            assert [row.tolist() for row in obs["other"]] == [[0], [0, 1]]

    def test_action_spaces_may_differ(self, backend):
        env_fns = [
            lambda: Plays(spaces.Discrete(2), [0], action_space=spaces.Discrete(2)),
            lambda: Plays(spaces.Discrete(2), [1], action_space=spaces.Box(-1, 1, (1,))),
        ]
        with backend(env_fns) as venv:
            assert venv.action_space == [spaces.Discrete(2), spaces.Box(-1, 1, (1,))]
            venv.reset()
            assert venv.step([1, np.array([0.5], np.float32)])[0].tolist() == [0, 1]

    def test_check_spaces_refuses_them_and_names_the_envs(self, backend):
        env_fns = [lambda k=k: Plays(spaces.Discrete(k), [0]) for k in (2, 2, 3)]
        text = r"differ in their observation_space: envs \[0, 1\]: Discrete\(2\); envs \[2\]: Discrete\(3\)"
        with pytest.raises(ValueError, match=text):
            backend(env_fns, check_spaces=True)

    def test_what_an_env_writes_over_its_array_is_not_ours(self, backend):
        own = np.zeros(2, np.float32)
        env_fns = [lambda: Plays(spaces.Box(0, 9, (2,)), [own]), lambda: Plays(spaces.Box(0, 9, (3,)), [np.zeros(3)])]
        with backend(env_fns) as venv:
            obs, _ = venv.reset()
            own[:] = 5
            assert obs[0].tolist() == [0, 0]


class TestRewards:
    @pytest.mark.parametrize(
        "reward", [1, 1.5, np.float32(0.5), np.int64(2), True, np.array(3.0), np.array([4.0])], ids=repr
    )
    def test_numbers_are_float64(self, backend, reward):
        with backend(playing(spaces.Discrete(1), [0], [0], rewards=[reward])) as venv:
            venv.reset()
            rew = venv.step([0, 0])[1]
            assert equal_bits(rew, np.full(2, float(np.asarray(reward).reshape(()))))

    def test_vectors(self, backend):
        rewards = [[1, 2, 3], np.array([0.5, 0, 1]), (4, 5, 6)]
        with backend(playing(spaces.Discrete(1), [0], [0], rewards=rewards), num_workers=2) as venv:
            venv.reset()
            for _ in range(3):
                rew = venv.step([0, 0])[1]
                assert (rew.dtype, rew.shape) == (np.float64, (2, 3))
                assert rew[0].tolist() == rew[1].tolist()
                assert rew[0].tolist() in [[1, 2, 3], [0.5, 0, 1], [4, 5, 6]]
            assert venv.step([0], 1)[1].shape == (1, 3)
            assert venv.step([0, 0], reset=[0])[1][0].tolist() == [0, 0, 0]

    @pytest.mark.parametrize("num_workers", [1, 2])
    @pytest.mark.parametrize("wrong", [-7, [1, 2, 3]], ids=str)
    def test_an_env_whose_rewards_have_another_shape_fails_alone(self, backend, wrong, num_workers):
        env_fns = [playing(spaces.Discrete(1), [0], rewards=[reward])[0] for reward in ([1, 2], wrong)]
        with backend(env_fns, num_workers=num_workers) as venv:
            venv.reset()
            with pytest.raises(
                EnvContractError, match=r"env 1: step\(\) returned a reward of shape .*expected \(2,\)"
            ) as caught:
                venv.step([0, 0])
            assert caught.value.env_id == 1
            assert caught.value.partial.rew.tolist() == [[1, 2]]
            assert venv.failed_id == [1]

    @pytest.mark.parametrize("rewards", [[[1, 2], -7.0], [1.0, [1, 2]], [1.0, 2.0, [3.0, 4.0]], [[1, 2], [1, 2, 3]]])
    def test_an_env_does_not_change_the_shape_of_its_rewards(self, backend, rewards):
        script, rewards = [np.zeros(2, np.float32)], [rewards[-1], *rewards[:-1]]  # the first one goes with the reset
        with backend(playing(spaces.Box(0, 1, (2,)), script, rewards=rewards)) as venv:
            venv.reset()
            for _ in rewards[1:]:
                venv.step([0])
            with pytest.raises(EnvContractError, match=r"env 0: step\(\) returned a reward of shape .*, expected"):
                venv.step([0])


F1 = [
    # given, the space, what comes back or the text of the error
    (np.array([300, 1]), spaces.Box(0, 255, (2,), np.uint8), "with values in [1, 300], the space has uint8 (2,)"),
    (np.array([-1, 1]), spaces.Box(0, 255, (2,), np.uint8), "with values in [-1, 1], the space has uint8 (2,)"),
    (np.array([2.7, 1]), spaces.Box(0, 9, (2,), np.int64), "(2,) with values in [1.0, 2.7], the space has int64"),
    (np.array([np.nan, 1]), spaces.Box(0, 9, (2,), np.int64), "is float64 (2,)"),
    (np.ones(1), spaces.Box(0, 9, (3,)), "is float64 (1,) with values in [1.0, 1.0], the space has float32 (3,)"),
    (np.ones((3, 1)), spaces.Box(0, 9, (3,)), "is float64 (3, 1)"),
    (np.ones((2, 3)), spaces.Box(0, 9, (3, 2)), "is float64 (2, 3)"),
    (None, spaces.Box(0, 9, (3,)), "is object (), the space has float32 (3,)"),
    (np.zeros(2, np.complex64), spaces.Box(0, 9, (2,), np.int64), "is complex64 (2,), the space has int64 (2,)"),
    ([[1, 2], [3]], spaces.Box(0, 9, (2, 2)), "is ragged, the space has float32 (2, 2)"),
    ("text", spaces.Box(0, 9, (1,)), "the space has float32 (1,)"),
    (1j, spaces.Box(0, 9, ()), "is complex128 ()"),
    (2.5, spaces.Discrete(5), "is float64 () with values in [2.5, 2.5], the space has int64 ()"),
    (2**70, spaces.Discrete(5), "the space has int64 ()"),
    (2, spaces.MultiBinary(2), "is int64 ()"),
    (np.array([1e300, 1]), spaces.Box(0, 9, (2,)), "with values in [1.0, 1e+300], the space has float32 (2,)"),
    (-1e300, spaces.Box(-9, 9, ()), "is float64 () with values in [-1e+300, -1e+300], the space has float32 ()"),
    (70000, spaces.Box(0, 9, (), np.float16), "is int64 () with values in [70000, 70000], the space has float16 ()"),
    (np.array([np.inf, -np.inf, np.nan, 1e-300, 0.1]), spaces.Box(0, 9, (5,)),
     np.array([np.inf, -np.inf, np.nan, 0, 0.1], np.float32)),
    (-np.inf, spaces.Box(-9, 9, (), np.float16), np.array(-np.inf, np.float16)),
    (np.arange(2), spaces.Box(0, 9, (2,), np.float32), np.array([0, 1], np.float32)),
    (np.array([0.1, 2]), spaces.Box(0, 9, (2,), np.float32), np.array([0.1, 2], np.float32)),
    (np.array([0.1, 2], np.float32), spaces.Box(0, 9, (2,), np.float64), np.array([0.1, 2], np.float32).astype(float)),
    (np.array([3.0, 2.0]), spaces.Box(0, 9, (2,), np.int64), np.array([3, 2])),
    (np.array([True, False]), spaces.Box(0, 9, (2,), np.uint8), np.array([1, 0], np.uint8)),
    ([1, 2], spaces.Box(0, 9, (2,), np.uint8), np.array([1, 2], np.uint8)),
    (np.array([3]), spaces.Discrete(5), np.array(3)),
    (np.int8(3), spaces.Discrete(5), np.array(3)),
    (3, spaces.Box(0, 9, (1,), np.int64), np.array([3])),
]  # fmt: skip


class TestValuesThatDoNotFit:
    @pytest.mark.parametrize(("given", "space", "want"), F1, ids=lambda value: repr(value)[:40])
    def test_they_are_cast_if_nothing_is_lost_else_an_error(self, backend, given, space, want):
        nested = spaces.Dict({"x": spaces.Tuple([space])})
        with backend(playing(nested, [{"x": (space.sample(),)}, {"x": (given,)}])) as venv:
            venv.reset()
            if not isinstance(want, str):
                assert equal_bits(venv.step([0])[0]["x"][0][0], want)
                return
            with pytest.raises(ObservationError) as caught:
                venv.step([0])
            assert str(caught.value).startswith("env 0: obs['x'][0] is ")
            assert want in str(caught.value)
            assert caught.value.env_id == 0
            venv.reset()

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"a": 1}, r"env 1: obs has the wrong keys: missing \['b'\], not in the space \[\]"),
            ({"a": 1, "b": (1,), "c": 1}, r"env 1: obs has the wrong keys: missing \[\], not in the space \['c'\]"),
            ([1, 2], r"env 1: obs is a list, expected a dict with the keys \['a', 'b'\]"),
            ({"a": 1, "b": [1]}, r"env 1: obs\['b'\] is a list, expected a tuple of 1"),
            ({"a": 1, "b": (1, 2)}, r"env 1: obs\['b'\] is a tuple of 2, expected a tuple of 1"),
        ],
    )
    def test_other_keys_or_lengths_are_errors(self, backend, given, text):
        space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Discrete(3)])})
        fine = {"a": 0, "b": (0,)}
        with backend(playing(space, [fine], [fine, given]), num_workers=1) as venv:
            venv.reset()
            with pytest.raises(ObservationError, match=text) as caught:
                venv.step([0, 0])
            assert caught.value.partial.env_id.tolist() == [0]
