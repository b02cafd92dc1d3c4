"""Transforms give the same rows, spaces and errors in a worker, around a vector env, and on tensors."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import TransformReward

from tests.support.backends import FULL
from tests.support.cases import counting, skip_unless_torch_indexes
from tests.support.compare import assert_same
from tests.support.transform_envs import VECTOR, Samples
from tests.support.transform_forms import FORMS, N, Seen, around_the_batch, assert_held, forms, host, on_tensors
from vecenv import DummyVectorEnv, nest
from vecenv import transforms as tf
from vecenv.testing import RaisesOnStep
from vecenv.transforms import TransformedEnv

# Actions.


@forms
def test_actions_of_another_shape_are_refused_before_a_transform_sees_them(form: Any) -> None:
    def box(n: int) -> Any:
        return spaces.Box(-2, 6, (n,), np.float32)

    with form([partial(Seen, action_space=box(3))] * N, tf.ActionScaling) as venv:
        venv.reset(seed=0)
        for batch in (np.zeros((N, 1), np.float32), np.zeros(N, np.float32), np.zeros((N, 2, 3))):
            for action in (batch, torch.from_numpy(batch), list(batch)):
                with pytest.raises(ValueError, match=r"has the shape .*, expected \((4, )?3,?\)"):
                    venv.step(action)
        venv.step(np.zeros((N, 3), np.float32))  # the refused calls changed nothing
    with form([partial(Seen, action_space=box(1))] * N, tf.ActionScaling) as venv:
        venv.reset(seed=0)
        for action in (np.zeros(N), [0.0] * N, torch.zeros(N)):  # (n,) is (n, 1)
            assert [row["action"].tolist() for row in venv.step(action)[-1]] == [[2.0]] * N
    cast = partial(tf.DTypeCast, "float32", "float64", in_keys_inv=["action"])
    parts = spaces.Dict({"a": box(3), "b": spaces.Discrete(3)})
    with form([partial(Seen, action_space=parts)] * 2, cast) as venv:
        venv.reset(seed=0)
        for wrong in ({"a": np.zeros((2, 1)), "b": np.zeros(2, int)}, {"a": np.zeros((2, 3)), "b": np.zeros((2, 2))}):
            with pytest.raises(ValueError, match="shape"):
                venv.step(wrong)
        info = venv.step({"a": np.ones((2, 3)), "b": np.array([1, 2])})[-1]
        assert [row["action"]["b"] for row in info] == [1, 2]
        assert info[0]["action"]["a"].dtype == np.float32
    with form([partial(Seen, action_space=spaces.Tuple(parts.spaces.values()))] * 2, cast) as venv:
        venv.reset(seed=0)
        info = venv.step((np.ones((2, 3)), np.array([1, 2])))[-1]
        assert [row["action"][1] for row in info] == [1, 2]


def test_actions_outside_of_the_bounds_stay_outside() -> None:
    """As in TorchRL. Inside, they are gymnasium's (test_transforms_golden.py)."""
    box = spaces.Box(np.array([-2, 0], np.float32), np.array([6, 1], np.float32))
    env = TransformedEnv(Seen(action_space=box), tf.ActionScaling())
    env.reset(seed=0)
    np.testing.assert_allclose(env.step(np.array([3, -3], np.float32))[-1]["action"], [14, -1], rtol=1e-6)


BOUNDS = [(0.1, 0.7), (-0.3, 1e-3), (-1e6, 1 / 3)]


@forms
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "make",
    [
        partial(tf.ActionScaling, -0.1, 0.7),
        lambda: tf.Compose(tf.ActionScaling(), tf.ActionScaling(-0.3, 0.3), tf.DoubleToFloat(in_keys_inv=["action"])),
    ],
    ids=["to other bounds", "all"],
)
def test_every_action_that_is_offered_is_one_of_the_env(form: Any, make: Any, dtype: str) -> None:
    most = float(np.finfo(dtype).max)
    ends = np.array([pair for pair in BOUNDS if max(map(abs, pair)) < most]).astype(dtype)
    box = spaces.Box(ends[:, 0], ends[:, 1], dtype=np.dtype(dtype).type)
    with form([partial(Seen, action_space=box)], make, check_actions=True) as venv:
        venv.reset(seed=0)
        offered = venv.action_space[0]
        offered.seed(0)
        for action in (offered.low, offered.high, *(offered.sample() for _ in range(20))):
            info = venv.step(action[None])[-1]
            assert box.contains(np.asarray(info[0]["action"], dtype)), action


