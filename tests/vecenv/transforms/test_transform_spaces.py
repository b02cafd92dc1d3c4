"""The spaces of transforms contain each observation, and only actions that the env accepts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import FULL
from tests.support.transform_envs import Samples
from tests.support.transform_forms import FORMS, Seen, assert_held, forms
from vecenv import transforms as tf

# Actions.


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


# Observations.


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
