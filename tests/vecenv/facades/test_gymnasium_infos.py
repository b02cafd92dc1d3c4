"""Infos of the envs as a dict of arrays with masks."""

import gymnasium as gym
import numpy as np
import pytest

from tests.support.backends import FULL
from tests.support.gymnasium_cases import OURS, Reports, assert_same
from vecenv import DummyVectorEnv, GymnasiumVectorEnv, SyncVectorEnv, VectorEnvWrapper
from vecenv.facades.vector_infos import vector_infos


class Original(gym.vector.VectorEnv):
    """Batch infos with gymnasium's method."""

    def __init__(self, n):
        self.num_envs = n

    def batch(self, rows):
        infos = {}
        for i, info in rows:
            infos = self._add_info(infos, info, i)
        return infos


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


def of_x(values, n=3):
    """Return the infos of envs in which the first envs have these values of x."""
    return vector_infos(enumerate({"x": value} for value in values), n)


@pytest.mark.parametrize("info", LIKE, ids=str)
def test_infos_of_one_kind_are_batched_as_by_gymnasium(info):
    for ids in ([0, 1, 2], [1], [0, 2]):
        rows = [(i, info) for i in ids]
        expected = Original(3).batch(rows)
        assert_same(vector_infos(rows, 3), expected)
        assert list(vector_infos(rows, 3)) == list(expected)


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


def test_arrays_that_differ_in_dtype_or_shape_stay_what_they_are():
    np.testing.assert_array_equal(of_x([1, float("nan")], 2)["x"], [1.0, np.nan])
    of_arrays = of_x([np.ones(2, np.float32), np.array([0.5, np.nan])], 2)
    np.testing.assert_array_equal(of_arrays["x"], [[1, 1], [0.5, np.nan]])
    infos = of_x([np.ones(2, int), np.full(2, 0.5)], 2)
    assert infos["x"].tolist() == [[1, 1], [0.5, 0.5]]
    infos = of_x([np.array("ab"), np.array("abcd")], 2)
    assert infos["x"].tolist() == ["ab", "abcd"]
    for values in ([np.ones(2), np.ones(3)], [np.ones(3), np.ones(1)], [np.array([2**53 + 1]), np.array([0.5])]):
        infos = of_x(values)
        assert infos["x"].dtype == object
        assert [infos["x"][i].tolist() for i in range(2)] == [value.tolist() for value in values]
        assert infos["x"][2] is None


class Named(Reports):
    """Env whose infos have keys that the engine uses too."""

    def __init__(self, name, length, **more):
        super().__init__({"env_id": name, **more}, {}, length=length)
        self.name = name

    def reset(self, **kwargs):
        obs, _ = super().reset(**kwargs)
        return obs, {"env_id": self.name}


class Raises(Reports):
    """Env that raises in its third step."""

    def step(self, action):
        if self.t == 2:
            raise ValueError("boom")
        return super().step(action)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("kind", ["sync", "wrapped", pytest.param("async", marks=FULL)])
def test_an_env_id_of_the_envs_own_is_kept(kind, mode):
    """In step, in reset and in last infos, because the engine adds these keys to its infos."""
    env_fns = [lambda: Named(7, 3), Reports, lambda: Named(1, 4)]

    def wrapped(env_fns, **options):
        return GymnasiumVectorEnv(VectorEnvWrapper(DummyVectorEnv(env_fns)), **options)

    ours = {**OURS, "wrapped": wrapped}[kind](env_fns, autoreset_mode=mode)
    theirs = gym.vector.SyncVectorEnv(env_fns, autoreset_mode=mode)
    assert_same(ours.reset(), theirs.reset())
    for _ in range(8):
        assert_same(ours.step([0, 0, 0])[-1], theirs.step([0, 0, 0])[-1])
    mask = np.array([True, True, False])
    got, want = (envs.reset(options={"reset_mask": mask})[1] for envs in (ours, theirs))
    assert_same(got, want)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("options", [{}, {"seed_episodes": True}], ids=str)
@pytest.mark.parametrize("kind", ["sync", pytest.param("async", marks=FULL)])
def test_keys_of_an_env_are_not_taken_for_those_of_its_last_step(kind, options):
    envs = OURS[kind]([lambda: Named("a", 3, final_obs=1, final_info=2), Reports], autoreset_mode="SameStep", **options)
    envs.reset()
    infos = [envs.step([0, 0])[-1] for _ in range(3)]
    assert [infos[0][key].tolist() for key in ("env_id", "final_obs")] == [["a", None], [1, None]]
    assert infos[1] == {}
    assert infos[2]["final_obs"][0].tolist() == [3, 3]
    assert [infos[2]["final_info"][key].tolist() for key in ("env_id", "final_info")] == [["a", None], [2, 0]]
    assert infos[2]["env_id"].tolist() == ["a", None]
    envs.close()


def test_nor_is_an_episode_taken_for_begun_when_another_env_fails():
    envs = SyncVectorEnv([lambda: Named("a", 3, final_obs=1), Raises])
    envs.reset()
    for _ in range(2):
        envs.step([0, 0])
    with pytest.raises(ValueError, match="boom"):
        envs.step([0, 0])
    envs.reset(options={"reset_mask": np.array([False, True])})
    obs, rewards, *_ = envs.step([0, 0])
    assert (obs[:, 0].tolist(), rewards.tolist()) == ([0, 1], [0.0, 1.0])