# Rewards.


@forms
def test_a_reward_of_shape_1_is_a_number(form: Any) -> None:
    for make in (tf.RewardSum, tf.VecNorm):
        with (
            form([lambda: TransformReward(Samples(), lambda own: np.array([own], np.float32))], make) as venv,
            form([Samples], make) as reference,
        ):
            for each in (venv, reference):
                each.reset(seed=0)
            for _ in range(6):
                got, want = (host(each.step(np.ones((1, 2), np.float32))[:2]) for each in (venv, reference))
                assert got[1].shape == (1,)
                nest.merge(lambda pair: np.testing.assert_allclose(*pair, rtol=1e-6, atol=1e-6), [got, want])


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


PAIR = spaces.Dict({"x": VECTOR, "y": VECTOR})
CAT = partial(tf.CatTensors, [(0,), (2,)])
NAME, NAME_ALL = partial(tf.RenameTransform, [(0,)], ["a"]), partial(tf.RenameTransform, [(0,), (1,), (2,)], [*"abc"])
SHIFT = partial(tf.ObservationNorm, 1.0, 2.0)


@pytest.mark.parametrize(
    ("space", "make", "want"),
    [
        (TUPLE, CAT, lambda o: {"": (o[1],), "_vector": np.concatenate((o[0], o[2]), 1)}),
        (TUPLE, NAME, lambda o: {"": o[1:], "a": o[0]}),
        (TUPLE, partial(NAME, create_copy=True), lambda o: {"": o, "a": o[0]}),
        (TUPLE, NAME_ALL, lambda o: dict(zip("abc", o, strict=True))),
        (PAIR, partial(SHIFT, ["x", "y"], ["y", "z"]), lambda o: {**o, "y": o["x"] * 2 + 1, "z": o["y"] * 2 + 1}),
        (PAIR, partial(SHIFT, ["x", "y"], ["y", "x"]), lambda o: {"x": o["y"] * 2 + 1, "y": o["x"] * 2 + 1}),
        (VECTOR, partial(SHIFT, ["observation"] * 2, [*"ab"]), lambda o: {"": o, "a": o * 2 + 1, "b": o * 2 + 1}),
    ],
)
def test_parts_are_read_before_one_is_written_and_the_others_stay(space: Any, make: Any, want: Any) -> None:
    """Names that begin with `observation` are here without it."""
    fns = [partial(Samples, space)] * 2
    with around_the_batch(fns, make) as venv, DummyVectorEnv(fns) as raw:
        obs = host(venv.reset(seed=0)[0])
        assert_held(venv, obs)
        found = {key.removeprefix("observation"): part for key, part in obs.items()}
        np.testing.assert_equal(found, want(raw.reset(seed=0)[0]))


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


# Spaces that contain each observation.


class Ends(Samples):
    """Env whose observations are the finite bounds of its space, and numbers between the bounds."""

    def _obs(self) -> Any:
        space = self.observation_space
        info: Any = np.finfo(space.dtype) if space.dtype.kind == "f" else np.iinfo(space.dtype)
        low, high = space.low.clip(info.min, None), space.high.clip(None, info.max)
        picked = self.np_random.choice([0.0, 0.0, 0.3, 1.0, 1.0], space.shape if self.np_random.random() < 0.5 else ())
        between = (low.astype(np.longdouble) + picked * (high.astype(np.longdouble) - low)).astype(space.dtype)
        return np.where(picked == 0, low, np.where(picked == 1, high, between)).clip(low, high)


def assert_spaces_hold(box: spaces.Box, make: Any) -> None:
    """In each form, each observation is in the transformed space."""
    for form in FORMS[:3]:
        with np.errstate(all="ignore"), form([partial(Ends, box)] * 2, make) as venv:
            assert_held(venv, venv.reset(seed=0)[0])
            for _ in range(2):
                assert_held(venv, venv.step(np.zeros((2, 2), np.float32))[0])


