"""Transforms give the same rows and errors in a worker, around a vector env, and on tensors."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.support.backends import FULL
from tests.support.cases import counting, skip_unless_torch_indexes
from tests.support.transform_envs import VECTOR, Samples
from tests.support.transform_forms import N, Seen, around_the_batch, assert_held, forms, host, on_tensors
from vecenv import DummyVectorEnv, nest
from vecenv import transforms as tf
from vecenv.testing import RaisesOnStep
from vecenv.transforms import TransformedEnv

# Actions.


@forms
def test_actions_of_another_shape_are_refused_before_a_transform_sees_them(form: Any) -> None:
    box = spaces.Box(-2, 6, (3,), np.float32)
    with form([partial(Seen, action_space=box)] * N, tf.ActionScaling) as venv:
        venv.reset(seed=0)
        for batch in (np.zeros((N, 1), np.float32), np.zeros(N, np.float32), np.zeros((N, 2, 3))):
            for action in (batch, torch.from_numpy(batch), list(batch)):
                with pytest.raises(ValueError, match=r"has the shape .*, expected \((4, )?3,?\)"):
                    venv.step(action)
        venv.step(np.zeros((N, 3), np.float32))  # the refused calls changed nothing
    with form([partial(Seen, action_space=spaces.Box(-2, 6, (1,), np.float32))] * N, tf.ActionScaling) as venv:
        venv.reset(seed=0)
        for action in (np.zeros(N), np.zeros((N, 1)), [0.0] * N, torch.zeros(N)):  # (n,) is (n, 1)
            assert [row["action"].tolist() for row in venv.step(action)[-1]] == [[2.0]] * N


@forms
def test_the_parts_of_actions_are_checked_as_well(form: Any) -> None:
    space = spaces.Dict({"a": spaces.Box(-2, 6, (3,), np.float32), "b": spaces.Discrete(3)})
    cast = partial(tf.DTypeCast, "float32", "float64", in_keys_inv=["action"])
    with form([partial(Seen, action_space=space)] * 2, cast) as venv:
        venv.reset(seed=0)
        for wrong in ({"a": np.zeros((2, 1)), "b": np.zeros(2, int)}, {"a": np.zeros((2, 3)), "b": np.zeros((2, 2))}):
            with pytest.raises(ValueError, match="shape"):
                venv.step(wrong)
        info = venv.step({"a": np.ones((2, 3)), "b": np.array([1, 2])})[-1]
        assert [row["action"]["b"] for row in info] == [1, 2]
        assert info[0]["action"]["a"].dtype == np.float32


def test_actions_outside_of_the_bounds_stay_outside() -> None:
    """As in TorchRL. Inside, they are gymnasium's (test_transforms_golden.py)."""
    box = spaces.Box(np.array([-2, 0], np.float32), np.array([6, 1], np.float32))
    env = TransformedEnv(Seen(action_space=box), tf.ActionScaling())
    env.reset(seed=0)
    np.testing.assert_allclose(env.step(np.array([3, -3], np.float32))[-1]["action"], [14, -1], rtol=1e-6)


# Rewards.


class Pays(Samples):
    """Env with rewards of the shape (1,)."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward], np.float32), *rest


@forms
@pytest.mark.parametrize("make", [tf.RewardSum, tf.VecNorm])
def test_a_reward_of_shape_1_is_a_number(form: Any, make: Any) -> None:
    with form([Pays], make) as venv, around_the_batch([Pays], make) as reference:
        for each in (venv, reference):
            each.reset(seed=0)
        for _ in range(6):
            got, want = (each.step(np.ones((1, 2), np.float32)) for each in (venv, reference))
            assert got[1].shape == (1,)
            for one, other in ((host(got[1]), want[1]), (host(got[0]), want[0])):
                nest.merge(lambda pair: np.testing.assert_allclose(*pair, rtol=1e-6, atol=1e-6), [one, other])


def test_a_return_that_goes_on_while_frozen_is_the_one_of_the_episode() -> None:
    """Check against gymnasium's NormalizeReward, which sums rewards whether it updates or not."""

    def played(freezes: bool) -> Any:
        with around_the_batch([partial(Samples, length=50)], lambda: tf.NormalizeReward(gamma=1.0)) as venv:
            [transform] = venv.transform
            venv.reset(seed=0)
            for t in range(9):
                if freezes and t in (3, 6):
                    transform.frozen = t == 3
                venv.step(np.ones((1, 2), np.float32))
            return host(transform.episode_state(np.zeros(1, np.int64))), transform.state_dict()["count"]

    (whole, count), (frozen, fewer) = played(False), played(True)
    np.testing.assert_array_equal(frozen["kept"]["returns"], whole["kept"]["returns"])
    assert (count, fewer) == (9, 6)


