"""Messages of transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.messages.rows import NOTHING, each, rows_for
from tests.support.transform_envs import IMAGE, MIXED, VECTOR, Samples, plain
from vecenv import DummyVectorEnv, EnvContractError, ObservationError
from vecenv import transforms as tf

ONES = np.ones((1, 3, 3))
LONGS = np.zeros((1, 9, 7, 3), np.int64)
PAIR = spaces.Tuple((VECTOR, VECTOR))


def one(transform: Any, space: Any = VECTOR) -> tf.TransformedEnv:
    return tf.TransformedEnv(Samples(space), transform)


def around(*transforms: Any, space: Any = VECTOR, **options: Any) -> Callable[[], object]:
    """Return a call that puts transforms around two envs."""

    def call() -> None:
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


def stepped(env: Any, transform: Any, action: Any = None) -> Callable[[], object]:
    def call() -> None:
        made = tf.TransformedEnv(env() if callable(env) else env, transform)
        made.reset(seed=0)
        made.step(np.zeros(2, np.float32) if action is None else action)

    return call


def twice() -> None:
    one([gray := tf.GrayScale(), gray], IMAGE)


def taken() -> None:
    transform = tf.Resize(6)
    env = one(transform, IMAGE)
    env.append_transform(transform)


def loaded(keys: Any = None, attach: bool = False, **state: Any) -> Callable[[], object]:
    def call() -> None:
        norm = tf.VecNorm(keys)
        if attach:
            env = one(norm)  # noqa: F841  # the transform belongs to the env while the env lives
        norm.load_state_dict(state)

    return call


def fits_another_env() -> None:
    norm = tf.VecNorm(["x"])
    norm.load_state_dict({"x_mean": np.ones(4), "x_var": np.ones(4), "x_count": 7.0, "x_skipped": 0.0})
    one(norm, MIXED)


def truncated(flag: Any) -> None:
    stepped(lambda: Answers(truncated=flag), tf.RewardSum())()


def states(state: Any) -> None:
    loaded(**state)()


def scaled(action: Any) -> None:
    stepped(Samples, tf.ActionScaling(), action)()


STATE = {
    f"{name}_{part}": np.zeros(shape if part in ("mean", "var") else ())
    for name, shape in (("observation", 5), ("reward", ()))
    for part in ("mean", "var", "count", "skipped")
}
OF_SINGLE_ENVS = tf.FrameSkip(2), tf.NoopReset(3), tf.PixelObservation()
NO_STATISTICS = [lambda: tf.VecNorm().moments(), lambda: tf.VecNorm().to_observation_norm()]
BELONGS = "belongs to an env already"
ROWS = rows_for(
    NOTHING,
    (lambda: tf.TransformedEnv(DummyVectorEnv), TypeError, "TransformedEnv wraps a gymnasium env"),
    (lambda: tf.TransformedVectorEnv(Samples()), TypeError, "wraps a vector env of vecenv", "TransformedEnv"),
    (each((5, tf.Resize), one), TypeError, "a transform must be a Transform or a function", "got VALUE"),
    (lambda: one(tf.Resize(3)), ValueError, "finds no part to transform"),
    (lambda: one(tf.UnsqueezeTransform(0, ["nope"]), MIXED), ValueError, "no ('nope',) in the observation", "x"),
    (lambda: tf.CatFrames(2, -1, out_keys=["y"]), ValueError, "pass one for each"),
    (lambda: tf.CatFrames(2, -1, in_keys="x"), ValueError, "keys must be a list"),
    (lambda: tf.CatFrames(2, -1, padding="zeros"), ValueError, 'padding must be "same"'),
    (lambda: one(tf.CatFrames(2, -3)), ValueError, "dim=-3 for observations with 1"),
    (lambda: tf.GrayScale("602"), ValueError, "weights must be one of"),
    (lambda: tf.GrayScale()(np.zeros((1, 8, 8, 1))), ValueError, "with 3 channels, got the shape (8, 8, 1)"),
    (lambda: tf.GrayScale()(np.zeros((1, 8, 8, 8))), ValueError, 'pass channels="first"'),
    (each((tf.GrayScale(), tf.Resize(4, 3)), lambda it: it(LONGS)), ValueError, "floats, got int64: ", "DTypeCast"),
    (lambda: tf.Resize(0), ValueError, "positive integers"),
    (lambda: tf.Resize(3, interpolation="cubic"), ValueError, "interpolation must be one of"),
    (lambda: tf.CenterCrop(9)(np.zeros((1, 8, 8, 3))), ValueError, "expected at least 9 x 9"),
    (lambda: tf.ToTensorImage()(np.zeros((1, 8))), ValueError, "finds no part to transform"),
    (lambda: one(tf.CatTensors()), ValueError, "joins parts of a Dict"),
    (lambda: tf.CatTensors(["a", "b"])({"a": ONES[..., :2], "b": ONES[:, :1, :1]}), ValueError, "[(3, 2), (1, 1)]"),
    (lambda: tf.CatTensors(dim=-2), ValueError, "so dim must be -1"),
    (lambda: one(tf.Flatten(), spaces.Text(3)), ValueError, "cannot make a vector"),
    (lambda: one(tf.StepCounter(step_count_key="x"), MIXED), ValueError, "adds 'x', which the observation already has"),
    (lambda: one(tf.CatTensors([(0,)], "observation"), PAIR), ValueError, "choose another name"),
    (lambda: one(tf.RenameTransform([(0,)], [(2,)]), PAIR), ValueError, "cannot write part 2"),
    (lambda: tf.RewardClipping(2, 1), ValueError, "clamp_min=2 is above clamp_max=1"),
    (lambda: tf.ObservationNorm(0, [1, 0], standard_normal=True), ValueError, "must not be zero"),
    (lambda: tf.ActionScaling(1, 1), ValueError, "low=1 must be below high=1"),
    (lambda: tf.TransformedEnv(gymnasium.make("CartPole-v1"), tf.ActionScaling()), ValueError, "is a Box of floats"),
    (lambda: tf.CatFrames(2, -1)(np.zeros((1, 2))), RuntimeError, "has a state per env"),
    (lambda: tf.Flatten()(np.zeros((1, 2))), RuntimeError, "needs the observation space"),
    (lambda: one(tf.ActionScaling(-1e39, 0)), ValueError, "Box low is out of bounds of the dtype"),
    (lambda: tf.NoopReset(3, action="noop"), ValueError, 'action must be "random" or an action'),
    (stepped(Samples(length=3), tf.NoopReset(4, random=False)), RuntimeError, "10 episodes of", "within 4 steps"),
    (each(OF_SINGLE_ENVS, lambda it: around(it)()), TypeError, "put it into TransformedEnv"),
    (around(tf.StepCounter(), space=MIXED, stack_obs=False), ValueError, "make the venv with stack_obs=True"),
    (twice, RuntimeError, BELONGS),
    (taken, RuntimeError, "Resize", BELONGS, "clone()"),
    (lambda: one([tf.GrayScale()], IMAGE).insert_transform(5, tf.CenterCrop(8)), IndexError, "index 5 is out of range"),
    # Results of a single env.
    (each((None, 2), truncated), EnvContractError, "step() returned truncated=VALUE of type", "expected a bool"),
    (stepped(lambda: Answers(MIXED, more=1), tf.RewardSum()), ObservationError, "has the wrong keys: missing [],"),
    (stepped(Answers(obs=np.zeros(4)), tf.UnsqueezeTransform(0)), RuntimeError, "obs is float64 (4,)", "float32 (5,)"),
    (stepped(lambda: Answers(reward=np.zeros(2)), tf.RewardSum()), ValueError, "RewardSum", "needs rewards that"),
    (stepped(lambda: Answers(reward=np.zeros(2)), tf.VecNorm()), ValueError, "in_keys without 'reward'"),
    (each((np.zeros(1), 0.0, np.zeros((1, 2))), scaled), ValueError, "action has the shape", "expected (2,)"),
    # Statistics.
    (lambda: tf.VecNorm(decay=2.0), ValueError, "decay must be above 0 and at most 1, got 2.0"),
    (lambda: tf.VecNorm("observation"), ValueError, "keys must be a list"),
    (lambda: tf.VecNorm(["x", ("x",)]), ValueError, "names a part twice"),
    (NO_STATISTICS, RuntimeError, "has no statistics: make it part of an env, or load"),
    (each(({}, {"mean": 0.0}, {**STATE, "more": 1.0}), states), ValueError, "VecNorm(", "expected [", "got ["),
    (loaded(["x"], **STATE), ValueError, "expected ['x_count', 'x_mean'", "got ['observation_"),
    (loaded(["reward"], attach=True, **STATE), ValueError, "expected {'reward_mean': ()", "got {'obs"),
    (fits_another_env, ValueError, "do not fit this env: expected {'x_mean': (3,)", "got {'x_mean': (4,)"),
)
