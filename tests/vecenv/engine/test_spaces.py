"""Observations of each kind of space. All spaces together run on all backends; each kind and each misfit on
DummyVectorEnv.
"""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

from tests.support.cases import (
    NEAR_ON_RAY,
    WITH_TWO_WORKERS,
    Plays,
    assert_rows,
    custom,
    equal_bits,
    playing,
    samples,
    sharing,
)
from vecenv import DummyVectorEnv, EnvContractError, ObservationError, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv

DTYPES = [
    "bool",
    *(f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
]
FUNDAMENTAL = [
    *(spaces.Box(0, 1 if dtype == "bool" else 100, (2, 3), np.dtype(dtype).type) for dtype in DTYPES),
    spaces.Box(-np.inf, np.inf, (), np.float32),
    spaces.Box(-1, 1, (0,), np.float32),
    spaces.Box(-1, 1, (3, 0, 2), np.float64),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([3, 2**31]),
    spaces.MultiDiscrete(np.array([[3, 4], [5, 6]]), dtype=np.int32),
    spaces.MultiBinary(7),
    spaces.MultiBinary((2, 3)),
]


class Odd(spaces.Space):
    """Space class of a user."""

    def __repr__(self):
        return "Odd()"

    def sample(self, mask=None):
        return {"any": "thing"}

    def contains(self, x):
        return True


OBJECTS = [
    spaces.Text(8),
    spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
    spaces.Sequence(spaces.Box(0, 1, (2,))),
    spaces.Sequence(spaces.Discrete(5), stack=True),
    spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
    Odd(),
]
ALL_KINDS = spaces.Dict(
    {
        "arrays": spaces.Tuple(FUNDAMENTAL),
        "objects": spaces.Dict({str(k): space for k, space in enumerate(OBJECTS)}),
        "empty": spaces.Tuple([spaces.Dict({}), spaces.Tuple([])]),
    }
)


def seen(space, *scripts, steps=2, make=DummyVectorEnv, **options):
    """Return the rows of a reset and some steps, if env i plays scripts[i]."""
    with make(playing(space, *scripts), **options) as venv:
        return [venv.reset()[0], *(venv.step([0] * len(scripts))[0] for _ in range(steps))]


@pytest.mark.guarantee("G3.1")
@pytest.mark.parametrize(
    "make", [DummyVectorEnv, custom, *WITH_TWO_WORKERS, NEAR_ON_RAY], ids=lambda make: make.__name__
)
def test_a_batch_with_all_kinds_of_spaces(make):
    scripts = [samples(ALL_KINDS, 4, seed) for seed in range(3)]
    with make(playing(ALL_KINDS, *scripts)) as venv:
        for turn, ids in enumerate((None, None, [2, 0], [0, 2])):
            obs = venv.step([0] * len(ids or scripts), ids)[0] if turn else venv.reset()[0]
            assert_rows(obs, [scripts[i][turn] for i in ids or range(3)], ALL_KINDS)


class TestArrays:
    def test_bits_are_kept(self):
        """NaNs with payloads, infinities, minus zero."""
        floats = np.array([0x7FC00001, 0xFFC12345, 0x7F800000, 0x80000000, 1], np.uint32).view(np.float32)
        assert equal_bits(seen(spaces.Box(-np.inf, np.inf, (5,)), [floats], steps=0)[0][0], floats)

    def test_views_and_orders_of_memory(self):
        space = spaces.Box(-100, 100, (3, 4), np.int64)
        base = np.arange(12).reshape(3, 4)
        odd = [np.asfortranarray(base), np.arange(24).reshape(3, 8)[:, ::2], base[::-1], base.astype(">i8")]
        for obs, given in zip(seen(space, odd, steps=3), odd, strict=True):
            assert np.array_equal(obs[0], given)
            assert obs.dtype == np.dtype(np.int64)

    @pytest.mark.parametrize("make", [SubprocVectorEnv, ShmemVectorEnv])
    def test_large_observations(self, make):
        """Several times larger than the buffer of a pipe or socket."""
        space = spaces.Box(0, 255, (2000, 1500), np.uint8)
        image = np.random.default_rng(0).integers(0, 256, space.shape, np.uint8)
        first, second = seen(space, [image, 255 - image], [255 - image, image], steps=1, make=make, num_workers=2)
        assert np.array_equal(first, [image, 255 - image])
        assert np.array_equal(second, first[::-1])

    def test_the_order_of_keys_does_not_matter(self):
        space = spaces.Dict({"a": spaces.Discrete(9), "b": spaces.Discrete(9)})
        obs = seen(space, [{"b": 1, "a": 2}], steps=0)[0]
        assert (obs["a"].tolist(), obs["b"].tolist()) == ([2], [1])


class TestObjects:
    @pytest.mark.parametrize("backend", [DummyVectorEnv, ShmemVectorEnv])
    def test_graphs_are_of_their_own_env(self, backend):
        """Envs of a worker may fill a common array, and a graph is a named tuple."""
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


class TestEnvsThatDiffer:
    def test_only_the_parts_that_differ_are_objects(self):
        def space(k):
            return spaces.Dict({"same": spaces.Discrete(4), "other": spaces.Box(0, 9, (k,), np.int64)})

        env_fns = [lambda k=k: Plays(space(k), [{"same": k, "other": np.arange(k)}]) for k in (1, 2)]
        with DummyVectorEnv(env_fns) as venv:
            assert venv.observation_space == [space(1), space(2)]
            for ids in (None, [0], [1]):
                obs, info = venv.reset(ids)
                ks = [1 + row["env_id"] for row in info]
                assert equal_bits(obs["same"], np.array(ks))
                assert obs["other"].dtype == object
                assert [row.tolist() for row in obs["other"]] == [[0, 1][:k] for k in ks]

    def test_each_keeps_the_dtype_of_its_space_and_an_array_of_its_own(self):
        own = np.zeros(2)
        one, two = spaces.Box(0, 9, (2,), np.float32), spaces.Box(0, 9, (3,), np.int64)
        with DummyVectorEnv([lambda: Plays(one, [own]), lambda: Plays(two, [[1, 2, 3]])]) as venv:
            obs, _ = venv.reset()
            own[:] = 5  # the env's later writes must not show
            assert equal_bits(obs[0], np.zeros(2, np.float32))
            assert equal_bits(obs[1], np.array([1, 2, 3]))

    def test_action_spaces_may_differ_and_be_empty(self):
        with DummyVectorEnv([lambda: Plays(spaces.Discrete(2), [0], action_space=spaces.Dict({}))]) as venv:
            assert venv.step([{}])[0].tolist() == [0]
        action_spaces = [spaces.Discrete(2), spaces.Box(-1, 1, (1,))]
        env_fns = [lambda k=k: Plays(spaces.Discrete(2), [k], action_space=action_spaces[k]) for k in range(2)]
        with DummyVectorEnv(env_fns) as venv:
            assert venv.action_space == action_spaces
            venv.reset()
            assert venv.step([1, np.array([0.5], np.float32)])[0].tolist() == [0, 1]

    def test_check_spaces_refuses_them_and_names_the_envs(self):
        env_fns = [lambda k=k: Plays(spaces.Discrete(k), [0]) for k in (2, 2, 3)]
        text = r"differ in their observation_space: envs \[0, 1\]: Discrete\(2\); envs \[2\]: Discrete\(3\)"
        with pytest.raises(ValueError, match=text):
            DummyVectorEnv(env_fns, check_spaces=True)


class TestRewards:
    @pytest.mark.guarantee("G3.6")
    @pytest.mark.parametrize(
        ("rewards", "want"),
        [
            ([1, 1.5, np.float32(0.5), np.int64(2), True], [1, 1.5, 0.5, 2, 1]),
            ([np.array(3.0), np.array([4.0])], [3, 4]),
            ([[1, 2, 3], np.array([0.5, 0, 1]), (4, 5, 6)], [[1, 2, 3], [0.5, 0, 1], [4, 5, 6]]),
        ],
    )
    def test_numbers_and_vectors_are_float64(self, rewards, want):
        with DummyVectorEnv(playing(spaces.Discrete(1), [0], [0], rewards=[rewards[-1], *rewards[:-1]])) as venv:
            venv.reset()
            for one in want:
                assert equal_bits(venv.step([0, 0])[1], np.array([one, one], float))

    @pytest.mark.guarantee("G3.7")
    @pytest.mark.parametrize("make", [sharing(ThreadVectorEnv, k) for k in (1, 2)], ids=lambda make: make.__name__)
    @pytest.mark.parametrize("wrong", [-7, 0, [1, 2, 3]], ids=str)
    def test_an_env_whose_rewards_have_another_shape_fails_alone(self, wrong, make):
        env_fns = [playing(spaces.Discrete(1), [0], rewards=[reward])[0] for reward in ([1, 2], wrong)]
        with make(env_fns) as venv:
            venv.reset()
            with pytest.raises(
                EnvContractError, match=r"env 1: step\(\) returned a reward of shape .*expected \(2,\)"
            ) as caught:
                venv.step([0, 0])
            assert caught.value.env_id == 1
            assert caught.value.partial.rew.tolist() == [[1, 2]]
            assert venv.failed_id == [1]

    @pytest.mark.parametrize("make", [DummyVectorEnv, NEAR_ON_RAY, *WITH_TWO_WORKERS], ids=lambda make: make.__name__)
    @pytest.mark.parametrize(
        "rewards", [(5.0, [1, 2]), (0.0, [1, 2]), ([1, 2], 5.0), ([1, 2], 0.0), ([1, 2], [1, 2, 3])], ids=str
    )
    def test_the_first_step_decides_the_shape_of_rewards_also_for_envs_of_other_workers(self, make, rewards):
        env_fns = [playing(spaces.Box(0, 1, (2,)), [np.zeros(2, np.float32)], rewards=[r])[0] for r in rewards]
        with make(env_fns) as venv:
            venv.reset()
            assert equal_bits(venv.step([0], [0])[1], np.array([rewards[0]], float))
            for _ in range(2):  # an env that failed decides nothing
                with pytest.raises(EnvContractError, match=r"env 1: step\(\) returned a reward of shape"):
                    venv.step([0], [1])
                venv.reset(1)
            with pytest.raises(EnvContractError, match="env 1") as caught:
                venv.step([0, 0])
            assert equal_bits(caught.value.partial.rew, np.array([rewards[0]], float))

    def test_rewards_of_envs_that_are_reset_beside_vectors_are_zeros(self):
        with DummyVectorEnv(playing(spaces.Discrete(1), [0], [0], rewards=[[1, 2]])) as venv:
            venv.reset()
            assert venv.step([0, 0], reset=[0])[1].tolist() == [[0, 0], [1, 2]]
            assert venv.step([0, 0], reset=[0, 1])[1].tolist() == [[0, 0], [0, 0]]

    @pytest.mark.parametrize("rewards", [[[1, 2], -7.0], [1.0, [1, 2]], [1.0, 2.0, [3.0, 4.0]], [[1, 2], [1, 2, 3]]])
    def test_an_env_does_not_change_the_shape_of_its_rewards(self, rewards):
        script, rewards = [np.zeros(2, np.float32)], [rewards[-1], *rewards[:-1]]
        with DummyVectorEnv(playing(spaces.Box(0, 1, (2,)), script, rewards=rewards)) as venv:
            venv.reset()
            for _ in rewards[1:]:
                venv.step([0])
            with pytest.raises(EnvContractError, match=r"env 0: step\(\) returned a reward of shape .*, expected"):
                venv.step([0])


F1 = [
    # given value, space, received value or text of the error
    (np.array([300, 1]), spaces.Box(0, 255, (2,), np.uint8), "with values in [1, 300], the space has uint8 (2,)"),
    (np.array([2.7, 1]), spaces.Box(0, 9, (2,), np.int64), "(2,) with values in [1.0, 2.7], the space has int64"),
    (np.ones(1), spaces.Box(0, 9, (3,)), "is float64 (1,) with values in [1.0, 1.0], the space has float32 (3,)"),
    (None, spaces.Box(0, 9, (3,)), "is object (), the space has float32 (3,)"),
    (np.zeros(2, np.complex64), spaces.Box(0, 9, (2,), np.int64), "is complex64 (2,), the space has int64 (2,)"),
    ([[1, 2], [3]], spaces.Box(0, 9, (2, 2)), "is ragged, the space has float32 (2, 2)"),
    (2.5, spaces.Discrete(5), "is float64 () with values in [2.5, 2.5], the space has int64 ()"),
    (2**70, spaces.Discrete(5), "the space has int64 ()"),
    (np.array([1e300, 1]), spaces.Box(0, 9, (2,)), "with values in [1.0, 1e+300], the space has float32 (2,)"),
    (70000, spaces.Box(0, 9, (), np.float16), "is int64 () with values in [70000, 70000], the space has float16 ()"),
    (np.array([np.inf, -np.inf, np.nan, 1e-300, 0.1]), spaces.Box(0, 9, (5,)),
     np.array([np.inf, -np.inf, np.nan, 0, 0.1], np.float32)),
    (np.array([3.0, 2.0]), spaces.Box(0, 9, (2,), np.int64), np.array([3, 2])),
    (np.array([True, False]), spaces.Box(0, 9, (2,), np.uint8), np.array([1, 0], np.uint8)),
    ([1, 2], spaces.Box(0, 9, (2,), np.uint8), np.array([1, 2], np.uint8)),
    (np.array([3]), spaces.Discrete(5), np.array(3)),
    (3, spaces.Box(0, 9, (1,), np.int64), np.array([3])),
]  # fmt: skip


LISTS = spaces.Tuple(
    [
        spaces.Box(0, 9, (2,)),
        spaces.Dict(x=spaces.Tuple([spaces.Discrete(5), spaces.Text(3)])),
        spaces.Tuple([spaces.Discrete(5)] * 2),
    ]
)
"""vmas 1.5.2 returns a list of arrays for a Tuple space. `Tuple.contains` of gymnasium also takes arrays."""


def as_lists(obs):
    first, second, third = obs
    return [first, {"x": list(second["x"])}, np.array(third)]


@pytest.mark.guarantee("G3.4")
@pytest.mark.parametrize("make", [DummyVectorEnv, *WITH_TWO_WORKERS])
def test_lists_are_elements_of_tuple_spaces(make):
    tuples = samples(LISTS, 8)
    assert all(as_lists(obs) in LISTS for obs in tuples)
    given = [[as_lists(obs) for obs in script] for script in (tuples[:4], tuples[4:])]
    for rows, want in zip(seen(LISTS, *given, make=make), seen(LISTS, tuples[:4], tuples[4:]), strict=True):
        assert data_equivalence(rows, want, exact=True)


@pytest.mark.guarantee("G3.3")
class TestValuesThatDoNotFit:
    @pytest.mark.parametrize(("given", "space", "want"), F1, ids=lambda value: repr(value)[:40])
    def test_they_are_cast_if_nothing_is_lost_else_an_error(self, given, space, want):
        nested = spaces.Dict({"x": spaces.Tuple([space])})
        with DummyVectorEnv(playing(nested, [{"x": (space.sample(),)}, {"x": (given,)}])) as venv:
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
            ({"a": 1, "b": [1, 2]}, r"env 1: obs\['b'\] is a list of 2, expected a tuple of 1"),
            ({"a": 1, "b": np.array(1)}, r"env 1: obs\['b'\] is a ndarray, expected a tuple of 1"),
            ({"a": 1, "b": (1, 2)}, r"env 1: obs\['b'\] is a tuple of 2, expected a tuple of 1"),
        ],
    )
    def test_other_keys_or_lengths_are_errors(self, given, text):
        space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Discrete(3)])})
        fine = {"a": 0, "b": (0,)}
        with DummyVectorEnv(playing(space, [fine], [fine, given])) as venv:
            venv.reset()
            with pytest.raises(ObservationError, match=text) as caught:
                venv.step([0, 0])
            assert caught.value.partial.env_id.tolist() == [0]

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"a]": ((0,), 1, 2)}, r"obs['a]'] is a tuple of 3"),
            ({"b": 1}, "obs has the wrong keys"),
            (3, "obs is a int"),
        ],
    )
    def test_an_error_names_the_part_also_where_its_first_part_is_nested(self, given, text):
        space = spaces.Dict({"a]": spaces.Tuple([spaces.Tuple([spaces.Discrete(3)]), spaces.Discrete(3)])})
        with DummyVectorEnv(playing(space, [given])) as venv, pytest.raises(ObservationError) as caught:
            venv.reset()
        assert str(caught.value).startswith(f"env 0: {text}")