# Observations.


TUPLE = spaces.Tuple((VECTOR, spaces.Discrete(3), spaces.Box(0, 1, (2,), np.float64)))


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: tf.CatTensors([(0,), (2,)]), {"observation": (1,), "observation_vector": (0, 2)}),
        (
            lambda: tf.CatTensors([(0,), (2,)], del_keys=False),
            {"observation": (0, 1, 2), "observation_vector": (0, 2)},
        ),
        (lambda: tf.RenameTransform([(0,)], ["a"]), {"observation": (1, 2), "a": 0}),
        (lambda: tf.RenameTransform([(0,)], ["a"], create_copy=True), {"observation": (0, 1, 2), "a": 0}),
        (lambda: tf.RenameTransform([(0,), (1,), (2,)], ["a", "b", "c"]), {"a": 0, "b": 1, "c": 2}),
    ],
)
def test_the_other_parts_of_a_tuple_stay(make: Any, parts: Any) -> None:
    fns = [partial(Samples, TUPLE)] * 2
    with around_the_batch(fns, make) as venv, DummyVectorEnv(fns) as raw:
        obs, own = host(venv.reset(seed=0)[0]), raw.reset(seed=0)[0]
        assert obs.keys() == venv.observation_space[0].spaces.keys() == parts.keys()
        for name, places in parts.items():
            want = own[places] if isinstance(places, int) else tuple(own[place] for place in places)
            if name == "observation_vector":
                want = np.concatenate(want, 1)
            nest.merge(lambda pair: np.testing.assert_array_equal(*pair), [obs[name], want])
        assert_held(venv, obs)


@pytest.mark.parametrize("make", [tf.StepCounter, tf.RewardSum, lambda: tf.CatFrames(2, -1, [(0,)], ["frames"])])
def test_an_entry_can_be_added_to_a_tuple(make: Any) -> None:
    with around_the_batch([partial(Samples, TUPLE)] * 2, make) as venv:
        obs, _ = venv.reset(seed=0)
        assert len(obs["observation"]) == 3
        assert_held(venv, obs)
        assert_held(venv, venv.step(np.zeros((2, 2), np.float32))[0])


def test_parts_are_read_before_one_is_written() -> None:
    space = spaces.Dict({"x": VECTOR, "y": VECTOR})
    fns = [partial(Samples, space)] * 2
    shifts = partial(tf.ObservationNorm, 1.0, 2.0)
    for sources, targets in ((["x", "y"], ["y", "z"]), (["x", "y"], ["y", "x"])):
        with around_the_batch(fns, partial(shifts, sources, targets)) as venv, DummyVectorEnv(fns) as raw:
            obs, own = host(venv.reset(seed=0)[0]), raw.reset(seed=0)[0]
            for source, target in zip(sources, targets, strict=True):
                np.testing.assert_array_equal(obs[target], own[source] * 2 + 1)
            assert_held(venv, obs)
    with around_the_batch([Samples] * 2, partial(shifts, ["observation"] * 2, ["a", "b"])) as venv:
        obs = host(venv.reset(seed=0)[0])
        np.testing.assert_array_equal(obs["a"], obs["b"])
        assert_held(venv, obs)


