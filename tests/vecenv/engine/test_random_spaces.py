"""Random spaces: the caller gets each observation unchanged, or an ObservationError."""

import numpy as np
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import assert_rows, playing, samples
from vecenv import DummyVectorEnv, ObservationError
from vecenv.backends.host.row_writer import RowWriter
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.layout import common_layout, space_tree

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
dtypes = st.sampled_from(
    [np.bool_, np.uint8, np.int8, np.int32, np.int64, np.uint64, np.float16, np.float32, np.float64]
)
boxes = st.builds(lambda shape, dtype: spaces.Box(0, 1, shape, dtype), shapes, dtypes)
discretes = st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5))
binaries = st.builds(spaces.MultiBinary, st.integers(1, 4))
multis = st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=3))
texts = st.builds(spaces.Text, st.integers(1, 5))
sequences = st.builds(lambda: spaces.Sequence(spaces.Discrete(3)))
trees = st.recursive(
    st.one_of(boxes, discretes, binaries, multis, texts, sequences),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(spaces.Dict),
        st.lists(inner, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(trees, st.integers(0, 99))
def test_round_trips(space, seed):
    scripts = [samples(space, 3, seed + i) for i in range(3)]
    with DummyVectorEnv(playing(space, *scripts)) as venv:
        assert_rows(venv.reset()[0], [script[0] for script in scripts], space)
        assert_rows(venv.step([0, 0], [2, 0])[0], [scripts[2][1], scripts[0][1]], space)
        assert_rows(venv.step([0] * 3)[0], [scripts[0][2], scripts[1][1], scripts[2][2]], space)


arrays = st.one_of(
    st.builds(lambda shape, dtype: np.ones(shape, dtype), shapes, dtypes),
    st.builds(
        lambda shape, value: np.full(shape, value), shapes, st.sampled_from([300, -1, 0.5, np.nan, 2**40, 1e300])
    ),
    st.sampled_from([None, "x", 1, 2.5, True, [1, 2], [[1], [2, 3]], {}, 2**80, 1j]),
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(boxes, arrays)
def test_any_value_arrives_unchanged_or_is_an_observation_error(space, value):
    """Without a process. Only the env's row may be written."""
    layout = common_layout([space], [None])
    arena = Arena.build(layout, 3)
    writer = RowWriter(layout, [space], arena.block(1, 2), keep=None)
    assert space_tree(space, "obs") == layout.obs
    try:
        extra = writer.write_reset(0, (value, {}))
    except ObservationError:
        extra = None
    else:
        given_array = np.asarray(value).reshape(space.shape)
        with np.errstate(over="ignore"):
            assert np.array_equal(arena.obs[1], given_array.astype(space.dtype), equal_nan=space.dtype.kind == "f")
        if space.dtype.kind in "biu":
            assert np.array_equal(arena.obs[1], given_array)
    assert extra is None
    assert not arena.obs[[0, 2]].any()
    assert arena.status.tolist() == [opcodes.IDLE] * 3
