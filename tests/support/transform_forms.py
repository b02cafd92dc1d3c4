"""The forms of a transform: in a worker, around the batch, on tensors, and on a device with arrays on both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from collector.device.torch_vector_env import TorchVectorEnv, TransformedOnDevice
from tests.support.transform_envs import Samples
from vecenv import DummyVectorEnv, nest
from vecenv.transforms import TransformedEnv, TransformedVectorEnv

N = 4


def in_workers(fns: Any, make: Any, **options: Any) -> Any:
    return DummyVectorEnv([lambda fn=fn: TransformedEnv(fn(), make()) for fn in fns], **options)


def around_the_batch(fns: Any, make: Any, **options: Any) -> Any:
    return TransformedVectorEnv(DummyVectorEnv(fns, **options), make())


def on_tensors(fns: Any, make: Any, **options: Any) -> Any:
    venv = DummyVectorEnv(fns, **options)
    return TorchVectorEnv(venv, "cpu", transforms=make(), reward_dtype=torch.float64)


def on_a_device(fns: Any, make: Any, **options: Any) -> Any:
    return TransformedOnDevice(DummyVectorEnv(fns, **options), make(), "cpu")


FORMS = (in_workers, around_the_batch, on_tensors, on_a_device)
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


def host(tree: Any) -> Any:
    """Convert a tree of tensors to arrays."""
    return nest.map(lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf, tree)


def assert_held(venv: Any, obs: Any) -> None:
    """Check that each row of the observation is in the space of the vector env."""
    for i, space in enumerate(venv.observation_space):
        row = nest.take(host(obs), i)
        assert space.contains(row), (space, row)


class Seen(Samples):
    """Wrapper that returns the action in the info."""

    def step(self, action: Any) -> Any:
        *result, info = super().step(np.zeros(2))
        return *result, {**info, "action": action}
