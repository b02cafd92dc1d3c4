"""Transforms give the results of gymnasium and OpenCV, and the stored ones of torchvision and TorchRL.

golden/make_transforms.py stores them.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import (
    FlattenObservation,
    FrameStackObservation,
    GrayscaleObservation,
    RescaleAction,
    ResizeObservation,
    TransformObservation,
)

from tests.support.cases import playing
from tests.support.transform_envs import IMAGE, VECTOR, Samples
from tests.support.transform_forms import Seen
from vecenv import DummyVectorEnv
from vecenv import transforms as tf

GOLDEN = dict(np.load(Path(__file__).parent / "golden" / "transforms.npz"))
SIZES = {"smaller": (28, 21), "half": (20, 16), "larger": (50, 45), "mixed": (30, 41)}
PIXELS, SMALL, X, V, REWARD = (GOLDEN[name] for name in ("pixels", "small", "x", "v", "reward"))
IMAGES = {"smaller": PIXELS, "half": SMALL, "larger": SMALL, "mixed": SMALL}
FLAT = spaces.Dict({"x": VECTOR, "n": spaces.Discrete(3, start=1), "m": spaces.MultiDiscrete([2, 3])})


def joined(of):
    obs = tf.CatTensors(["x", "v"], "both")({"x": of(X), "v": of(V)})  # in the order of their names
    assert obs.keys() == {"both"}
    return obs["both"]


def rewarded(transform, of):
    rows = tf.Rows(None, None, of(REWARD[:, 0]))
    transform.step(rows)
    return rows.reward[:, None]


def resized(name, of):
    return tf.Compose(tf.ToTensorImage(), tf.Resize(*SIZES[name], "bilinear"))(of(IMAGES[name]))


MADE = {
    "torchvision gray": (lambda of: tf.GrayScale()(tf.ToTensorImage()(of(SMALL))), 2e-4),  # torchvision uses 0.2989
    "torchrl gray": (lambda of: tf.GrayScale()(tf.ToTensorImage()(of(SMALL))), 2e-4),
    "torchrl to tensor": (lambda of: tf.ToTensorImage()(of(SMALL)), 1e-7),
    "torchrl crop": (lambda of: tf.Compose(tf.ToTensorImage(), tf.CenterCrop(13, 20))(of(SMALL)), 1e-7),
    **{f"{by} resize {n}": (lambda of, n=n: resized(n, of), 2e-5) for by in ("torchvision", "torchrl") for n in SIZES},
    "torchrl norm": (lambda of: tf.ObservationNorm(0.5, 2.0)(of(X)), 1e-6),
    "torchrl standard normal": (lambda of: tf.ObservationNorm(0.5, 2.0, standard_normal=True)(of(X)), 1e-6),
    "torchrl unsqueeze": (lambda of: tf.UnsqueezeTransform(-1)(of(X)), 0),
    "torchrl cat tensors": (joined, 0),
    "torchrl scaled": (lambda of: rewarded(tf.RewardScaling(1.0, 0.5), of), 1e-6),
    "torchrl clipped": (lambda of: rewarded(tf.RewardClipping(-0.5, 0.4), of), 1e-6),
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_is_what_the_library_makes(name):
    make, tolerance = MADE[name]
    for of in (np.copy, lambda array: torch.from_numpy(array.copy())):
        made = np.asarray(make(of))
        assert made.dtype == GOLDEN[name].dtype
        np.testing.assert_allclose(made, GOLDEN[name], rtol=tolerance, atol=tolerance)


def test_vec_norm_is_that_of_torchrl():
    """TorchRL computes its sums in float32."""
    with tf.TransformedVectorEnv(
        DummyVectorEnv(playing(spaces.Box(-np.inf, np.inf, (3,)), []) * 6), tf.VecNorm(decay=0.9)
    ) as venv:
        for batch in range(4):
            rows = tf.Rows(X * (batch + 1), None, REWARD[:, 0] - batch, ids=np.arange(6))
            venv.transform.step(rows)
            np.testing.assert_allclose(rows.obs, GOLDEN["torchrl vec norm"][batch], rtol=1e-4, atol=1e-4)
            expected = GOLDEN["torchrl vec norm of rewards"][batch][:, 0]
            np.testing.assert_allclose(rows.reward, expected, rtol=1e-4, atol=1e-4)
            assert rows.obs.dtype == rows.reward.dtype == np.float32


@pytest.mark.parametrize(
    ("space", "wrapper", "transforms"),
    [
        (VECTOR, lambda env: FrameStackObservation(env, 3), [tf.UnsqueezeTransform(0), tf.CatFrames(3, 0)]),
        (
            VECTOR,
            lambda env: FrameStackObservation(env, 3, padding_type="zero"),
            [tf.UnsqueezeTransform(0), tf.CatFrames(3, 0, padding="constant")],
        ),
        (FLAT, FlattenObservation, tf.Flatten()),
        (VECTOR, lambda env: TransformObservation(env, np.abs, spaces.Box(0, 3, (5,))), np.abs),
        (IMAGE, GrayscaleObservation, tf.GrayScale("709", keep_dim=False)),
        (VECTOR, lambda env: RescaleAction(env, np.float32(-1), np.float32(1)), tf.ActionScaling()),
    ],
    ids=["frames", "frames of zeros", "flat", "a function", "gray", "actions"],
)
def test_a_transform_does_what_the_wrapper_of_gymnasium_does(space, wrapper, transforms):
    box = spaces.Box(np.array([-2, 0], np.float32), np.array([6, 1], np.float32))
    theirs, ours = wrapper(Seen(space, 9, box)), tf.TransformedEnv(Seen(space, 9, box), transforms)
    np.testing.assert_allclose(ours.reset(seed=0)[0], theirs.reset(seed=0)[0], rtol=1e-6, atol=1e-6)
    for action in np.tanh(V):
        (want, *_, their_info), (obs, *_, info) = (env.step(action) for env in (theirs, ours))
        np.testing.assert_allclose(obs, want, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(info["action"], their_info["action"], rtol=1e-6, atol=1e-6)
        assert ours.observation_space.contains(obs)


def test_every_size_is_that_of_gymnasium():
    """Also if a side grows and the other side shrinks. Tensors differ by rounding."""
    pytest.importorskip("cv2")
    rng = np.random.default_rng(0)
    for _ in range(40):
        height, width, *size = rng.integers(1, 60, 4).tolist()
        image = rng.integers(0, 256, (height, width, *[(), (1,), (3,)][rng.integers(3)]), np.uint8)
        theirs = ResizeObservation(Samples(spaces.Box(0, 255, image.shape, np.uint8)), tuple(size))
        own, want = tf.Resize(*size, channels="last"), theirs.observation(image)
        want = want.reshape(theirs.observation_space.shape)  # gymnasium 1.3 drops an axis of one channel
        assert np.array_equal(own(image[None])[0], want)
        on_tensors = own(torch.from_numpy(image)[None])[0].numpy()
        assert np.abs(on_tensors.astype(int) - want).max() <= 1


def test_without_opencv_images_differ_by_rounding_only(monkeypatch):
    cv2 = pytest.importorskip("cv2")

    def made():
        yield tf.GrayScale(keep_dim=False)(PIXELS)
        yield tf.GrayScale("709")(torch.from_numpy(SMALL)).numpy()
        for name in ("smaller", "half"):
            yield tf.Resize(*SIZES[name])(IMAGES[name])
            yield tf.Resize(*SIZES[name])(IMAGES[name] / np.float32(255))

    gray, *with_opencv = made()
    assert np.array_equal(gray, [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in PIXELS])
    monkeypatch.setattr(tf.images, "opencv", lambda: None)
    for got, want in zip(made(), (gray, *with_opencv), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(float), want, rtol=1e-6, atol=1 if want.dtype == np.uint8 else 1e-6)
