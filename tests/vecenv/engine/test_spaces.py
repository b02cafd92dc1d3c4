"""Observations and rewards of each kind. All spaces together run on all backends; misfits run on DummyVectorEnv."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.envs import assert_same, objects, stacked
from tests.support.cases import (
    NEAR_ON_RAY,
    WITH_TWO_WORKERS,
    Plays,
    custom,
    equal_bits,
    playing,
    samples,
)
from vecenv import DummyVectorEnv, EnvContractError, ObservationError, ShmemVectorEnv, SubprocVectorEnv

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
OBJECTS = [
    spaces.Text(8),
    spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
    spaces.Sequence(spaces.Box(0, 1, (2,))),
    spaces.Sequence(spaces.Discrete(5), stack=True),
    spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
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
            rows = [scripts[i][turn] for i in ids or range(3)]
            want = {
                "arrays": stacked(ALL_KINDS["arrays"], [row["arrays"] for row in rows]),
                "objects": {key: objects([row["objects"][key] for row in rows]) for key in rows[0]["objects"]},
                "empty": ({}, ()),
            }
            assert_same(obs, want, f"round {turn}")


def test_bits_views_and_orders_of_memory_are_kept():
    """NaNs with payloads, infinities, minus zero; and arrays that are not contiguous."""
    floats = np.array([0x7FC00001, 0xFFC12345, 0x7F800000, 0x80000000, 1], np.uint32).view(np.float32)
    assert equal_bits(seen(spaces.Box(-np.inf, np.inf, (5,)), [floats], steps=0)[0][0], floats)
    base = np.arange(12).reshape(3, 4)
    odd = [np.asfortranarray(base), np.arange(24).reshape(3, 8)[:, ::2], base[::-1], base.astype(">i8")]
    for obs, given_array in zip(seen(spaces.Box(-100, 100, (3, 4), np.int64), odd, steps=3), odd, strict=True):
        assert equal_bits(obs[0], np.array(given_array, np.int64))


@pytest.mark.parametrize("make", [SubprocVectorEnv, ShmemVectorEnv])
def test_observations_infos_and_actions_that_exceed_the_buffer_of_a_socket(make):
    """Both ends send at the same time, and neither waits for the other."""
    space = spaces.Box(0, 255, (2000, 1500), np.uint8)
    image = np.random.default_rng(0).integers(0, 256, space.shape, np.uint8)

    class Echoes(Plays):
        def step(self, action):
            return *super().step(action)[:4], {"action": action, "text": "x" * 10**6}

    texts = spaces.Text(10**7)
    env_fns = [lambda k=k: Echoes(space, [image, k + image], action_space=texts) for k in (1, 2)]
    with make(env_fns, num_workers=2) as venv:
        venv.reset()
        for action in ("a" * 3_000_000, "b" * 3_000_000):
            obs, *_, info = venv.step([action] * 2)
            assert [row["action"] == action for row in info] == [True] * 2
        assert np.array_equal(venv.step(["", ""])[0], [image + 1, image + 2])
        assert np.array_equal(obs, [image, image])


@pytest.mark.parametrize("backend", [DummyVectorEnv, ShmemVectorEnv])
def test_graphs_are_of_their_own_env(backend):
    """Envs of a worker may fill a common array, and a graph is a named tuple."""
    nodes = np.zeros((1, 1), np.float32)

    class Fills(Plays):
        def _next(self):
            nodes[...] = super()._next()
            return spaces.GraphInstance(nodes, None, None)

    graphs = spaces.Graph(spaces.Box(0, 9, (1,)), None)
    with backend([lambda k=k: Fills(graphs, [k, k + 4]) for k in range(3)], num_workers=1) as venv:
        batches = venv.reset()[0], venv.step([0] * 3)[0]
    assert all(type(graph) is spaces.GraphInstance for batch in batches for graph in batch)
    assert [[graph.nodes.item() for graph in batch] for batch in batches] == [[0, 1, 2], [4, 5, 6]]


def test_only_the_parts_in_which_envs_differ_are_objects():
    def space(k):
        return spaces.Dict({"same": spaces.Discrete(4), "other": spaces.Box(0, 9, (k,), np.int64)})

    own = np.arange(2)
    scripts = {1: [{"same": 1, "other": [0]}], 2: [{"same": 2, "other": own}]}
    with DummyVectorEnv([lambda k=k: Plays(space(k), scripts[k]) for k in (1, 2)]) as venv:
        assert venv.observation_space == [space(1), space(2)]
        for ids, ks in ((None, [1, 2]), ([0], [1]), ([1], [2])):
            obs, _ = venv.reset(ids)
            own[:] = 5  # the env's later writes must not show
            assert equal_bits(obs["same"], np.array(ks))
            assert obs["other"].dtype == object
            assert all(equal_bits(row, np.arange(k)) for row, k in zip(obs["other"], ks, strict=True))
            own[:] = np.arange(2)


@pytest.mark.guarantee("G3.6")
def test_rewards_are_float64_numbers_or_vectors():
    """Random programs draw other types."""
    for rewards, want in (
        ([True, np.array(3.0), np.array([4.0])], [1, 3, 4]),
        ([[1, 2, 3], np.array([0.5, 0, 1]), (4, 5, 6)], [[1, 2, 3], [0.5, 0, 1], [4, 5, 6]]),
    ):
        with DummyVectorEnv(playing(spaces.Discrete(1), [0], rewards=[rewards[-1], *rewards[:-1]])) as venv:
            venv.reset()
            for one in want:
                assert equal_bits(venv.step([0])[1], np.array([one], float))


@pytest.mark.parametrize("rewards", [(0.0, [1, 2]), ([1, 2], 0.0), ([1, 2], [1, 2, 3])], ids=str)
def test_the_first_step_decides_the_shape_of_rewards(rewards):
    """Random programs show it for envs of several workers, and without zeros."""
    with DummyVectorEnv([playing(spaces.Discrete(1), [0], rewards=[r])[0] for r in rewards]) as venv:
        venv.reset()
        assert equal_bits(venv.step([0], [0])[1], np.array([rewards[0]], float))
        with pytest.raises(EnvContractError, match=r"env 1: step\(\) returned a reward of shape") as caught:
            venv.step([0, 0])
        assert equal_bits(caught.value.partial.rew, np.array([rewards[0]], float))


def test_rewards_of_envs_that_are_reset_beside_vectors_are_zeros():
    with DummyVectorEnv(playing(spaces.Discrete(1), [0], [0], rewards=[[1, 2]])) as venv:
        venv.reset()
        assert venv.step([0, 0], reset=[0])[1].tolist() == [[0, 0], [1, 2]]
        assert venv.step([0, 0], reset=[0, 1])[1].tolist() == [[0, 0], [0, 0]]


LISTS = spaces.Tuple(
    [
        spaces.Box(0, 9, (2,)),
        spaces.Dict(x=spaces.Tuple([spaces.Discrete(5), spaces.Text(3)])),
        spaces.Tuple([spaces.Discrete(5)] * 2),
    ]
)
"""vmas 1.5.2 returns a list of arrays for a Tuple space. `Tuple.contains` of gymnasium also takes arrays."""


@pytest.mark.guarantee("G3.4")
@pytest.mark.parametrize("make", [DummyVectorEnv, ShmemVectorEnv])
def test_lists_are_elements_of_tuple_spaces(make):
    tuples = samples(LISTS, 8)
    lists = [[first, {"x": list(second["x"])}, np.array(third)] for first, second, third in tuples]
    assert all(obs in LISTS for obs in lists)
    rows, want = seen(LISTS, lists[:4], lists[4:], make=make), seen(LISTS, tuples[:4], tuples[4:])
    assert data_equivalence(rows, want, exact=True)


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
dtypes = st.sampled_from(
    [np.bool_, np.uint8, np.int8, np.int32, np.int64, np.uint64, np.float16, np.float32, np.float64]
)
boxes = st.builds(lambda shape, dtype: spaces.Box(0, 1, shape, dtype), shapes, dtypes)
values = st.one_of(
    st.builds(lambda shape, dtype: np.ones(shape, dtype), shapes, dtypes),
    st.builds(
        lambda shape, value: np.full(shape, value), shapes, st.sampled_from([300, -1, 0.5, np.nan, 2**40, 1e300])
    ),
    st.sampled_from([None, "x", 1, 2.5, True, [1, 2], [[1], [2, 3]], {}, 2**80, 1j]),
)


@pytest.mark.guarantee("G3.3")
@settings(max_examples=100, deadline=None, derandomize=True)
@given(boxes, values)
def test_any_value_arrives_unchanged_or_is_an_observation_error(box, value):
    fine = np.zeros(box.shape, box.dtype)
    with DummyVectorEnv(playing(box, [fine], [fine, value])) as venv:
        venv.reset()
        try:
            obs, *_ = venv.step([0, 0])
        except ObservationError as error:
            obs = np.concatenate([error.partial.obs, [fine]])
        else:
            with np.errstate(over="ignore"):
                want = np.asarray(value).reshape(box.shape)
                assert np.array_equal(obs[1], want.astype(box.dtype), equal_nan=box.dtype.kind == "f")
            assert box.dtype.kind not in "biu" or np.array_equal(obs[1], want)
    assert not obs[0].any()
