"""Infos of the envs as a dict of arrays with masks."""

import gymnasium as gym
import numpy as np
import pytest

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


def batched(rows, n=3):
    """Return the infos of a step of `n` envs, of which some return an info: pairs (env id, info)."""
    infos = dict(rows)
    envs = SyncVectorEnv([lambda i=i: Reports(infos.get(i, {})) for i in range(n)])
    envs.reset()
    return envs.step([0] * n)[-1]


def of_x(values, n=3):
    """Return the infos of envs in which the first envs have these values of x."""
    return batched(enumerate({"x": value} for value in values), n)


@pytest.mark.parametrize("info", LIKE, ids=str)
def test_infos_of_one_kind_are_batched_as_by_gymnasium(info):
    theirs = gym.vector.VectorEnv()
    theirs.num_envs = 3
    for ids in ([0, 1, 2], [1], [0, 2]):
        expected = {}
        for i in ids:
            expected = theirs._add_info(expected, info, i)
        ours = batched([(i, info) for i in ids])
        assert_same(ours, expected)
        assert list(ours) == list(expected)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 2.7], float, [1.0, 2.7, 0.0]),
        ([True, 7], int, [1, 7, 0]),
        ([False, 2.5], float, [0.0, 2.5, 0.0]),
        ([np.float32(0.5), 0.1], float, [0.5, 0.1, 0.0]),
        ([np.int8(3), 300], int, [3, 300, 0]),
        ([2**70, 1], object, [2**70, 1, None]),
        ([2**53 + 1, 0.5], object, [2**53 + 1, 0.5, None]),
        ([np.uint64(2**63), np.int64(-1)], float, [2.0**63, -1.0, 0.0]),
        ([1, "text"], object, [1, "text", None]),
        ([1, None], object, [1, None, None]),
        ([{"a": 1}, 3], object, [{"a": 1}, 3, None]),
        ([3, {"a": 1}], object, [3, {"a": 1}, None]),
        ([1, [1, 2]], object, [1, [1, 2], None]),
        ([np.datetime64("2020"), 1], object, [np.datetime64("2020"), 1, None]),
    ],
    ids=str,
)
def test_values_that_differ_in_type_stay_what_they_are(values, dtype, expected):
    """gymnasium uses the type of the first env for all envs: 2.7 after 1 becomes 2, 7 after True becomes True."""
    infos = of_x(values)
    assert infos["x"].dtype == dtype
    assert infos["x"].tolist() == expected
    assert infos["_x"].tolist() == [True, True, False]


@pytest.mark.parametrize(
    "values",
    [
        [1, float("nan")],
        [np.ones(2, np.float32), np.array([0.5, np.nan])],
        [np.ones(2, int), np.full(2, 0.5)],
        [np.array("ab"), np.array("abcd")],
    ],
    ids=str,
)
def test_arrays_that_differ_in_dtype_or_shape_stay_what_they_are(values):
    np.testing.assert_array_equal(of_x(values, 2)["x"], values)
    for others in ([np.ones(2), np.ones(3)], [np.ones(3), np.ones(1)], [np.array([2**53 + 1]), np.array([0.5])]):
        column = of_x(others)["x"]
        assert column.dtype == object
        assert [column[i].tolist() for i in range(2)] == [value.tolist() for value in others]
        assert column[2] is None


def test_infos_of_a_vector_env_get_a_row_per_env():
    """A simulator may return a number for all envs, and a list."""
    envs = GymnasiumVectorEnv(from_gymnasium(Simulator(np, 2, more=True)), autoreset_mode="SameStep")
    envs.reset()
    infos = envs.step(np.zeros((2, 2), np.float32))[-1]
    assert (infos["size"].tolist(), infos["_size"].tolist()) == ([1.5, 1.5], [True, True])
    assert (infos["name"].tolist(), infos["_name"].tolist()) == (["env 0", "env 1"], [True, True])
