"""Transforms give the stored results of gymnasium, OpenCV, torchvision and TorchRL (golden/make_transforms.py)."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import GrayscaleObservation, ResizeObservation

from vecenv import DummyVectorEnv
from vecenv import transforms as tf

GOLDEN = dict(np.load(Path(__file__).parent / "golden" / "transforms.npz"))
SIZES = {"smaller": (28, 21), "half": (20, 16), "larger": (50, 45), "mixed": (30, 41)}
PIXELS, SMALL, X, V, REWARD = (GOLDEN[name] for name in ("pixels", "small", "x", "v", "reward"))
IMAGES = {"smaller": PIXELS, "half": SMALL, "larger": SMALL, "mixed": SMALL}
ALL = np.arange(6)
BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)


@pytest.fixture(params=["opencv", "numpy"])
def image_library(request, monkeypatch):
    """Run with OpenCV, and as if OpenCV were not installed."""
    if request.param == "numpy":
        monkeypatch.setattr(tf.images, "opencv", lambda: None)
    else:
        pytest.importorskip("cv2")


class Shows:
    """Env that is only made for its spaces."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, **kwargs):
        return None, {}

    def step(self, action):
        return None, 0.0, False, False, {}


class Played(gymnasium.Env):
    """Env with observations of this space, for gymnasium's wrappers."""

    def __init__(self, space):
        self.observation_space, self.action_space = space, spaces.Discrete(2)


def stacked(**options):
    """Return the stacked frames of an env's rows. The first row comes from a reset."""
    transform, x = tf.CatFrames(3, 0, **options), tf.UnsqueezeTransform(0)(X)
    rows = [tf.Rows(x[i : i + 1], None, np.zeros(1), ids=ALL[:1]) for i in range(len(x))]
    for i, each in enumerate(rows):
        (transform.step if i else transform.reset)(each)
    return np.concatenate([each.obs for each in rows])


def flat():
    space = spaces.Dict({"x": BOX, "n": spaces.Discrete(3, start=1), "m": spaces.MultiDiscrete([2, 3])})
    with tf.TransformedVectorEnv(DummyVectorEnv([lambda: Shows(space)]), tf.Flatten()) as venv:
        found = venv.transform[0].transform_observation(
            {"x": X, "n": 1 + ALL % 3, "m": np.stack([ALL % 2, ALL % 3], 1)}
        )
        assert venv.observation_space[0].dtype == found.dtype
    return found.astype(GOLDEN["gymnasium flat"].dtype)


def scaled_actions():
    box = spaces.Box(np.array([-2, 0], np.float32), np.array([6, 1], np.float32))
    with tf.TransformedVectorEnv(DummyVectorEnv([lambda: Shows(BOX, box)]), tf.ActionScaling()) as venv:
        return venv.transform.inv(np.tanh(V[:5]))


def joined():
    obs = tf.CatTensors(["x", "v"], "both")({"x": X, "v": V})  # in the order of their names
    assert obs.keys() == {"both"}
    return obs["both"]


def rewarded(transform):
    rows = tf.Rows(None, None, REWARD[:, 0])
    transform.step(rows)
    return rows.reward[:, None]


def resized(name):
    return tf.Compose(tf.ToTensorImage(), tf.Resize(*SIZES[name], "bilinear"))(IMAGES[name])