IMAGES = [
    lambda: tf.Resize(3, 4),
    lambda: tf.Resize(9, 3),
    lambda: tf.Resize(9, 8, "bilinear"),
    tf.GrayScale,
    lambda: tf.GrayScale("709"),
    tf.ToTensorImage,
    lambda: tf.Compose(tf.ToTensorImage(), tf.Resize(4, 5, "bilinear"), tf.GrayScale(channels="first")),
    lambda: tf.CenterCrop(3),
]


@pytest.mark.parametrize("dtype", ["uint8", pytest.param("float16", marks=FULL)])
def test_images_are_in_their_space(dtype: str) -> None:
    info: Any = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    for make in IMAGES:
        for low, high in ((info.min / 8, info.max / 8), (0, info.max), (0, 1)):
            box = spaces.Box(low, high, (6, 5, 3), np.dtype(dtype).type)
            assert_spaces_hold(box, make)


@pytest.mark.parametrize("target", ["int64", "int8", "float16"])
@pytest.mark.parametrize("source", ["int64", "uint8", "float64"])
def test_a_cast_has_a_space_that_holds_its_results(source: str, target: str) -> None:
    info: Any = np.finfo(source) if source.startswith("float") else np.iinfo(source)
    unbounded = [(-np.inf, np.inf), (0, np.inf)] if source.startswith("float") else []
    for low, high in [(0, 1), (0, 200), (0, info.max), (info.min, info.max), (0, info.max // 3), *unbounded]:
        assert_spaces_hold(spaces.Box(low, high, (4,), np.dtype(source).type), partial(tf.DTypeCast, source, target))


# Tensors.


@pytest.mark.parametrize("dtype", ["uint16", "uint64", "float16", "bool"])
def test_tensors_of_every_dtype_are_transformed_as_arrays_are(dtype: str) -> None:
    """For example uint16, in which depth images come."""
    skip_unless_torch_indexes(dtype)
    limit, make = np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else 1, partial(tf.CatFrames, 2, -1)
    fns = [partial(Samples, spaces.Box(0, limit, (2, 3), np.dtype(dtype).type), 3)] * 2
    with on_tensors(fns, make) as venv, around_the_batch(fns, make) as reference:
        both = [[each.reset(seed=0)[0] for each in (venv, reference)]]
        for t in range(6):
            options = {"reset": [0, 1]} if t == 3 else {}
            both.append([each.step(np.zeros((2, 2), np.float32), **options)[0] for each in (venv, reference)])
    for got, want in both:
        assert host(got).dtype == want.dtype
        np.testing.assert_array_equal(host(got), want)


@pytest.mark.parametrize("first", [True, False])
def test_rounds_in_and_out_of_inference_mode_go_on_from_each_other(first: bool) -> None:
    def make() -> Any:
        parts = tf.VecNorm(["observation"]), tf.CatFrames(2, -1), tf.NormalizeReward(), tf.StepCounter()
        return tf.Compose(*parts, tf.ActionScaling())

    def played(modes: Any) -> Any:
        found = []
        with on_tensors([Samples] * 2, make) as venv:
            for t, mode in enumerate(modes):
                with torch.inference_mode(mode):
                    found.append(venv.reset(seed=0)[0] if t == 0 else venv.step(torch.ones(2, 2))[0])
            weights = torch.ones(2, 2, requires_grad=True)
            venv.venv.transform.inv(weights).sum().backward()
            return tuple(map(host, found))

    got, want = played([first, not first, first, not first]), played([False] * 4)
    nest.merge(lambda pair: np.testing.assert_array_equal(*pair), [got, want])


@forms
def test_a_caller_may_overwrite_the_observations_that_it_gets(form: Any) -> None:
    """Frames, counts and sums of later steps stay the same."""

    def played(overwrites: bool) -> Any:
        found = []
        with form([Samples] * 2, lambda: tf.Compose(tf.CatFrames(2, -1), tf.StepCounter(), tf.RewardSum())) as venv:
            for t in range(6):
                obs = venv.reset(seed=0)[0] if t in (0, 3) else venv.step(np.ones((2, 2), np.float32))[0]
                found.append(nest.map(np.copy, host(obs)))
                for leaf in nest.leaves(obs) if overwrites else ():
                    leaf[:] = 77
        return found

    assert_same(played(True), played(False))


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
