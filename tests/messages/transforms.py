"""Messages of transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.messages.rows import NOTHING, rows_for
from tests.support.transform_envs import IMAGE, MIXED, VECTOR, Samples, plain
from vecenv import DummyVectorEnv, EnvContractError, ObservationError
from vecenv import transforms as tf

ONES = np.ones((1, 3, 3))
LONGS = np.zeros((1, 9, 7, 3), np.int64)
PAIR = spaces.Tuple((VECTOR, VECTOR))


def one(transform: Any, space: Any = VECTOR) -> tf.TransformedEnv:
    return tf.TransformedEnv(Samples(space), transform)


def around(*transforms: Any, space: Any = VECTOR, **options: Any) -> Callable[[Any], object]:
    """Return a call that puts transforms around two envs."""

    def call(_: Any) -> None:
        with DummyVectorEnv([plain(space, 3)] * 2, **options) as venv:
            tf.TransformedVectorEnv(venv, *transforms)

    return call


class Answers(Samples):
    """Env with other results: `changed` updates them, or the parts of a Dict observation."""

    def __init__(self, space: Any = VECTOR, **changed: Any) -> None:
        super().__init__(space)
        self.changed = changed

    def _obs(self) -> Any:
        obs = super()._obs()
        return {**obs, **self.changed} if isinstance(obs, dict) else obs

    def step(self, action: Any) -> Any:
        names = ("obs", "reward", "terminated", "truncated", "info")
        found = {**dict(zip(names, super().step(action), strict=True)), **self.changed}
        return tuple(found[name] for name in names)


def stepped(env: Any, transform: Any, action: Any = None) -> Callable[[Any], object]:
    def call(_: Any) -> None:
        made = tf.TransformedEnv(env() if callable(env) else env, transform)
        made.reset(seed=0)
        made.step(np.zeros(2, np.float32) if action is None else action)

    return call


def twice(_: Any) -> None:
    one([gray := tf.GrayScale(), gray], IMAGE)


def taken(_: Any) -> None:
    transform = tf.Resize(6)
    env = one(transform, IMAGE)
    env.append_transform(transform)


def loaded(keys: Any = None, attach: bool = False, **state: Any) -> Callable[[Any], object]:
    def call(_: Any) -> None:
        norm = tf.VecNorm(keys)
        if attach:
            env = one(norm)  # noqa: F841  # the transform belongs to the env while the env lives
        norm.load_state_dict(state)

    return call


def fits_another_env(_: Any) -> None:
    norm = tf.VecNorm(["x"])
    norm.load_state_dict({"x_mean": np.ones(4), "x_var": np.ones(4), "x_count": 7.0, "x_skipped": 0.0})
    one(norm, MIXED)


STATE = {
    f"{name}_{part}": np.zeros(shape if part in ("mean", "var") else ())
    for name, shape in (("observation", 5), ("reward", ()))
    for part in ("mean", "var", "count", "skipped")
}
NOT_FITTING = "the state does not fit VecNorm("
BELONGS = "belongs to an env already"
ROWS = rows_for(
    NOTHING,
    (lambda _: tf.TransformedEnv(DummyVectorEnv), TypeError, "TransformedEnv wraps a gymnasium env"),
    (lambda _: tf.TransformedVectorEnv(Samples()), TypeError, "wraps a vector env of vecenv", "TransformedEnv"),
    (lambda _: one(5), TypeError, "a Transform or a function"),
    (lambda _: one(tf.Resize), TypeError, "a Transform or a function"),
    (lambda _: one(tf.Resize(3)), ValueError, "finds no part to transform"),
    (lambda _: one(tf.UnsqueezeTransform(0, ["nope"]), MIXED), ValueError, "no ('nope',)", "x"),
    (lambda _: tf.CatFrames(2, -1, out_keys=["y"]), ValueError, "pass one for each"),
    (lambda _: tf.CatFrames(2, -1, in_keys="x"), ValueError, "keys must be a list"),
    (lambda _: tf.CatFrames(0, -1), ValueError, "N must be"),
    (lambda _: tf.CatFrames(2, -1, padding="zeros"), ValueError, "padding must be"),
    (lambda _: one(tf.CatFrames(2, -3)), ValueError, "dim=-3 for observations with 1"),
    (lambda _: one(tf.UnsqueezeTransform(2)), ValueError, "dim=2 for observations with 1"),
    (lambda _: tf.GrayScale("602"), ValueError, "weights must be one of"),
    (lambda _: tf.GrayScale()(np.zeros((1, 8, 8, 1))), ValueError, "3 channels"),
    (lambda _: tf.GrayScale()(np.zeros((1, 8, 8, 8))), ValueError, 'pass channels="first"'),
    (lambda _: tf.GrayScale()(LONGS), ValueError, "takes images of uint8 or floats, got int64: ", "DTypeCast"),
    (lambda _: tf.Resize(4, 3)(LONGS), ValueError, "takes images of uint8 or floats, got int64: ", "DTypeCast"),
    (lambda _: tf.Resize(0), ValueError, "positive integers"),
    (lambda _: tf.Resize(3, interpolation="cubic"), ValueError, "interpolation must be one of"),
    (lambda _: tf.CenterCrop(9)(np.zeros((1, 8, 8, 3))), ValueError, "expected at least 9 x 9"),
    (lambda _: tf.ToTensorImage()(np.zeros((1, 8))), ValueError, "finds no part to transform"),
    (lambda _: one(tf.CatTensors()), ValueError, "joins parts of a Dict"),
    (lambda _: tf.CatTensors(["a", "b"])({"a": ONES[..., :2], "b": ONES[:, :1, :1]}), ValueError, "cannot join"),
    (lambda _: tf.CatTensors(dim=-2), ValueError, "so dim must be -1"),
    (lambda _: one(tf.Flatten(), spaces.Text(3)), ValueError, "cannot make a vector"),
    (lambda _: one(tf.StepCounter(step_count_key="x"), MIXED), ValueError, "already has"),
    (lambda _: one(tf.StepCounter(step_count_key="observation")), ValueError, "already has"),
    (lambda _: one(tf.CatTensors([(0,)], "observation"), PAIR), ValueError, "choose another name"),
    (lambda _: one(tf.RenameTransform([(0,)], [(2,)]), PAIR), ValueError, "cannot write part 2"),
    (lambda _: tf.TimeLimit(0), ValueError, "max_episode_steps"),
    (lambda _: tf.RewardClipping(2, 1), ValueError, "is above"),
    (lambda _: tf.ObservationNorm(0, [1, 0], standard_normal=True), ValueError, "must not be zero"),
    (lambda _: tf.ActionScaling(1, 1), ValueError, "must be below"),
    (lambda _: tf.TransformedEnv(gymnasium.make("CartPole-v1"), tf.ActionScaling()), ValueError, "is a Box of floats"),
    (lambda _: tf.TransformedEnv(gymnasium.make("CartPole-v1"), tf.PixelObservation()), ValueError, "render_mode"),
    (lambda _: tf.RenameTransform(["a", "b"], ["c"]), ValueError, "pass one for each"),
    (lambda _: tf.CatFrames(2, -1)(np.zeros((1, 2))), RuntimeError, "has a state per env"),
    (lambda _: tf.Flatten()(np.zeros((1, 2))), RuntimeError, "needs the observation space"),
    (lambda _: one(tf.ActionScaling(-1e39, 0)), ValueError, "out of bounds"),
    (lambda _: tf.NoopReset(3, action="noop"), ValueError, 'action must be "random" or an action'),
    (stepped(Samples(length=3), tf.NoopReset(4, random=False)), RuntimeError, "10 episodes of", "within 4 steps"),
    *(
        (around(transform), TypeError, "put it into TransformedEnv")
        for transform in (tf.FrameSkip(2), tf.NoopReset(3), tf.PixelObservation())
    ),
    (around(tf.StepCounter(), space=MIXED, stack_obs=False), ValueError, "stack_obs=True"),
    (twice, RuntimeError, BELONGS),
    (taken, RuntimeError, "Resize", BELONGS, "clone()"),
    (lambda _: one([tf.GrayScale()], IMAGE).insert_transform(5, tf.CenterCrop(8)), IndexError, "index 5 is out"),
    # Results of a single env.
    *(
        (stepped(lambda flag=flag: Answers(truncated=flag), tf.RewardSum()), EnvContractError, "truncated=", "a bool")
        for flag in (None, "no", 2)
    ),
    (stepped(lambda: Answers(MIXED, more=1), tf.RewardSum()), ObservationError, "has the wrong keys: missing [],"),
    (stepped(Answers(obs=np.zeros(4)), tf.UnsqueezeTransform(0)), RuntimeError, "obs is float64 (4,)", "float32 (5,)"),
    (stepped(lambda: Answers(reward=np.zeros(2)), tf.RewardSum()), ValueError, "RewardSum", "needs rewards that"),
    (stepped(lambda: Answers(reward=np.zeros(2)), tf.VecNorm()), ValueError, "in_keys without 'reward'"),
    *(
        (stepped(Samples, tf.ActionScaling(), action), ValueError, "action has the shape", "expected (2,)")
        for action in (np.zeros(1), 0.0, np.zeros((1, 2)))
    ),
    # Statistics.
    (lambda _: tf.VecNorm(decay=2.0), ValueError, "decay must be"),
    (lambda _: tf.VecNorm("observation"), ValueError, "keys must be a list"),
    (lambda _: tf.VecNorm(["x", ("x",)]), ValueError, "names a part twice"),
    (lambda _: tf.VecNorm().moments(), RuntimeError, "has no statistics: make it part of an env, or load"),
    (lambda _: tf.VecNorm().to_observation_norm(), RuntimeError, "has no statistics: make it part of an env, or load"),
    *(
        (loaded(**state), ValueError, NOT_FITTING, "expected [", "_skipped", "got [")
        for state in ({}, {"mean": 0.0}, {**STATE, "more": 1.0})
    ),
    (loaded(["x"], **STATE), ValueError, "expected ['x_count', 'x_mean'", "got ['observation_"),
    (loaded(["reward"], attach=True, **STATE), ValueError, "expected {'reward_mean': ()", "got {'obs"),
    (fits_another_env, ValueError, "do not fit this env: expected {'x_mean': (3,)", "got {'x_mean': (4,)"),
)
