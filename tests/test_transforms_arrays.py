"""Transforms on tensors: without a way over numpy."""

import numpy as np
import pytest
import torch
from transform_envs import CASES, MIXED, VECTOR, plain

from tests.backends import FULL
from vecenv import DummyVectorEnv, nest
from vecenv.transforms import Rows, TransformedVectorEnv, VecNorm

N = 4
ROW_WISE = {**CASES, "vec norm": (VECTOR, lambda: VecNorm()), "vec norm of parts": (MIXED, lambda: VecNorm(["x", "v"]))}


QUICK = ("atari", "cat some", "all together", "vec norm")


class OnDevice(torch.Tensor):
    """A tensor that refuses to leave its device."""

    def _refuse(self, *args, **kwargs):
        raise AssertionError("a tensor was moved to the host")

    __array__ = cpu = item = numpy = tolist = __int__ = __float__ = __bool__ = __index__ = _refuse


def to_device(array):
    return array if array.dtype == object else torch.from_numpy(array.copy()).as_subclass(OnDevice)


def from_device(array):
    assert isinstance(array, torch.Tensor)
    return array.as_subclass(torch.Tensor).numpy()


def rounds(space):
    """A full reset, a full step, then steps and resets of some: (ids, obs, reward or None)."""
    space.seed(0)
    rng = np.random.default_rng(0)
    for ids, steps in (([0, 1, 2, 3], False), ([0, 1, 2, 3], True), ([2, 0], True), ([1], False), ([3, 1], True)):
        obs = nest.map(np.copy, nest.stack([space.sample() for _ in ids]))
        yield np.array(ids), obs, rng.normal(size=len(ids)) if steps else None


def run(transform, ids, obs, reward, convert):
    """One round in a library: (obs, reward, truncated)."""
    if reward is None:
        rows = Rows(nest.map(convert, obs), None, ids=ids)
        transform.reset(rows)
    else:
        flags = np.zeros((2, len(ids)), np.bool_)
        rows = Rows(nest.map(convert, obs), None, *map(convert, (reward, *flags)), ids=ids)
        transform.step(rows)
    return rows.obs, rows.reward, rows.truncated


@pytest.mark.parametrize("case", [each if each in QUICK else pytest.param(each, marks=FULL) for each in ROW_WISE])
def test_a_transform_stays_on_the_device_of_the_rows(case):
    space, make = ROW_WISE[case]
    with DummyVectorEnv([plain(space, 3)] * N) as venv:
        reference, other = (TransformedVectorEnv(venv, make()) for _ in range(2))
        for ids, obs, reward in rounds(space):
            want = run(reference.transform, ids, obs, reward, np.copy)
            got = run(other.transform, ids, obs, reward, to_device)
            for left, right in zip(want, got, strict=True):
                if left is None:
                    assert right is None
                    continue
                for one, two in zip(nest.leaves(left), nest.leaves(right), strict=True):
                    two = from_device(two)
                    assert one.dtype == two.dtype
                    if one.dtype.kind == "f":
                        # OpenCV rounds halves of uint8 up, the others to even.
                        np.testing.assert_allclose(two, one, rtol=2e-6, atol=1.01 / 255 if case == "atari" else 2e-6)
                    else:
                        assert np.abs(two.astype(np.int64) - one.astype(np.int64)).max() <= (one.dtype == np.uint8)
        actions = np.full((N, 2), 0.5, np.float32)
        want, got = reference.transform.inv(actions), other.transform.inv(to_device(actions))
        np.testing.assert_allclose(from_device(got), want, rtol=1e-6)
