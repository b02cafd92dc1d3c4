"""Envs and transforms of the tests of transforms. Workers import this module, so it imports little."""

import copy

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv import transforms as tf

IMAGE = spaces.Box(0, 255, (12, 10, 3), np.uint8)
VECTOR = spaces.Box(-2, 3, (5,), np.float32)
MIXED = spaces.Dict(
    {
        "x": spaces.Box(-1, 1, (3,), np.float64),
        "v": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        "which": spaces.Discrete(4, start=2),
        "many": spaces.MultiDiscrete([2, 3]),
        "pixels": IMAGE,
        "deep": spaces.Dict({"y": spaces.Box(0, 1, (2, 2), np.float32)}),
    }
)
VECTORS = spaces.Dict({"b": VECTOR, "a": spaces.Box(0, 1, (2,), np.float64)})


class Samples(gymnasium.Env):
    """Env that observes samples of its space, which depend on the seed. Episodes have `length` steps, and alternately
    terminate and are truncated. The reward depends on the action.
    """

    def __init__(self, space=VECTOR, length=4, action_space=None):
        self.observation_space = copy.deepcopy(space)  # envs in other threads use separate copies
        self.action_space = spaces.Box(-2, 6, (2,), np.float32) if action_space is None else action_space
        self.length, self.t, self.episode = length, 0, -1

    def _obs(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        return self._obs(), {"episode": self.episode}

    def step(self, action):
        self.t += 1
        over, odd = self.t >= self.length, self.episode % 2 == 1
        reward = float(np.sum(action)) + float(self.np_random.normal())
        return self._obs(), reward, over and not odd, over and odd, {"t": self.t}


CASES = {
    "to tensor": (IMAGE, lambda: tf.ToTensorImage()),
    "to tensor, only moved": (IMAGE, lambda: tf.ToTensorImage(keep_uint8=True, unsqueeze=True)),
    "gray": (IMAGE, lambda: tf.GrayScale()),
    "gray 709": (IMAGE, lambda: tf.GrayScale("709", keep_dim=False)),
    "gray floats": (IMAGE, lambda: tf.Compose(tf.ToTensorImage(), tf.GrayScale())),
    "area": (IMAGE, lambda: tf.Resize(5, 4)),
    "area, larger": (IMAGE, lambda: tf.Resize(15, 20)),
    "bilinear": (IMAGE, lambda: tf.Resize(5, 4, "bilinear")),
    "bilinear floats": (IMAGE, lambda: tf.Compose(tf.ToTensorImage(), tf.Resize(5, 14, "bilinear"))),
    "area floats": (IMAGE, lambda: tf.Compose(tf.ToTensorImage(), tf.Resize(5, 4))),
    "atari": (IMAGE, lambda: tf.Compose(tf.GrayScale(), tf.Resize(6), tf.ToTensorImage(), tf.CatFrames(4, -3))),
    "crop": (IMAGE, lambda: tf.CenterCrop(5, 7)),
    "unsqueeze": (VECTOR, lambda: tf.UnsqueezeTransform(-1)),
    "squeeze": (VECTOR, lambda: tf.Compose(tf.UnsqueezeTransform(0), tf.SqueezeTransform(0))),
    "flatten": (IMAGE, lambda: tf.Flatten()),
    "flatten all": (MIXED, lambda: tf.Flatten()),
    "flatten one": (MIXED, lambda: tf.Flatten(in_keys=["pixels"])),
    "cat tensors": (VECTORS, lambda: tf.CatTensors()),
    "cat some": (MIXED, lambda: tf.CatTensors(["v", "which", "x"], "joined", del_keys=False, sort=False)),
    "frames": (VECTOR, lambda: tf.CatFrames(3, -1)),
    "frames, constant": (VECTOR, lambda: tf.CatFrames(3, -1, padding="constant", padding_value=-9)),
    "frames of a part": (MIXED, lambda: tf.CatFrames(2, -1, in_keys=["x"], out_keys=["xs"])),
    "norm": (VECTOR, lambda: tf.ObservationNorm(0.5, [1, 2, 3, -4, 5])),
    "standard normal": (VECTOR, lambda: tf.ObservationNorm(0.5, 2.0, ["observation"], ["z"], standard_normal=True)),
    "cast": (MIXED, lambda: tf.DTypeCast("float32", "float64", in_keys_inv=["action"])),
    "double to float": (MIXED, lambda: tf.DoubleToFloat()),
    "rename": (MIXED, lambda: tf.RenameTransform(["x", ("deep", "y")], ["y", "z"])),
    "rename all": (VECTOR, lambda: tf.RenameTransform(["observation"], ["state"])),
    "reward sum": (VECTOR, lambda: tf.RewardSum()),
    "reward clipping": (VECTOR, lambda: tf.RewardClipping(-0.5, 0.5)),
    "reward scaling": (VECTOR, lambda: tf.RewardScaling(1.0, 0.5)),
    "step counter": (MIXED, lambda: tf.StepCounter()),
    "actions": (VECTOR, lambda: tf.Compose(tf.ActionScaling(), tf.ActionScaling(0, 1))),
    "a function": (VECTOR, lambda: lambda obs: obs * 0.5),
    "all together": (
        VECTOR,
        lambda: tf.Compose(
            tf.CatFrames(2, -1), tf.RewardScaling(0.0, 0.1), tf.RewardSum(), tf.StepCounter(), tf.ActionScaling()
        ),
    ),
}
"""Observation space, and a function that makes the transform. These transforms work on rows, and end no episode."""

ENDING = {
    "time limit": (VECTOR, lambda: tf.TimeLimit(3)),
    "counter with a limit": (VECTOR, lambda: tf.Compose(tf.CatFrames(2, -1), tf.StepCounter(max_steps=2))),
}
"""Transforms that end episodes."""


def plain(space, length):
    """Return a function that makes an env."""
    return lambda: Samples(space, length)


def normalised(**options):
    """Return an env with a VecNorm."""
    return tf.TransformedEnv(Samples(VECTOR, 5), tf.VecNorm(**options))


class Goes(Samples):
    """Transform with state. It fails in the steps `fails_at`, counted from its creation."""

    def __init__(self, space=VECTOR, length=4, fails_at=()):
        super().__init__(space, length)
        self.steps, self.fails_at = 0, fails_at

    def step(self, action):
        self.steps += 1
        if self.steps in self.fails_at:
            raise ValueError("boom in step")
        return super().step(action)

    def get_state(self):
        return self.t, self.episode, copy.deepcopy(self.np_random.bit_generator.state)

    def set_state(self, state):
        self.t, self.episode, generator = state
        self.np_random.bit_generator.state = copy.deepcopy(generator)
