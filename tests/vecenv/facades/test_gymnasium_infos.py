"""Infos of the envs as a dict of arrays with masks."""

from functools import partial
from itertools import permutations

import gymnasium as gym
import numpy as np

from tests.support.gymnasium_cases import Reports, assert_same
from tests.support.simulators import Simulator
from vecenv import GymnasiumVectorEnv, SyncVectorEnv, from_gymnasium

LIKE = [
    {"a": 1},
    {"a": 1.5, "b": True},
    {"a": np.float32(2), "b": np.int8(3), "c": np.bool_(True)},
    {"a": np.arange(3), "b": np.zeros((2, 2), np.uint8), "c": np.array("text")},
    {
        "a": np.array([(1, 2.5), (3, 4.5)], [("x", int), ("y", float)]),
        "b": np.array((1, 2.5), [("x", int), ("y", float)]),
    },
    {"a": np.arange(3, dtype=">i4"), "b": np.array([[1, "text"]], object), "c": np.array(["2020"], "datetime64[Y]")},
    {"a": "text", "b": None, "c": [1, 2], "d": (1,), "e": object},
    {"a": {"b": {"c": 1}, "d": "text"}, "e": {}},
    {"final_obs": np.zeros(3), "final_info": {"final_obs": 3}},
    {1: 2, ("x",): 3},
    {},
]


def both_step(*infos):
    """Return the vector env of gymnasium and ours, in which env i returns the infos of the i-th list in turn."""
    env_fns = [partial(Reports, *own, length=9999) for own in infos]
    made = gym.vector.SyncVectorEnv(env_fns), SyncVectorEnv(env_fns)
    for envs in made:
        envs.reset()
    return made


def test_infos_of_one_kind_are_batched_as_by_gymnasium():
    steps = [(info, ids) for info in LIKE for ids in ([0, 1, 2], [1], [0, 2])]
    made = both_step(*([info if i in ids else {} for info, ids in steps] for i in range(3)))
    for step in steps:
        expected, infos = (envs.step([0] * 3)[-1] for envs in made)
        assert_same(infos, expected, step)
        assert list(infos) == list(expected)


NUMBERS = [1, 2.7, True, 2**53 + 1, 2**70, float("nan"), np.float32(0.5), np.int8(3), np.uint64(2**63), np.int64(-1)]
ARRAYS = [np.ones(2), np.ones(3), np.array([0.5, np.nan]), np.ones(2, np.float32), np.ones(2, int)]
ARRAYS += [np.array([2**53 + 1]), np.array([0.5]), np.array("ab"), np.array("abcd")]
VALUES = [*NUMBERS, *ARRAYS, "text", None, [1, 2], {"a": 1}, np.datetime64("2020")]


def unchanged(stored, value):
    """Compare numbers as numbers of Python, because numpy compares integers and floats as floats."""
    if isinstance(value, np.ndarray):
        return np.array_equal(np.asarray(stored).astype(value.dtype), value, equal_nan=value.dtype.kind == "f")
    stored, value = (number.item() if isinstance(number, np.generic) else number for number in (stored, value))
    return stored == value or (stored != stored and value != value)


def common_dtype(*values):
    """Return the dtype that holds numbers, or arrays of one shape, unchanged. Without such a dtype, return object."""
    try:
        column = np.array(values, np.result_type(*(getattr(value, "dtype", type(value)) for value in values)))
    except OverflowError:
        return object
    return column.dtype if all(map(unchanged, column, values)) else object


def test_values_that_differ_in_type_or_shape_stay_what_they_are():
    """gymnasium uses the type of the first env for all envs: 2.7 after 1 becomes 2, 7 after True becomes True."""
    pairs = list(permutations(VALUES, 2))
    alike = {*permutations(map(id, NUMBERS), 2), *permutations(map(id, ARRAYS), 2)}
    _, envs = both_step([{"x": one} for one, _ in pairs], [{"x": other} for _, other in pairs], [])
    for pair in pairs:
        infos = envs.step([0] * 3)[-1]
        column = infos["x"]
        assert infos["_x"].tolist() == [True, True, False]
        assert all(map(unchanged, column, pair)), pair
        if tuple(map(id, pair)) in alike and np.shape(pair[0]) == np.shape(pair[1]):
            assert column.dtype == common_dtype(*pair), pair
        if column.dtype == object:
            assert column[2] is None


def test_infos_of_a_vector_env_get_a_row_per_env():
    """A simulator may return a number for all envs, and a list."""
    envs = GymnasiumVectorEnv(from_gymnasium(Simulator(np, 2, more=True)), autoreset_mode="SameStep")
    envs.reset()
    infos = envs.step(np.zeros((2, 2), np.float32))[-1]
    assert (infos["size"].tolist(), infos["_size"].tolist()) == ([1.5, 1.5], [True, True])
    assert (infos["name"].tolist(), infos["_name"].tolist()) == (["env 0", "env 1"], [True, True])