@pytest.mark.parametrize("make", [lambda: tf.ObservationNorm(1.0, 2.0), lambda: tf.UnsqueezeTransform(0)])
def test_an_attached_transform_that_is_called_on_other_data_works_on_for_its_env(make: Any) -> None:
    fns = [partial(Samples, spaces.Dict({"x": VECTOR, "y": VECTOR}))]
    other = {"deep": {"z": np.ones((2, 5), np.float32)}}
    with around_the_batch(fns, make) as venv, around_the_batch(fns, make) as reference:
        for each in (venv, reference):
            each.reset(seed=0)
        assert venv.transform[0](other)["deep"]["z"].tolist() == make()(other)["deep"]["z"].tolist()
        got, want = (each.step(np.zeros((1, 2), np.float32))[0] for each in (venv, reference))
        nest.merge(lambda pair: np.testing.assert_array_equal(*pair), [got, want])


# Tensors.


@pytest.mark.parametrize("make", [partial(tf.CatFrames, 2, -1), pytest.param(tf.RewardSum, marks=FULL)])
@pytest.mark.parametrize(
    "dtype", ["uint16", *(pytest.param(name, marks=FULL) for name in ("uint64", "float16", "bool"))]
)
def test_tensors_of_every_dtype_are_transformed_as_arrays_are(make: Any, dtype: str) -> None:
    """For example uint16, in which depth images come."""
    skip_unless_torch_indexes(dtype)
    limit = np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else 1
    fns = [partial(Samples, spaces.Box(0, limit, (2, 3), np.dtype(dtype).type), 3)] * 2
    actions = np.zeros((2, 2), np.float32)
    with on_tensors(fns, make) as venv, around_the_batch(fns, make) as reference:
        got, want = (each.reset(seed=0)[0] for each in (venv, reference))
        for t in range(6):
            for one, other in zip(nest.leaves(host(got)), nest.leaves(want), strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_allclose(one, other, rtol=1e-6)
            got, want = (each.step(actions, reset=[0, 1] if t == 3 else None)[0] for each in (venv, reference))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "make",
    [tf.VecNorm, lambda: tf.Compose(tf.CatFrames(2, -1), tf.NormalizeReward(), tf.StepCounter(), tf.ActionScaling())],
)
def test_rounds_in_and_out_of_inference_mode_go_on_from_each_other(make: Any, first: bool) -> None:
    def played(modes: Any) -> Any:
        found = []
        with on_tensors([Samples] * 2, make) as venv:
            for t, mode in enumerate(modes):
                with torch.inference_mode(mode):
                    found.append(venv.reset(seed=0) if t == 0 else venv.step(torch.ones(2, 2)))
            weights = torch.ones(2, 2, requires_grad=True)
            venv.venv.transform.inv(weights).sum().backward()
            return [[host(part) for part in each[:2]] for each in found]

    got, want = played([first, not first, first, not first]), played([False] * 4)
    for left, right in zip(got, want, strict=True):
        for one, other in zip(left[0:1], right[0:1], strict=True):
            nest.merge(lambda pair: np.testing.assert_array_equal(*pair), [one, other])


@pytest.mark.guarantee("G8.4")
@forms
def test_the_partial_of_an_error_makes_a_whole_batch(form: Any) -> None:
    fns = [*counting(1), partial(RaisesOnStep, 0, at=2), *counting(1)]
    with form(fns, lambda: tf.CatFrames(2, -1)) as venv:
        obs, _ = venv.reset()
        obs = venv.step(np.zeros(3, np.int64))[0]
        with pytest.raises(ValueError, match="boom in step") as caught:
            venv.step(np.array([7, 8, 9]))
        before = np.array(host(obs))
        merged, rew, terminated, truncated, info = caught.value.partial.merge_into(obs)
        assert type(merged) is type(obs)
        np.testing.assert_array_equal(host(merged)[1], before[1])
        np.testing.assert_array_equal(host(obs), before)
        assert host(merged).reshape(3, 2, 5)[[0, 2], 1, 4].tolist() == [7, 9]
        assert truncated.tolist() == [False, True, False]
        assert terminated.tolist() == [False] * 3
        assert rew.tolist()[1] == 0
        assert [row["env_id"] for row in info] == [0, 1, 2]
        done = terminated | truncated
        merged[done], info[host(done)] = venv.reset(done)