MADE = {
    "torchvision gray": (lambda: tf.GrayScale()(tf.ToTensorImage()(SMALL)), 2e-4),  # torchvision uses 0.2989
    "torchrl gray": (lambda: tf.GrayScale()(tf.ToTensorImage()(SMALL)), 2e-4),
    "torchrl to tensor": (lambda: tf.ToTensorImage()(SMALL), 0),
    "torchrl crop": (lambda: tf.Compose(tf.ToTensorImage(), tf.CenterCrop(13, 20))(SMALL), 0),
    **{f"{of} resize {n}": (lambda n=n: resized(n), 2e-5) for of in ("torchvision", "torchrl") for n in SIZES},
    "gymnasium frames": (lambda: stacked(), 0),
    "gymnasium frames of zeros": (lambda: stacked(padding="constant"), 0),
    "gymnasium flat": (flat, 1e-6),
    "gymnasium actions": (scaled_actions, 1e-6),
    "torchrl norm": (lambda: tf.ObservationNorm(0.5, 2.0)(X), 1e-6),
    "torchrl standard normal": (lambda: tf.ObservationNorm(0.5, 2.0, standard_normal=True)(X), 1e-6),
    "torchrl unsqueeze": (lambda: tf.UnsqueezeTransform(-1)(X), 0),
    "torchrl cat tensors": (joined, 0),
    "torchrl scaled": (lambda: rewarded(tf.RewardScaling(1.0, 0.5)), 1e-6),
    "torchrl clipped": (lambda: rewarded(tf.RewardClipping(-0.5, 0.4)), 1e-6),
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_is_what_the_library_makes(name):
    make, tolerance = MADE[name]
    made = make()
    assert made.dtype == GOLDEN[name].dtype
    np.testing.assert_allclose(made, GOLDEN[name], rtol=tolerance, atol=tolerance)


def test_images_of_integers_and_by_area_are_those_of_opencv_and_gymnasium(image_library):
    def levels(left, right):
        assert left.dtype == right.dtype == np.uint8
        assert left.shape == right.shape
        return np.abs(left.astype(int) - right).max()

    assert np.array_equal(tf.GrayScale(keep_dim=False)(PIXELS), GOLDEN["opencv gray"])
    assert np.array_equal(tf.GrayScale("709")(SMALL), GOLDEN["gymnasium gray"])
    assert np.array_equal(tf.GrayScale("709")(torch.from_numpy(SMALL)), GOLDEN["gymnasium gray"])
    for name in ("smaller", "half"):
        area = tf.Resize(*SIZES[name])
        assert levels(area(IMAGES[name]), GOLDEN[f"gymnasium resize {name}"]) <= 1
        made = area(IMAGES[name] / np.float32(255))
        assert made.dtype == np.float32
        np.testing.assert_allclose(made, GOLDEN[f"opencv resize {name}"], rtol=1e-6, atol=1e-6)


def test_gray_values_are_those_of_gymnasium():
    image = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    theirs, own = (
        GrayscaleObservation(Played(spaces.Box(0, 255, image.shape, np.uint8))),
        tf.GrayScale("709", keep_dim=False),
    )
    assert np.array_equal(theirs.observation(image), own(image[None])[0])
    assert np.array_equal(theirs.observation(image), own(torch.from_numpy(image)[None])[0])


def test_every_size_is_that_of_gymnasium():
    """Also if a side grows and the other side shrinks. Tensors differ by rounding."""
    pytest.importorskip("cv2")
    rng = np.random.default_rng(0)
    for _ in range(40):
        height, width, *size = rng.integers(1, 60, 4).tolist()
        image = rng.integers(0, 256, (height, width, *[(), (1,), (3,)][rng.integers(3)]), np.uint8)
        theirs = ResizeObservation(Played(spaces.Box(0, 255, image.shape, np.uint8)), tuple(size))
        own, want = tf.Resize(*size, channels="last"), theirs.observation(image)
        want = want.reshape(theirs.observation_space.shape)  # gymnasium 1.3 drops an axis of one channel
        assert np.array_equal(own(image[None])[0], want)
        on_tensors = own(torch.from_numpy(image)[None])[0].numpy()
        assert np.abs(on_tensors.astype(int) - want).max() <= 1


def test_vec_norm_is_that_of_torchrl():
    """TorchRL computes its sums in float32."""
    with tf.TransformedVectorEnv(DummyVectorEnv([lambda: Shows(BOX)] * 6), tf.VecNorm(decay=0.9)) as venv:
        for batch in range(4):
            rows = tf.Rows(X * (batch + 1), None, REWARD[:, 0] - batch, ids=ALL)
            venv.transform.step(rows)
            np.testing.assert_allclose(rows.obs, GOLDEN["torchrl vec norm"][batch], rtol=1e-4, atol=1e-4)
            expected = GOLDEN["torchrl vec norm of rewards"][batch][:, 0]
            np.testing.assert_allclose(rows.reward, expected, rtol=1e-4, atol=1e-4)
            assert rows.obs.dtype == rows.reward.dtype == np.float32
