"""Transforms beside those of gymnasium, OpenCV, torchvision and TorchRL: stored by tests/golden/make_transforms.py."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from vecenv import DummyVectorEnv
from vecenv import transforms as tf

GOLDEN = dict(np.load(Path(__file__).parent / "golden" / "transforms.npz"))
SIZES = {"smaller": (28, 21), "half": (20, 16), "larger": (50, 45), "mixed": (30, 41)}
ALL = np.arange(6)


@pytest.fixture(params=["opencv", "numpy"])
def image_library(request, monkeypatch):
    """With OpenCV, and as where it is not installed."""
    if request.param == "numpy":
        monkeypatch.setattr(tf.images, "opencv", lambda: None)
    else:
        pytest.importorskip("cv2")


def images(name):
    return GOLDEN["pixels" if name == "smaller" else "small"]


def levels(left, right):
    """By how much the values of two uint8 arrays differ."""
    assert left.dtype == right.dtype == np.uint8
    assert left.shape == right.shape
    return np.abs(left.astype(int) - right).max()


def close(left, right, tolerance=1e-6):
    assert left.dtype == right.dtype
    np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


def test_gray_is_that_of_opencv(image_library):
    assert np.array_equal(tf.GrayScale(keep_dim=False)(GOLDEN["pixels"]), GOLDEN["opencv gray"])


def test_gray_709_is_that_of_gymnasium(image_library):
    """Which rounds down."""
    assert levels(tf.GrayScale("709")(GOLDEN["small"]), GOLDEN["gymnasium gray"]) <= 1


@pytest.mark.parametrize("name", ["torchvision gray", "torchrl gray"])
def test_gray_of_floats_is_that_of_torch(name):
    """Which has 0.2989 for 0.299."""
    close(tf.GrayScale()(tf.ToTensorImage()(GOLDEN["small"])), GOLDEN[name], 2e-4)


@pytest.mark.parametrize("name", ["smaller", "half"])
def test_resize_by_area_is_that_of_gymnasium_and_opencv(image_library, name):
    assert levels(tf.Resize(*SIZES[name])(images(name)), GOLDEN[f"gymnasium resize {name}"]) <= 1
    close(tf.Resize(*SIZES[name])(images(name) / np.float32(255)), GOLDEN[f"opencv resize {name}"])


@pytest.mark.parametrize("name", SIZES)
def test_bilinear_resize_is_that_of_torchvision_and_torchrl(name):
    resized = tf.Compose(tf.ToTensorImage(), tf.Resize(*SIZES[name], "bilinear"))(images(name))
    close(resized, GOLDEN[f"torchvision resize {name}"], 2e-5)
    close(resized, GOLDEN[f"torchrl resize {name}"], 2e-5)


def test_images_for_torch_are_those_of_torchrl():
    assert np.array_equal(tf.ToTensorImage()(GOLDEN["small"]), GOLDEN["torchrl to tensor"])
    assert np.array_equal(
        tf.Compose(tf.ToTensorImage(), tf.CenterCrop(13, 20))(GOLDEN["small"]), GOLDEN["torchrl crop"]
    )


def stacked(transform, x):
    """What a transform makes of the rows of one env: its first is that of a reset."""
    rows = [tf.Rows(x[:1], None, ids=ALL[:1])]
    transform.reset(rows[0])
    for i in range(1, len(x)):
        rows.append(tf.Rows(x[i : i + 1], None, np.zeros(1), ids=ALL[:1]))
        transform.step(rows[-1])
    return np.concatenate([each.obs for each in rows])


@pytest.mark.parametrize(("padding", "name"), [("same", "gymnasium frames"), ("constant", "gymnasium frames of zeros")])
def test_stacked_frames_are_those_of_gymnasium(padding, name):
    frames = tf.CatFrames(3, 0, padding=padding)
    assert np.array_equal(stacked(frames, tf.UnsqueezeTransform(0)(GOLDEN["x"])), GOLDEN[name])


class Shows:
    """An env that is only made for its spaces."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, **kwargs):
        return None, {}

    def step(self, action):
        return None, 0.0, False, False, {}


BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)


def test_a_flat_observation_is_that_of_gymnasium():
    space = spaces.Dict({"x": BOX, "n": spaces.Discrete(3, start=1), "m": spaces.MultiDiscrete([2, 3])})
    obs = {"x": GOLDEN["x"], "n": 1 + ALL % 3, "m": np.stack([ALL % 2, ALL % 3], 1)}
    with tf.TransformedVectorEnv(DummyVectorEnv([lambda: Shows(space)]), tf.Flatten()) as venv:
        flat = venv.transform[0].observe(obs)
        close(flat, GOLDEN["gymnasium flat"].astype(flat.dtype))
        assert venv.observation_space[0].dtype == flat.dtype


def test_scaled_actions_are_those_of_gymnasium():
    box = spaces.Box(np.array([-2, 0], np.float32), np.array([6, 1], np.float32))
    with tf.TransformedVectorEnv(DummyVectorEnv([lambda: Shows(BOX, box)]), tf.ActionScaling()) as venv:
        close(venv.transform.inv(np.tanh(GOLDEN["v"][:5])), GOLDEN["gymnasium actions"])


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (tf.ObservationNorm(0.5, 2.0), "torchrl norm"),
        (tf.ObservationNorm(0.5, 2.0, standard_normal=True), "torchrl standard normal"),
        (tf.UnsqueezeTransform(-1), "torchrl unsqueeze"),
    ],
)
def test_vectors_are_those_of_torchrl(transform, name):
    close(transform(GOLDEN["x"]), GOLDEN[name])


def test_joined_parts_are_those_of_torchrl():
    """In the order of their names."""
    obs = tf.CatTensors(["x", "v"], "both")({"x": GOLDEN["x"], "v": GOLDEN["v"]})
    assert np.array_equal(obs.pop("both"), GOLDEN["torchrl cat tensors"])
    assert obs == {}


@pytest.mark.parametrize(
    ("transform", "name"),
    [(tf.RewardScaling(1.0, 0.5), "torchrl scaled"), (tf.RewardClipping(-0.5, 0.4), "torchrl clipped")],
)
def test_rewards_are_those_of_torchrl(transform, name):
    rows = tf.Rows(None, None, GOLDEN["reward"][:, 0])
    transform.step(rows)
    close(rows.reward, GOLDEN[name][:, 0])


def test_vec_norm_is_that_of_torchrl():
    """Which keeps its sums in float32."""
    with tf.TransformedVectorEnv(DummyVectorEnv([lambda: Shows(BOX)] * 6), tf.VecNorm(decay=0.9)) as venv:
        for batch in range(4):
            rows = tf.Rows(GOLDEN["x"] * (batch + 1), None, GOLDEN["reward"][:, 0] - batch, ids=ALL)
            venv.transform.step(rows)
            close(rows.obs, GOLDEN["torchrl vec norm"][batch], 1e-4)
            close(rows.reward, GOLDEN["torchrl vec norm of rewards"][batch][:, 0], 1e-4)
